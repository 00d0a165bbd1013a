"""Reading captions to score and the references to score them against, from files anybody may have written.

Results: the COCO result format, `[{"image_id": 42, "caption": "a dog"}, …]`. References: COCO annotations
(`{"annotations": [{"image_id", "caption"}, …]}`) or Karpathy's format (`xlan.karpathy`), told apart by their content.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xlan.errors import DataError
from xlan.files import read_json
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
        numbers: number → image id, for files that number their images but name them too.
    """

    captions: Mapping[ImageId, list[str]]
    splits: Mapping[ImageId, str] = field(default_factory=dict)
    numbers: Mapping[ImageId, ImageId] = field(default_factory=dict)

    def known_as(self, images: Collection[ImageId]) -> References:
        """The same references under the names that `images` use: ids, or numbers of the file."""
        if all(image in self.captions for image in images) or not all(image in self.numbers for image in images):
            return self
        captions = {number: self.captions[image] for number, image in self.numbers.items()}
        return References(captions, {number: self.splits.get(image, "") for number, image in self.numbers.items()})

    def of_split(self, split: str) -> References:
        """Only the images of one split ("restval" counts as "train")."""
        split = split_name(split)
        chosen = {key: texts for key, texts in self.captions.items() if self.splits.get(key) == split}
        if not chosen:
            names = ", ".join(sorted(set(self.splits.values()))) or "none, the file has no splits"
            raise DataError(f"the references have no split {split!r}; they have: {names}")
        numbers = {number: image for number, image in self.numbers.items() if image in chosen}
        return References(chosen, dict.fromkeys(chosen, split), numbers)


def load_results(path: str | os.PathLike[str]) -> dict[ImageId, str]:
    """Captions to score, by image id.

    Raises:
        DataError: not a result file, or an image has two captions.
    """
    value = read_json(path)
    if isinstance(value, dict):
        hint = "; this file holds references: give the results first, then the references" if "images" in value else ""
        raise DataError(f"{path}: expected a list of results [{{image_id, caption}}, …], got an object{hint}")
    if not isinstance(value, list):
        raise DataError(f"{path}: expected a list of results [{{image_id, caption}}, …], got {type(value).__name__}")
    found: dict[ImageId, str] = {}
    twice: list[ImageId] = []
    for place, entry in _entries(path, "result", value):
        image = _image_id(path, f"result {place}", entry, "image_id")
        caption = _text(path, f"result {place} (image {image})", entry, "caption")
        if image in found:
            twice.append(image)
        found[image] = caption
    if twice:
        raise DataError(f"{path}: one caption for each image is needed, but there are several for image {some(twice)}")
    if not found:
        raise DataError(f"{path}: there are no captions in this file")
    return found


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
        references = References(_from_annotations(path, value["annotations"]))
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


def _from_karpathy(path: str | os.PathLike[str], images: list[Any]) -> References:
    captions: dict[ImageId, list[str]] = {}
    splits: dict[ImageId, str] = {}
    numbers: dict[ImageId, ImageId] = {}
    for image in karpathy_images(images):
        fault = image if isinstance(image, Skipped) else next(iter(image.skipped), None)
        if fault is not None:
            raise DataError(f"{path}: {fault.where}: {fault.reason}")
        if isinstance(image, KarpathyImage) and image.sentences:
            key = plain_id(image.id)
            captions[key] = [_clean(path, sentence.where, sentence.raw) for sentence in image.sentences]
            splits[key] = image.split
            if image.number:
                numbers[plain_id(image.number)] = key
    # Flickr's images have no numbers that anybody else knows: results are by file name, or by their place in the file.
    return References(captions, splits, numbers if len(numbers) == len(captions) else {})


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
    # Half of a surrogate pair is legal in JSON, but no program can be given it as text.
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
    """Results and references of the same images, in the order of the references.

    When the references have splits, only the split of the results counts.

    Args:
        results: captions by image id.
        references: reference captions.
        subset: score only the images that have a caption, instead of refusing when some have none.

    Raises:
        DataError: a caption has no references, or an image has no caption.
    """
    references = references.known_as(results)
    unknown = [image for image in results if image not in references.captions]
    if unknown:
        raise DataError(
            f"{len(unknown):,} of {len(results):,} captions are for images without references: {some(unknown)}"
        )
    split = guess_split(references, results)
    wanted = references.of_split(split).captions if split else references.captions
    missing = [image for image in wanted if image not in results]
    if missing and not subset:
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} images have no caption: {some(missing)}; scores of a part cannot be "
            "compared with scores of the whole (--subset scores the part all the same)"
        )
    present = [image for image in wanted if image in results]
    return {image: results[image] for image in present}, {image: list(wanted[image]) for image in present}
