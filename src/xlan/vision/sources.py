"""Where pictures are: folders, single files, tar shards, and dataset files that name files or shards.

Nothing is ever unpacked to disk: a tar file is indexed once, without decompression, and pictures are read at their
offsets, so names inside an archive cannot escape anywhere and threads may read at once.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from xlan.errors import DataError, ImageError
from xlan.files import is_json
from xlan.karpathy import KarpathyImage, Skipped, id_of_file, image_names, read_karpathy, split_name
from xlan.vision.image import DEFAULT_LIMITS, SUFFIXES, ImageLimits, read_path

MAX_TAR_MEMBERS = 10_000_000
TABLES = (".csv", ".jsonl", ".token", ".tsv")  # captions and features, which hold no picture


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
        """The picture's bytes, at most one more than the limit allows.

        Raises:
            ImageError: there is no such file, or it cannot be read.
        """
        if self.offset is None:
            return read_path(self.path, self.name, limits)
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                return file.read(min(self.size, limits.max_bytes + 1))
        except OSError as error:
            raise ImageError(f"{self.name}: cannot be read: {error.strerror or error}") from None


def walk_pictures(folder: Path, problem: Callable[[str], None] | None = None) -> Iterator[Path]:
    """Everything below a folder that is named like a picture, folder by folder, sorted by name.

    Hidden names are left out, and links to folders are not followed, because they can lead in circles. A dangling link,
    a pipe or an unknown format is given too: reading it reports that it cannot be read.

    Args:
        folder: where to look; one folder's names are in memory at a time.
        problem: told about each folder that cannot be read; without it, that is an error.

    Raises:
        DataError: a folder cannot be read and there is no `problem`.
    """
    try:
        entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in os.scandir(folder))
    except OSError as error:
        line = f"{folder}: cannot be read: {error.strerror or error}"
        if problem is None:
            raise DataError(line) from None
        problem(line)
        return
    for name, is_folder in entries:
        if name.startswith("."):
            continue
        if is_folder:
            yield from walk_pictures(folder / name, problem)
        elif named_like_picture(name):
            yield folder / name


def named_like_picture(name: str) -> bool:
    """Whether a file name ends like that of a picture."""
    return Path(name).suffix.lower() in SUFFIXES


class PictureFolder:
    """A folder of pictures in which those of a dataset are found by name.

    Raises:
        DataError: there is no such folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(f"{folder}: no such folder of pictures")
        self._paths: dict[str, list[Path]] = {}
        for path in walk_pictures(self.folder):
            inner = path.relative_to(self.folder).as_posix()
            for name in {inner, id_of_file(inner), path.name, path.stem}:
                self._paths.setdefault(name, []).append(path)

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def find(self, image_id: str, file: str) -> Path | None:
        """The picture of an image, by file name or id (see `image_names`); None when it is not there.

        Raises:
            DataError: several pictures could be meant.
        """
        found = [self._paths[name] for name in image_names(image_id, file) if name in self._paths]
        if not found:
            return None
        if exact := next((paths for paths in found if len(paths) == 1), None):
            return exact[0]
        raise DataError(f"{self.folder}: image {image_id} could be {found[0][0]} or {found[0][1]}; remove one")


def find_pictures(
    sources: Iterable[str | os.PathLike[str]],
    *,
    number_ids: bool = False,
    folder: str | os.PathLike[str] | None = None,
    on_missing: Callable[[str], None] | None = None,
) -> list[Picture]:
    """Pictures of several sources, each a picture file, a folder (searched to the bottom), a `.tar` or a dataset file.

    Args:
        sources: paths; a dataset file is Karpathy's `.json`, `.json.gz` or `.json.xz`.
        number_ids: take the number at the end of a file's name as its id, as COCO does
            (`COCO_val2014_000000391895.jpg` → `391895`), instead of its path without the suffix.
        folder: where the pictures of dataset files are; see `karpathy_pictures`.
        on_missing: told the id of each image whose picture is not in `folder`.

    Raises:
        DataError: a source is missing or is none of these, or two pictures would get the same id.
    """
    found: dict[str, Picture] = {}
    for source in map(Path, sources):
        pictures: Iterable[Picture]
        if is_json(source) and source.is_file():
            pictures = karpathy_pictures(source, folder=folder, on_missing=on_missing)
        else:
            pictures = _pictures_of(source, number_ids=number_ids)
        for picture in pictures:
            other = found.setdefault(picture.id, picture)
            if other is not picture:
                raise DataError(
                    f"two pictures would get the id {picture.id!r}: {other.name} and {picture.name}; "
                    "rename one, or extract them into two stores"
                )
    return list(found.values())


