"""Where `xlan detect --draw` writes: a file per picture, and never over a photo."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from xlan.cli.pictures import STDIN
from xlan.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Named = tuple[str, Path | bytes]
_FILES = (".png", ".jpg", ".jpeg")
# Drawings in PNG files say so: the next run replaces them, and does not take them for pictures.
_KEY, _MARK = "Software", "xlan detect --draw"


def plan_drawings(target: Path, pictures: Sequence[Named], *, one: bool) -> list[tuple[str, Path | bytes, Path]]:
    """Name, picture and file of its drawing; earlier drawings among the pictures of a folder are left out.

    Args:
        target: the file for the only picture, or a folder.
        pictures: all that will be read, so that none of them is replaced.
        one: whether they are one picture that was named itself.

    Raises:
        DataError: a drawing would replace a picture.
    """
    if target.suffix.lower() in _FILES:
        if not one:
            raise typer.BadParameter("expected a folder for several pictures, got the name of one", param_hint="--draw")
        files = [target] * len(pictures)
    else:
        if not one:
            pictures = [picture for picture in pictures if not _is_earlier(picture[1], target)]
        files = _in_folder(target, [name for name, _ in pictures])
    read = {_identity(source) for _, source in pictures if isinstance(source, Path)} - {None}
    for file in files:
        there = _identity(file)
        if there is not None and (there in read or (file != target and not is_drawing(file))):
            raise DataError(
                f"{file}: is a picture that a drawing would replace, expected a new name or an earlier drawing; "
                "choose another place with --draw"
            )
    return [(name, source, file) for (name, source), file in zip(pictures, files, strict=True)]


def save_drawing(image: Image.Image, path: Path) -> None:
    """Write a drawing: as PNG with a mark, or as JPEG."""
    from PIL.PngImagePlugin import PngInfo

    from xlan.files import atomic_path

    with atomic_path(path) as temporary:
        if path.suffix.lower() == ".png":
            mark = PngInfo()
            mark.add_text(_KEY, _MARK)
            image.save(temporary, "PNG", pnginfo=mark)
        else:
            image.save(temporary, "JPEG")


def is_drawing(path: Path) -> bool:
    """Whether a file is a PNG that `save_drawing` wrote."""
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as image:
            return bool(image.info.get(_KEY) == _MARK)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def _is_earlier(source: Path | bytes, folder: Path) -> bool:
    return isinstance(source, Path) and source.parent.resolve() == folder.resolve() and is_drawing(source)


def _in_folder(folder: Path, names: Sequence[str]) -> list[Path]:
    """Named like the pictures; where several would share a name, digits of a hash keep them apart."""
    stems = {name: "picture" if name == STDIN else Path(name).stem for name in names}
    shared = Counter(_folded(stem) for stem in stems.values())

    def file(name: str) -> Path:
        digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return folder / (f"{stems[name]}.png" if shared[_folded(stems[name])] == 1 else f"{stems[name]}-{digits}.png")

    return [file(name) for name in names]


def _folded(stem: str) -> str:
    """The same for names that some file systems do not tell apart."""
    return unicodedata.normalize("NFC", stem).casefold()


def _identity(path: Path) -> tuple[int, int] | None:
    """Equal for two names of one file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
