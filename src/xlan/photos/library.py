"""Captions beside and inside photos: what exists is kept, a person's words are never replaced unless asked to."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image, IptcImagePlugin

from xlan.errors import DataError, ImageError
from xlan.files import read_bytes, replace_file, write_bytes
from xlan.photos.containers import kind_of, read_xmp, with_xmp
from xlan.photos.xmp import MAX_PACKET, Description, changed_packet, new_packet, read_packet
from xlan.vision.image import DEFAULT_LIMITS, read_path

_IMAGE_DESCRIPTION = 0x010E  # of EXIF
_CAPTION = (2, 120)  # of IPTC
# What cameras write into every picture; not a description.
_CAMERAS = ("digital camera", "sony dsc", "minolta", "samsung", "dav", "hdr", "default", "exif_jpeg_picture", "cof")

# The temporary names of `xlan.files.atomic_path` for photos and sidecars.
_LEFTOVER = re.compile(r"\..+\.(?:jpe?g|jpe|jfif|png|webp|xmp)\.[a-z0-9_]{8}\.tmp", re.IGNORECASE)
_IN_USE = 60.0  # seconds

Standing = Literal["open", "done", "human"]


@dataclass(frozen=True)
class _Stamp:
    """Tells whether a file is still the same."""

    inode: int
    size: int
    changed: int


class PhotoLibrary:
    """Writes descriptions into photos or beside them, each file replaced by rename.

    Args:
        model: the model's name, written beside each description; another model's descriptions are replaced.
        sidecar: write `photo.jpg.xmp` beside `photo.jpg`.
        embed: write into the photo.
        overwrite_description: replace also what a person wrote.

    Attributes:
        written: photos described so far.
        done: photos that already had a description of this model.
        kept: photos left alone since a person described them.
    """

    def __init__(self, model: str, *, sidecar: bool, embed: bool, overwrite_description: bool = False) -> None:
        self.written = self.done = self.kept = 0
        self._model = model
        self._sidecar = sidecar
        self._embed = embed
        self._overwrite = overwrite_description
        self._stamps: dict[Path, _Stamp] = {}
        self._cleaned: set[Path] = set()

    def is_done(self, photo: Path) -> bool:
        """Whether nothing is left to do for a photo; else it is open, and its state is remembered until `add`.

        A photo that cannot be read is not done: captioning it reports why.
        """
        self._clean(photo.parent)
        try:
            self._stamps[photo] = _stamp(photo)
            standing = self._standing(photo)
        except (OSError, DataError, ImageError):
            return False
        if standing == "human":
            self.kept += 1
        elif standing == "done":
            self.done += 1
        if standing != "open":
            del self._stamps[photo]
        return standing != "open"

    def add(self, photo: Path, text: str, confidence: float) -> None:
        """Describe a photo that `is_done` found open; others are left alone.

        Raises:
            ImageError: the photo changed since `is_done`, cannot be changed, or its metadata is damaged.
            OSError: nothing can be written (a full disk); the old file is then still there.
        """
        description = Description(text, confidence, self._model)
        before = self._stamps.pop(photo, None)
        if before is None:
            return
        try:
            if _stamp(photo) != before:
                raise DataError("changed while it was being captioned; nothing was written, run again")
            if self._embed:
                self._write_into(photo, description, before)
            if self._sidecar:
                self._write_beside(photo, description)
        except FileNotFoundError:
            raise ImageError(f"{photo}: removed while it was being captioned") from None
        except OSError as error:
            if not isinstance(error, PermissionError) and error.errno != errno.ENAMETOOLONG:
                raise
            raise ImageError(f"{photo}: cannot be written: {error.strerror or error}") from None
        except (DataError, ImageError) as error:
            raise ImageError(f"{photo}: {error}") from None
        self.written += 1

    def _clean(self, folder: Path) -> None:
        """Remove what a killed run left in a folder, once per folder; files of a minute ago may be in use."""
        if folder in self._cleaned:
            return
        self._cleaned.add(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _LEFTOVER.fullmatch(entry.name) and time.time() - entry.stat().st_ctime > _IN_USE:
                    Path(entry.path).unlink(missing_ok=True)

    def _write_into(self, photo: Path, description: Description, before: _Stamp) -> None:
        if not os.access(photo, os.W_OK):
            raise ImageError("is read-only; nothing was written")
        data = read_path(photo, "the photo", DEFAULT_LIMITS)
        if len(data) > DEFAULT_LIMITS.max_bytes:
            raise ImageError(f"is larger than the limit of {DEFAULT_LIMITS.max_bytes:,} bytes for a picture")
        if kind_of(data[:16]) is None:
            raise ImageError("captions can be written into JPEG, PNG and WebP only; use --sidecar for others")
        packet = _embedded(photo)
        made = new_packet(description, sidecar=False) if packet is None else changed_packet(packet, description)
        changed = with_xmp(data, made)
        if _stamp(photo) != before:
            raise DataError("changed while it was being captioned; nothing was written, run again")
        replace_file(photo.resolve(), changed, keep_times=True)

    def _write_beside(self, photo: Path, description: Description) -> None:
        path = sidecar_of(photo)
        if _exists(path):
            replace_file(path.resolve(), changed_packet(read_bytes(path, max_bytes=MAX_PACKET), description))
        else:
            write_bytes(path, new_packet(description, sidecar=True))

    def _standing(self, photo: Path) -> Standing:
        """Whether a photo is to be described: no, if this model or a person has described it already."""
        embeds = _embedded(photo) if _has_container(photo) else None
        inside = None if embeds is None else read_packet(embeds)
        path = sidecar_of(photo)
        beside = read_packet(read_bytes(path, max_bytes=MAX_PACKET)) if _exists(path) else None
        packets = [one for one in (inside, beside) if one is not None]
        people = any(one.description and not one.is_ours for one in packets) or _other_description(photo)
        if people and not self._overwrite:
            return "human"
        wanted = [one for one, on in ((inside, self._embed), (beside, self._sidecar)) if on]
        done = all(one is not None and one.is_ours and one.model == self._model for one in wanted)
        return "done" if done else "open"


def sidecar_of(photo: Path) -> Path:
    """`photo.jpg.xmp`, the name that digiKam and darktable use."""
    return photo.with_name(photo.name + ".xmp")


def _exists(sidecar: Path) -> bool:
    try:
        return sidecar.exists()
    except OSError:  # a name that is too long
        return False


def _embedded(photo: Path) -> bytes | None:
    with photo.open("rb") as file:
        return read_xmp(file)


def _has_container(photo: Path) -> bool:
    with photo.open("rb") as file:
        return kind_of(file.read(16)) is not None


def _stamp(photo: Path) -> _Stamp:
    found = photo.stat()
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for somebody who writes to it
        raise ImageError("is not a file")
    return _Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def _other_description(photo: Path) -> bool:
    """Whether a person described the photo in EXIF or IPTC, which XMP would hide; cameras' own words do not count."""
    try:
        with Image.open(photo, formats=("JPEG", "PNG", "WEBP", "TIFF")) as image:
            words: list[Any] = [image.getexif().get(_IMAGE_DESCRIPTION)]
            words.append((IptcImagePlugin.getiptcinfo(image) or {}).get(_CAPTION))
    except Exception:  # a hostile header can raise almost anything; treat it as unreadable
        return False
    for one in words:
        text = one.decode("utf-8", "replace") if isinstance(one, bytes) else one if isinstance(one, str) else ""
        plain = text.strip(" \0\t\r\n").lower()
        if plain and not any(camera in plain for camera in _CAMERAS[:3]) and plain not in _CAMERAS:
            return True
    return False