def _pictures_of(source: Path, *, number_ids: bool) -> Iterator[Picture]:
    if source.is_dir():
        for path in walk_pictures(source):
            yield Picture(_id(path.relative_to(source).as_posix(), number_ids), str(path), path)
    elif not source.is_file():
        raise DataError(f"{source}: no such file or folder")
    elif source.suffix.lower() == ".tar":
        for member, offset, size in tar_members(source):
            if named_like_picture(member):
                yield Picture(_id(member, number_ids), f"{source}:{member}", source, offset, size)
    elif source.suffix.lower() in TABLES:
        raise DataError(f"{source}: is a table, not a picture; expected the folder with the pictures")
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
    try:
        with path.open("rb") as file:
            return list(tar_index(file, path.stat().st_size, path))
    except OSError as error:
        raise DataError(f"{path}: is not a readable, uncompressed tar file: {error}") from None


def tar_index(file: BinaryIO, length: int, name: str | os.PathLike[str]) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of every regular file in an uncompressed tar of `length` bytes, which errors call `name`.

    Raises:
        DataError: not an uncompressed tar, damaged, cut short, or with more members than any shard has.
    """
    count = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    count += 1
                    if count > MAX_TAR_MEMBERS:
                        raise DataError(f"{name}: has more than {MAX_TAR_MEMBERS:,} members")
                    if member.offset_data + member.size > length:
                        raise DataError(f"{name}: is truncated inside {member.name!r}; copy it again")
                    yield member.name, member.offset_data, member.size
                archive.members.clear()  # type: ignore[attr-defined]  # else every header stays in memory
    except DataError:
        raise
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise DataError(f"{name}: is not a readable, uncompressed tar file: {error}") from None


def karpathy_pictures(
    path: str | os.PathLike[str],
    *,
    splits: Iterable[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    on_missing: Callable[[str], None] | None = None,
) -> list[Picture]:
    """Pictures that a dataset file in Karpathy's format names, with id, split and raw captions.

    Args:
        path: the dataset file, compressed or not.
        splits: only these ("train" has "restval" too).
        folder: where the pictures are, found by file name or by id (`000000391895.jpg`). Without it they are looked
            for beside the dataset file: in the tar of the entry's `shard` field, else under `filepath/filename`, else
            under `filename`.
        on_missing: told the id of each image whose picture is not in `folder`; it is left out of the list.

    Raises:
        DataError: the file has another format, an entry cannot be used, or a tar is missing.
    """
    source = Path(path)
    wanted = None if splits is None else {split_name(split) for split in splits}
    finder = _Beside(source) if folder is None else PictureFolder(folder)
    pictures = []
    for image in read_karpathy(source):
        if isinstance(image, Skipped):
            raise DataError(f"{source}: {image.where}: {image.reason}")
        if wanted is not None and image.split not in wanted:
            continue
        captions = tuple(sentence.raw for sentence in image.sentences)
        if isinstance(finder, _Beside):
            picture = finder.picture(image)
        elif (place := finder.find(image.id, image.file)) is not None:
            picture = Picture(image.id, str(place), place)
        else:
            if on_missing is not None:
                on_missing(image.id)
            continue
        pictures.append(replace(picture, split=image.split, captions=captions))
    return pictures


class _Beside:
    """Finds pictures where a dataset file says: in files and tar shards beside it."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self._shards: dict[str, dict[str, tuple[int, int]]] = {}

    def picture(self, image: KarpathyImage) -> Picture:
        if not image.filename:
            raise DataError(f"{self.source}: {image.where} has no 'filename'")
        if image.shard:
            return self._in_shard(image)
        path = self._inside(image.file, image)
        if not path.exists():
            path = self._inside(image.filename, image)
        return Picture(image.id, str(path), path)

    def _in_shard(self, image: KarpathyImage) -> Picture:
        tar, filename = self._inside(image.shard, image), image.filename
        if image.shard not in self._shards:
            if not tar.is_file():
                raise DataError(
                    f"{self.source}: {image.where} lies in shard {image.shard!r}, but {tar} does not exist; if the "
                    "pictures are elsewhere, name their folder with --pictures"
                )
            self._shards[image.shard] = {name: (offset, size) for name, offset, size in tar_members(tar)}
        if filename not in self._shards[image.shard]:
            raise DataError(f"{self.source}: {image.where} should be {filename!r} in {tar}, which has no such member")
        return Picture(image.id, f"{tar}:{filename}", tar, *self._shards[image.shard][filename])

    def _inside(self, name: str, image: KarpathyImage) -> Path:
        """The path of `name` beside the dataset file, refused when the name leads out of its folder."""
        if Path(name).is_absolute() or ".." in Path(name).parts or not Path(name).parts or "\0" in name:
            raise DataError(f"{self.source}: {image.where} names {name!r}, which leads out of the dataset's folder")
        return self.source.parent / name
