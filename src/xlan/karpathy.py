"""Karpathy's dataset file, and the rules for image ids and splits that everything else follows.

    {"images": [{"filename", "split", "cocoid"?, "filepath"?, "shard"?, "sentences": [{"raw", "tokens"?}]}]}

The file may come from anywhere: nothing in it is trusted. What cannot be used is given back as `Skipped`, and the
caller decides whether to continue without it. Nothing here needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from xlan.errors import DataError
from xlan.files import read_json

# How the files of the field spell the three splits. COCO's "restval" is what is left of the validation pictures after
# Karpathy took his 10,000; everybody trains on it.
SPLIT_NAMES = {
    "restval": "train",
    "training": "train",
    "trn": "train",
    "dev": "val",
    "valid": "val",
    "validation": "val",
    "testing": "test",
}


@dataclass(frozen=True)
class Skipped:
    """Something in a caption file that could not be used: where, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class Sentence:
    """One caption of an image.

    Attributes:
        where: its place in the file, for messages.
        raw: as a person wrote it.
        tokens: the words the file itself gives, unchecked; None when it gives none.
    """

    where: str
    raw: str
    tokens: Any = None


@dataclass(frozen=True)
class KarpathyImage:
    """One entry of the list `images`.

    Attributes:
        where: its place in the file, for messages.
        id: `cocoid`, else the file name without its ending, else `imgid`; unique in the file.
        split: by its usual name ("restval" → "train"); "" when the file gives none.
        filename: the picture's name; "" when the file gives none.
        filepath: the folder it is in; "" when the file gives none.
        shard: name of the tar file it is in; "" when it is a file of its own.
        number: `imgid` as text; "" when the file gives none.
        sentences: its captions.
        skipped: captions that cannot be used.
    """

    where: str
    id: str
    split: str = ""
    filename: str = ""
    filepath: str = ""
    shard: str = ""
    number: str = ""
    sentences: tuple[Sentence, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def file(self) -> str:
        """The file name with its folder, where the file gives one."""
        return f"{self.filepath}/{self.filename}" if self.filepath and self.filename else self.filename


def read_karpathy(path: str | os.PathLike[str]) -> Iterator[KarpathyImage | Skipped]:
    """Images of a dataset file, compressed (`.gz`, `.xz`) or not.

    Raises:
        DataError: the file cannot be read or has another format.
    """
    value = read_json(path)
    entries = value.get("images") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise DataError(f"{path}: expected Karpathy's format, an object with a list 'images'")
    return karpathy_images(entries)


def karpathy_images(entries: Sequence[Any]) -> Iterator[KarpathyImage | Skipped]:
    """Images of the list `images`, in order; what cannot be used comes as `Skipped` in its place."""
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        where = f"images[{number}]"
        image = _image(where, entry)
        if isinstance(image, KarpathyImage):
            if image.id in seen:
                yield Skipped(where, f"image {image.id} is listed twice")
                continue
            seen.add(image.id)
        yield image


def _image(where: str, entry: Any) -> KarpathyImage | Skipped:
    if not isinstance(entry, dict):
        return Skipped(where, f"must be an object, got {type(entry).__name__}")
    filename = _text(entry.get("filename"))
    image_id = id_text(entry.get("cocoid")) or id_of_file(filename)
    image_id = image_id or id_text(entry.get("imgid")) or id_text(entry.get("id"))
    if not image_id:
        return Skipped(where, "has no cocoid, filename or imgid")
    found = entry.get("sentences")
    if not isinstance(found, list | None):
        return Skipped(where, "has 'sentences' that are not a list")
    sentences = [_sentence(f"{where}.sentences[{place}]", value) for place, value in enumerate(found or ())]
    return KarpathyImage(
        where,
        image_id,
        split_name(_text(entry.get("split"))),
        filename,
        _text(entry.get("filepath")),
        _text(entry.get("shard")),
        id_text(entry.get("imgid")),
        tuple(item for item in sentences if isinstance(item, Sentence)),
        tuple(item for item in sentences if isinstance(item, Skipped)),
    )


def _sentence(where: str, value: Any) -> Sentence | Skipped:
    if not isinstance(value, dict):
        return Skipped(where, "must be an object with 'raw'")
    raw = value.get("raw")
    if not isinstance(raw, str):
        return Skipped(where, f"the caption must be text, got {type(raw).__name__}")
    return Sentence(where, raw, value.get("tokens"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def id_text(value: Any) -> str:
    """An id given as a whole number or as text; "" for anything else."""
    if isinstance(value, str):
        return value.strip()
    return str(value) if type(value) is int else ""


def split_name(name: str) -> str:
    """The usual name of a split ("restval" → "train")."""
    plain = name.strip().lower()
    return SPLIT_NAMES.get(plain, plain)


def id_of_file(file: str) -> str:
    """Id of an image that has nothing but a file name: the name without its ending ("dogs/1.jpg" → "dogs/1")."""
    if not file:
        return ""
    path = PurePosixPath(file.replace("\\", "/"))
    return str(path.with_suffix("")) if path.suffix else str(path)


def image_names(image_id: str, file: str) -> Iterator[str]:
    """Names under which the picture of an image, or its features, may be kept, the most exact first.

    Features made from a folder of pictures are named after files ("COCO_val2014_000000391895"), others after
    COCO's numbers ("391895"), and COCO's newer pictures after numbers of twelve digits; all must be found.
    """
    names = [image_id]
    if file:
        path = PurePosixPath(file.replace("\\", "/"))
        names += [file, id_of_file(file), path.name, path.stem]
        if (digits := path.stem.rpartition("_")[2]).isdecimal() and len(digits) == 12:
            names += [digits, str(int(digits))]
    if image_id.isascii() and image_id.isdecimal() and len(image_id) < 12:
        names.append(image_id.zfill(12))
    return iter(dict.fromkeys(names))
