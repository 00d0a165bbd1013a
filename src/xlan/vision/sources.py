"""Where pictures come from: folders, single files, tar shards, and Karpathy's JSON that names files or shards.

Nothing is ever unpacked to disk: a tar file is indexed once, without decompression, and pictures are read at their
offsets, so names inside an archive cannot escape anywhere and threads may read at once.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlan.errors import DataError, ImageError
from xlan.files import read_json
from xlan.vision.image import DEFAULT_LIMITS, SUFFIXES, ImageLimits

MAX_TAR_MEMBERS = 10_000_000


@dataclass(frozen=True)
class Picture:
    """One picture that can be read when it is needed.

    Attributes:
        id: the id its features get.
        name: what messages call it.
        path: the file it lies in: a picture, or a tar shard.
        offset: where its bytes begin, for a shard; None when the whole file is the picture.
        size: how many bytes it has, for a shard.
        split: `train`, `val`, … where the source says so.
        captions: raw captions, where the source has them.
    """

    id: str
    name: str
    path: Path
    offset: int | None = None
    size: int = 0
    split: str = ""
    captions: tuple[str, ...] = ()

    def read(self, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
        """The picture's bytes, at most one more than the limit allows."""
        try:
            if not self.path.is_file():
                raise ImageError(f"{self.name}: no such file")
            with self.path.open("rb") as file:
                if self.offset is None:
                    return file.read(limits.max_bytes + 1)
                file.seek(self.offset)
                return file.read(min(self.size, limits.max_bytes + 1))
        except OSError as error:
            raise ImageError(f"{self.name}: cannot be read: {error.strerror or error}") from None


def find_pictures(sources: Iterable[str | os.PathLike[str]], *, number_ids: bool = False) -> list[Picture]:
    """Pictures of several sources, each a picture file, a folder (searched to the bottom), a `.tar` or a `.json`.

    Args:
        sources: paths.
        number_ids: take the number at the end of a file's name as its id, as COCO does
            (`COCO_val2014_000000391895.jpg` → `391895`), instead of its path without the suffix.

    Raises:
        DataError: a source is missing or is none of these, or two pictures would get the same id.
    """
    found: dict[str, Picture] = {}
    for source in sources:
        for picture in _pictures_of(Path(source), number_ids=number_ids):
            other = found.setdefault(picture.id, picture)
            if other is not picture:
                raise DataError(
                    f"two pictures would get the id {picture.id!r}: {other.name} and {picture.name}; "
                    "rename one, or extract them into two stores"
                )
    return list(found.values())


def _pictures_of(source: Path, *, number_ids: bool) -> Iterator[Picture]:
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                inner = path.relative_to(source)
                yield Picture(_id(inner.as_posix(), number_ids), str(path), path)
    elif not source.is_file():
        raise DataError(f"{source}: no such file or folder")
    elif source.suffix.lower() == ".json":
        yield from karpathy_pictures(source)
    elif source.suffix.lower() == ".tar":
        for member, offset, size in tar_members(source):
            if Path(member).suffix.lower() in SUFFIXES:
                yield Picture(_id(member, number_ids), f"{source}:{member}", source, offset, size)
    else:
        yield Picture(_id(source.name, number_ids), str(source), source)


def _id(name: str, number: bool) -> str:
    stem = name[: len(name) - len(Path(name).suffix)]
    if not number:
        return stem
    digits = re.search(r"(\d+)$", stem)
    if digits is None:
        raise DataError(f"{name}: has no number at the end of its name to take as id; leave out --number-ids")
    return str(int(digits.group(1)))


def tar_members(path: Path) -> list[tuple[str, int, int]]:
    """Name, offset and size of every regular file in an uncompressed tar.

    Raises:
        DataError: not an uncompressed tar, damaged, cut short, or with more members than any shard has.
    """
    members: list[tuple[str, int, int]] = []
    length = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if len(members) >= MAX_TAR_MEMBERS:
                    raise DataError(f"{path}: has more than {MAX_TAR_MEMBERS:,} members")
                if member.isreg() and not member.issparse():
                    if member.offset_data + member.size > length:
                        raise DataError(f"{path}: is cut short inside {member.name!r}; copy it again")
                    members.append((member.name, member.offset_data, member.size))
                archive.members.clear()  # type: ignore[attr-defined]  # else every header stays in memory
    except DataError:
        raise
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: is not a readable, uncompressed tar file: {error}") from None
    return members


def karpathy_pictures(path: str | os.PathLike[str], *, splits: Sequence[str] | None = None) -> list[Picture]:
    """Pictures that a dataset file in Karpathy's format names, with split and raw captions.

    Files are looked for beside the JSON: in the tar of the entry's `shard` field, else under `filepath/filename`, else
    under `filename`. The id is `cocoid`, else the file name without suffix.
    """
    source = Path(path)
    value = read_json(source)
    entries = value.get("images") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise DataError(f"{source}: expected Karpathy's format, an object with a list 'images'")
    shards: dict[str, dict[str, tuple[int, int]]] = {}
    pictures = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("filename"), str):
            raise DataError(f"{source}: images[{number}] has no 'filename'")
        if splits is None or entry.get("split") in splits:
            pictures.append(_karpathy_picture(source, number, entry, shards))
    return pictures


def _karpathy_picture(
    source: Path, number: int, entry: dict[str, Any], shards: dict[str, dict[str, tuple[int, int]]]
) -> Picture:
    filename, split = entry["filename"], str(entry.get("split", ""))
    image_id = str(entry.get("cocoid", Path(filename).stem))
    sentences = entry.get("sentences") or []
    if not isinstance(sentences, list):
        raise DataError(f"{source}: images[{number}] has 'sentences' that are not a list")
    captions = tuple(str(item["raw"]) for item in sentences if isinstance(item, dict) and "raw" in item)
    shard = entry.get("shard")
    if shard is None:
        inner = _inside(source.parent, os.path.join(str(entry.get("filepath") or ""), filename), source, number)  # noqa: PTH118
        if not inner.exists():
            inner = _inside(source.parent, filename, source, number)
        return Picture(image_id, str(inner), inner, split=split, captions=captions)
    tar = _inside(source.parent, str(shard), source, number)
    if str(shard) not in shards:
        if not tar.is_file():
            raise DataError(f"{source}: images[{number}] lies in shard {shard!r}, but {tar} does not exist")
        shards[str(shard)] = {name: (offset, size) for name, offset, size in tar_members(tar)}
    if filename not in shards[str(shard)]:
        raise DataError(f"{source}: images[{number}] should be {filename!r} in {tar}, which has no such member")
    offset, size = shards[str(shard)][filename]
    return Picture(image_id, f"{tar}:{filename}", tar, offset, size, split, captions)


def _inside(folder: Path, name: str, source: Path, number: int) -> Path:
    """`folder / name`, refused when the name leads out of the folder."""
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts or not parts or "\0" in name:
        raise DataError(f"{source}: images[{number}] names {name!r}, which leads out of the dataset's folder")
    return folder / name
