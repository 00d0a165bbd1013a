"""The files that the COCO captions server takes: captions of val2014 and test2014, in a zip.

The server refuses an archive in which an image is missing, appears twice or has an unexpected id, and reports it hours
later; these checks report it at once.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlan.errors import DataError
from xlan.files import atomic_path, read_json, write_json
from xlan.metrics.coco import ImageId, coco_number, load_results, some

# How many images the two sets of the 2014 release have.
IMAGES = {"val2014": 40_504, "test2014": 40_775}
MAX_MEMBER_BYTES = 256 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# The same bytes for the same captions, whenever they are packed.
_ZIP_TIME = (2014, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Submission:
    """What was written.

    Attributes:
        files: set name ("val2014") → result file.
        archive: the zip with both.
        captions: set name → number of captions.
        ids_checked: the sets whose ids were compared with a list, not only counted.
    """

    files: Mapping[str, Path]
    archive: Path
    captions: Mapping[str, int]
    ids_checked: tuple[str, ...]


def write_submission(
    results: Mapping[str, str | os.PathLike[str]],
    *,
    name: str,
    folder: str | os.PathLike[str],
    image_lists: Mapping[str, str | os.PathLike[str]] | None = None,
) -> Submission:
    """Check the captions of both sets and write the two result files and the zip.

    Args:
        results: set name ("val2014", "test2014") → result JSON.
        name: of the algorithm; it becomes part of the file names.
        folder: where to write.
        image_lists: set name → COCO JSON whose `images` are the images of that set. With it, ids are compared; without,
            only counted.

    Raises:
        DataError: something the server would refuse.
    """
    if not _NAME.fullmatch(name):
        raise DataError(f"the name {name!r} is used in file names: use up to 64 letters, digits, and _ . -")
    if set(results) != set(IMAGES):
        raise DataError(f"expected captions of {' and '.join(IMAGES)}, got {' and '.join(sorted(results)) or 'none'}")
    lists = {which: load_image_ids(path) for which, path in (image_lists or {}).items()}
    target = Path(folder)
    records: dict[str, list[dict[str, Any]]] = {}
    for which in IMAGES:
        captions = _numbered(load_results(results[which]), results[which])
        check_captions(captions, which=which, expected=lists.get(which), source=results[which])
        records[which] = [{"image_id": image, "caption": text} for image, text in sorted(captions.items())]
    files = {which: target / file_name(which, name) for which in IMAGES}
    for which, path in files.items():
        write_json(path, records[which], indent=None)
    archive = target / f"captions_{name}_results.zip"
    _write_zip(archive, files.values())
    check_archive(archive, name=name, image_ids=lists)
    return Submission(
        files=files,
        archive=archive,
        captions={which: len(entries) for which, entries in records.items()},
        ids_checked=tuple(lists),
    )


def _numbered(captions: Mapping[ImageId, str], source: str | os.PathLike[str]) -> dict[ImageId, str]:
    """Captions by number where images are called as COCO's files are, COCO_val2014_000000391895.jpg."""
    found: dict[ImageId, str] = {}
    for image, text in captions.items():
        number = coco_number(image)
        key = image if number is None else number
        if key in found:
            raise DataError(f"{source}: expected one caption for each image, got several for image {key}")
        found[key] = text
    return found


def file_name(which: str, name: str) -> str:
    """The name the server expects, for instance captions_val2014_NAME_results.json."""
    return f"captions_{which}_{name}_results.json"


def load_image_ids(path: str | os.PathLike[str]) -> frozenset[ImageId]:
    """Ids of the images that a COCO file lists (`captions_val2014.json`, `image_info_test2014.json`)."""
    value = read_json(path)
    images = value.get("images") if isinstance(value, dict) else None
    if not isinstance(images, list) or not all(isinstance(e, dict) and type(e.get("id")) is int for e in images):
        raise DataError(f"{path}: expected a COCO file with images that have a number as id")
    return frozenset(entry["id"] for entry in images)


def check_captions(
    captions: Mapping[ImageId, str],
    *,
    which: str,
    expected: Collection[ImageId] | None,
    source: str | os.PathLike[str],
) -> None:
    """Every image of the set exactly once, with a caption that is not empty.

    Raises:
        DataError: otherwise, naming the images.
    """
    strange = [image for image in captions if not isinstance(image, int)]
    if strange:
        raise DataError(f"{source}: the server expects image numbers, got {some(strange)}")
    empty = [image for image, text in captions.items() if not text.strip()]
    if empty:
        raise DataError(f"{source}: expected a caption for every image, got {len(empty):,} empty: image {some(empty)}")
    if expected is None:
        if len(captions) != IMAGES[which]:
            raise DataError(f"{source}: {which} has {IMAGES[which]:,} images, got captions of {len(captions):,}")
        return
    missing, unknown = set(expected) - set(captions), set(captions) - set(expected)
    if missing:
        raise DataError(f"{source}: {len(missing):,} images of {which} have no caption: {some(missing)}")
    if unknown:
        raise DataError(f"{source}: expected images of {which}, got {len(unknown):,} others: {some(unknown)}")


def check_archive(
    path: str | os.PathLike[str], *, name: str, image_ids: Mapping[str, Collection[ImageId]] | None = None
) -> None:
    """Open a zip as the server does and check both files in it.

    Raises:
        DataError: a file is missing, too large or not right.
    """
    wanted = {which: file_name(which, name) for which in IMAGES}
    try:
        with zipfile.ZipFile(path) as archive:
            if sorted(archive.namelist()) != sorted(wanted.values()):
                raise DataError(f"{path}: expected exactly {' and '.join(wanted.values())}, got {archive.namelist()}")
            for which, member in wanted.items():
                if archive.getinfo(member).file_size > MAX_MEMBER_BYTES:
                    raise DataError(f"{path}: {member} is larger than {MAX_MEMBER_BYTES >> 20} MiB")
                entries = json.loads(archive.read(member))
                captions = {entry["image_id"]: entry["caption"] for entry in entries}
                if len(captions) != len(entries):
                    raise DataError(f"{path}: {member} lists an image twice")
                check_captions(captions, which=which, expected=(image_ids or {}).get(which), source=member)
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: cannot be read as a submission: {error}") from None


def _write_zip(path: Path, files: Collection[Path]) -> None:
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", compression=zipfile.ZIP_DEFLATED) as archive,
    ):
        for file in files:
            member = zipfile.ZipInfo(file.name, date_time=_ZIP_TIME)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, file.read_bytes())
