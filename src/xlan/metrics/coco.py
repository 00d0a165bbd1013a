"""Reading captions to score and the references to score them against, from files anybody may have written.

Results: the COCO result format, `[{"image_id": 42, "caption": "a dog"}, …]`, or what `xlan caption -o` writes: JSON
lines `{"image": "photos/1.jpg", "caption": "a dog", …}` or CSV with the columns `image` and `caption`. References: COCO
annotations (`{"annotations": [{"image_id", "caption"}, …]}`) or Karpathy's format (`xlan.karpathy`), recognised by
their content.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from xlan.errors import DataError
from xlan.files import MAX_JSON_BYTES, read_json
from xlan.karpathy import KarpathyImage, Skipped, karpathy_images, split_name

ImageId = int | str
MAX_CAPTION_CHARACTERS = 1_000_000
MAX_LISTED = 5


@dataclass(frozen=True)
class References:
    """The reference captions of each image.

    Attributes:
        captions: image id → raw captions, at least one.
        splits: image id → split, for files that have splits.
        files: image id → file name of its picture, for files that name pictures.
        numbers: number → image id, for files that number their images but name them too.
    """

    captions: Mapping[ImageId, list[str]]
    splits: Mapping[ImageId, str] = field(default_factory=dict)
    files: Mapping[ImageId, str] = field(default_factory=dict)
    numbers: Mapping[ImageId, ImageId] = field(default_factory=dict)

    def ids_of(self, images: Iterable[ImageId]) -> dict[ImageId, ImageId]:
        """The id here of each of `images`, which may be ids, names of pictures, names that end in a COCO number, or
        numbers of the file.

        One of these ways is used for all of them, so that a picture called 1000.jpg is never taken for image 1000 where
        the others go by name. Images that are not found are left out.

        Raises:
            DataError: two of them are the same image here.
        """
        names = list(images)
        best: dict[ImageId, ImageId] = {}
        for way in (self._by_id, self._by_name, self._by_number, self.numbers.get):
            found = {name: own for name in names if (own := way(name)) is not None}
            if len(found) > len(best):
                best = found
            if len(best) == len(names):
                break
        owner: dict[ImageId, ImageId] = {}
        for name, own in best.items():
            if owner.setdefault(own, name) != name:
                raise DataError(f"{owner[own]} and {name} are both image {own} of the references; keep one of them")
        return best

    def _by_id(self, image: ImageId) -> ImageId | None:
        return image if image in self.captions else None

    def _by_name(self, image: ImageId) -> ImageId | None:
        for name in picture_names(str(image)):
            if (own := self._named.get(name)) is not None:
                return own
        return None

    def _by_number(self, image: ImageId) -> ImageId | None:
        number = coco_number(image)
        return number if number in self.captions else None

    @cached_property
    def _named(self) -> dict[str, ImageId | None]:
        """Names of pictures with and without folder and ending → image id; None where several images share one."""
        named: dict[str, ImageId | None] = {}
        for image in self.captions:
            for name in picture_names(self.files.get(image, str(image))):
                named[name] = image if named.get(name, image) == image else None
        return named

    def of_split(self, split: str) -> References:
        """Only the images of one split ("restval" counts as "train")."""
        split = split_name(split)
        chosen = {key: texts for key, texts in self.captions.items() if self.splits.get(key) == split}
        if not chosen:
            names = ", ".join(sorted(set(self.splits.values()))) or "none, the file has no splits"
            raise DataError(f"the references have no split {split!r}; they have: {names}")
        files = {image: name for image, name in self.files.items() if image in chosen}
        numbers = {number: image for number, image in self.numbers.items() if image in chosen}
        return References(chosen, dict.fromkeys(chosen, split), files, numbers)


def picture_names(file: str) -> list[str]:
    """What a picture may be called: its path, without its ending, without its folders, without both."""
    path = PurePosixPath(file.replace("\\", "/"))
    if not path.name:
        return []
    return list(dict.fromkeys([str(path), str(path.with_suffix("")), path.name, path.stem]))


def coco_number(image: ImageId) -> int | None:
    """The number that COCO's file names end in: COCO_val2014_000000391895.jpg and 000000391895.jpg are 391895."""
    if isinstance(image, int):
        return image
    found = re.search(r"(?:^|_)(\d{12})$", PurePosixPath(image.replace("\\", "/")).stem, re.ASCII)
    return None if found is None else int(found[1])


