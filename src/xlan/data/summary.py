"""What is in a caption set, in numbers: the answer to `xlan data inspect`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from xlan.data.records import CaptionedImage, CaptionSet, feature_key
from xlan.errors import DataError
from xlan.vision.sources import PictureFolder, tar_members

THRESHOLDS = (1, 2, 3, 4, 5, 6, 8, 10, 20)


@dataclass(frozen=True)
class SplitSummary:
    """Numbers of one split; `long` counts captions of more than 16 words, which training cuts."""

    images: int
    captions: int
    mean_words: float
    max_words: int
    long: int


@dataclass(frozen=True)
class WordSummary:
    """A vocabulary at one threshold: words that are kept, and the share of all word occurrences they cover."""

    threshold: int
    words: int
    coverage: float


@dataclass(frozen=True)
class Summary:
    """A caption set in numbers.

    Attributes:
        source: file or folder.
        form: as it was found to be.
        images: number of images.
        captions: number of captions.
        captions_per_image: number of captions → number of images that have that many.
        splits: each split, the largest first.
        vocabulary: at several thresholds, counted on the training split if there is one, else on everything.
        counted_on: the split the vocabulary was counted on.
        skipped: entries of the file that could not be used.
        missing_pictures: ids of images without a picture; None where the place of pictures is unknown.
        missing_features: ids of images without features; None when no store was given.
    """

    source: str
    form: str
    images: int
    captions: int
    captions_per_image: dict[int, int]
    splits: dict[str, SplitSummary]
    vocabulary: list[WordSummary]
    counted_on: str
    skipped: list[tuple[str, str]]
    missing_pictures: list[str] | None
    missing_features: list[str] | None


def summarise(
    captions: CaptionSet, *, pictures: Container[str] | None = None, features: Container[str] | None = None
) -> Summary:
    """Count what is there.

    Args:
        captions: the set.
        pictures: names of the pictures that are at hand (see `pictures_of`), or None.
        features: ids of a feature store, or None.
    """
    counted_on = "train" if "train" in captions.splits else "all splits"
    images = captions.split("train") if counted_on == "train" else captions.images
    counts = Counter(word for image in images for words in image.words for word in words)
    return Summary(
        source=captions.source,
        form=captions.form,
        images=len(captions),
        captions=sum(len(image.captions) for image in captions),
        captions_per_image=dict(sorted(Counter(len(image.captions) for image in captions).items())),
        splits={name: _split(captions.split(name)) for name in captions.splits},
        vocabulary=[_words(counts, threshold) for threshold in THRESHOLDS],
        counted_on=counted_on,
        skipped=[(entry.where, entry.reason) for entry in captions.skipped],
        missing_pictures=None if pictures is None else _without(captions, pictures),
        missing_features=None if features is None else _without(captions, features),
    )


def _split(images: tuple[CaptionedImage, ...]) -> SplitSummary:
    lengths = [len(words) for image in images for words in image.words]
    return SplitSummary(
        len(images), len(lengths), sum(lengths) / len(lengths), max(lengths), sum(length > 16 for length in lengths)
    )


def _words(counts: Counter[str], threshold: int) -> WordSummary:
    kept = [count for count in counts.values() if count >= threshold]
    return WordSummary(threshold, len(kept), sum(kept) / max(1, sum(counts.values())))


def _without(captions: CaptionSet, names: Container[str]) -> list[str]:
    return [image.id for image in captions if feature_key(image, names) is None]


def pictures_of(captions: CaptionSet, folder: str | os.PathLike[str] | None) -> Container[str] | None:
    """Names of the pictures in a folder (with sub-folders), or in the tar files that the captions name.

    Args:
        captions: the set.
        folder: where pictures are; None to look beside the caption file and in `images/` there.

    Returns:
        names as `feature_names` spells them; None when nothing was found in a place that was not given.

    Raises:
        DataError: there is no such folder, or a tar is damaged.
    """
    if folder is not None and not Path(folder).is_dir():
        raise DataError(f"{folder}: no such folder of pictures")
    source = Path(captions.source)
    place = Path(folder) if folder is not None else source if source.is_dir() else source.parent
    shards = {Path(image.shard).name for image in captions if image.shard}  # a name with folders could point anywhere
    if shards:
        paths = [place / shard for shard in sorted(shards) if (place / shard).is_file()]
        names = {Path(name).name for path in paths for name, _, _ in tar_members(path)}
    elif folder is not None:
        return PictureFolder(folder)
    else:
        names = _beside(captions, place)
    return names if names or folder is not None else None


def _beside(captions: CaptionSet, place: Path) -> set[str]:
    """Look only where pictures should be, not through everything else in that folder."""
    safe = [image.file for image in captions if image.file and ".." not in image.file and "\0" not in image.file]
    roots = [root for root in (place, place / "images") if root.is_dir()]
    return {file for file in safe for root in roots if not Path(file).is_absolute() and (root / file).is_file()}