def load_results(path: str | os.PathLike[str]) -> dict[ImageId, str]:
    """Captions to score, by image id or name of the picture.

    Raises:
        DataError: not a file of captions, or an image has two of them.
    """
    readers = {".jsonl": _json_lines, ".csv": _csv_rows}
    found: dict[ImageId, str] = {}
    twice: list[ImageId] = []
    for where, entry in readers.get(Path(path).suffix.lower(), _json_list)(path):
        if "image_id" not in entry and isinstance(entry.get("image"), str) and entry["image"]:
            image: ImageId = _plain_text(entry["image"])
        else:
            image = _image_id(path, where, entry, "image_id")
        caption = _text(path, f"{where} (image {image})", entry, "caption")
        if image in found:
            twice.append(image)
        found[image] = caption
    if twice:
        raise DataError(f"{path}: expected one caption for each image, got several for image {some(twice)}")
    if not found:
        raise DataError(f"{path}: there are no captions in this file")
    return found


def _json_list(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    value = read_json(path)
    expected = "expected a list of results [{image_id, caption}, …]"
    if isinstance(value, dict):
        hint = "; this file holds references: give the results first, then the references" if "images" in value else ""
        raise DataError(f"{path}: {expected}, got an object{hint}")
    if not isinstance(value, list):
        raise DataError(f"{path}: {expected}, got {type(value).__name__}")
    for place, entry in _entries(path, "result", value):
        yield f"result {place}", entry


def _json_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = _lines(path)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            cut = "; was the run cut short? Run it again to complete the file" if number == len(lines) else ""
            raise DataError(f"{path}: line {number} is not valid JSON{cut}") from None
        if not isinstance(entry, dict):
            raise DataError(f"{path}: line {number} should be an object, got {type(entry).__name__}")
        yield f"line {number}", entry


def _csv_rows(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = csv.DictReader(_lines(path))
    try:
        names = rows.fieldnames or []
        if "caption" not in names or not {"image", "image_id"} & set(names):
            got = ",".join(names)[:100] or "nothing"
            raise DataError(f"{path}: expected the columns image (or image_id) and caption, got {got}")
        for row in rows:
            yield f"line {rows.line_num}", row
    except csv.Error as error:
        raise DataError(f"{path}: line {rows.line_num} is not valid CSV: {error}") from None


def _lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file with their ends; names of files in another encoding keep their bytes."""
    try:
        if Path(path).stat().st_size > MAX_JSON_BYTES:
            raise DataError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB")
        with Path(path).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            return file.readlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def load_references(path: str | os.PathLike[str], *, split: str | None = None) -> References:
    """Reference captions by image id, from COCO annotations or Karpathy's format.

    Args:
        path: the file.
        split: only the images of this split (Karpathy's format).

    Raises:
        DataError: neither format, or malformed.
    """
    value = read_json(path)
    if isinstance(value, dict) and isinstance(value.get("annotations"), list):
        captions = _from_annotations(path, value["annotations"])
        references = References(captions, files=_annotated_files(value.get("images"), captions))
    elif isinstance(value, dict) and isinstance(value.get("images"), list):
        references = _from_karpathy(path, value["images"])
    else:
        hint = "; this looks like a result file: give the results first" if isinstance(value, list) else ""
        raise DataError(f"{path}: expected COCO annotations or Karpathy's dataset format{hint}")
    if not references.captions:
        raise DataError(f"{path}: there are no reference captions in this file")
    return references if split is None else references.of_split(split)


def _from_annotations(path: str | os.PathLike[str], annotations: list[Any]) -> dict[ImageId, list[str]]:
    captions: dict[ImageId, list[str]] = {}
    for place, entry in _entries(path, "annotation", annotations):
        image = _image_id(path, f"annotation {place}", entry, "image_id")
        text = _text(path, f"annotation {place} (image {image})", entry, "caption")
        captions.setdefault(image, []).append(text)
    return captions


def _annotated_files(images: object, captions: Collection[ImageId]) -> dict[ImageId, str]:
    """File names of the images of COCO annotations; entries without one are skipped, since nothing needs them."""
    entries = [entry for entry in images if isinstance(entry, dict)] if isinstance(images, list) else []
    return {
        entry["id"]: entry["file_name"]
        for entry in entries
        if isinstance(entry.get("file_name"), str) and type(entry.get("id")) is int and entry["id"] in captions
    }


def _from_karpathy(path: str | os.PathLike[str], images: list[Any]) -> References:
    captions: dict[ImageId, list[str]] = {}
    splits: dict[ImageId, str] = {}
    files: dict[ImageId, str] = {}
    numbers: dict[ImageId, ImageId] = {}
    for image in karpathy_images(images):
        fault = image if isinstance(image, Skipped) else next(iter(image.skipped), None)
        if fault is not None:
            raise DataError(f"{path}: {fault.where}: {fault.reason}")
        if isinstance(image, KarpathyImage) and image.sentences:
            key = plain_id(image.id)
            captions[key] = [_clean(path, sentence.where, sentence.raw) for sentence in image.sentences]
            splits[key] = image.split
            if image.file:
                files[key] = image.file
            if image.number:
                numbers[plain_id(image.number)] = key
    # Flickr's images have no numbers that anybody else knows: results are by file name, or by their place in the file.
    return References(captions, splits, files, numbers if len(numbers) == len(captions) else {})


def _entries(path: str | os.PathLike[str], what: str, values: Sequence[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and content of each entry, which must be an object."""
    for place, entry in enumerate(values, start=1):
        if not isinstance(entry, dict):
            raise DataError(f"{path}: {what} {place} should be an object, got {type(entry).__name__}")
        yield place, entry


def _image_id(path: str | os.PathLike[str], where: str, entry: Mapping[str, Any], name: str) -> ImageId:
    """An image id: a whole number, or a text; a text of digits means the number."""
    value = entry.get(name)
    if isinstance(value, str) and value.isprintable() and value:
        return plain_id(value)
    if type(value) is int:
        return value
    raise DataError(f"{path}: {where} needs {name!r} to be a number or a text, got {value!r:.80}")


def plain_id(name: str) -> ImageId:
    """An image id from a text: a number written as numbers are written means the number ("42", but not "042")."""
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 18 and str(int(name)) == name else name


def _text(path: str | os.PathLike[str], where: str, entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise DataError(f"{path}: {where} needs {name!r} to be a text, got {value!r:.80}")
    return _clean(path, where, value)


def _clean(path: str | os.PathLike[str], where: str, value: str) -> str:
    if len(value) > MAX_CAPTION_CHARACTERS:
        raise DataError(f"{path}: {where} has a caption of {len(value):,} characters")
    return _plain_text(value)


def _plain_text(value: str) -> str:
    """Replace halves of surrogate pairs, which are legal in JSON but cannot be encoded as text."""
    return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def some(ids: Iterable[ImageId]) -> str:
    """A few of the ids, and how many more there are."""
    listed = sorted(set(ids), key=lambda key: (isinstance(key, str), key))
    more = len(listed) - MAX_LISTED
    return ", ".join(map(str, listed[:MAX_LISTED])) + (f" and {more:,} more" if more > 0 else "")


def guess_split(references: References, images: Collection[ImageId]) -> str | None:
    """The split that holds all of `images`, when there is exactly one."""
    found = {references.splits.get(image) for image in images}
    return found.pop() if len(found) == 1 else None


def pair(
    results: Mapping[ImageId, str], references: References, *, subset: bool = False
) -> tuple[dict[ImageId, str], dict[ImageId, list[str]]]:
    """Results and references of the same images, under the results' names and in the order of the references.

    When the references have splits, only the split of the results counts.

    Args:
        results: captions by image id, or by name of the picture.
        references: reference captions.
        subset: score only the images that have a caption, instead of refusing when some have none.

    Raises:
        DataError: a caption has no references, or an image has no caption.
    """
    own = references.ids_of(results)
    unknown = [image for image in results if image not in own]
    if unknown:
        raise DataError(
            f"{len(unknown):,} of {len(results):,} captions are for images without references: {some(unknown)}; "
            "images are matched by image_id, by file name, or by the number at the end of COCO's file names"
        )
    name_of = {image: name for name, image in own.items()}
    split = guess_split(references, name_of)
    wanted = references.of_split(split).captions if split else references.captions
    missing = [image for image in wanted if image not in name_of]
    if missing and not subset:
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} images have no caption: {some(missing)}; scores of a subset cannot "
            "be compared with scores of the whole set (--subset computes them anyway)"
        )
    present = {name_of[image]: list(texts) for image, texts in wanted.items() if image in name_of}
    return {name: results[name] for name in present}, present
