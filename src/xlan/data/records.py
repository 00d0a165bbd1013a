"""Captions of images, whatever file they came from.

`load_captions(path)` looks at a file or folder, finds out which of the forms in `xlan.data.readers` it has,
and returns a `CaptionSet`. Nothing here needs torch or the pictures themselves.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from xlan.errors import DataError
from xlan.karpathy import Skipped, image_names


@dataclass(frozen=True)
class CaptionedImage:
    """One image and its captions.

    Attributes:
        id: names the image in this set; for COCO the number as text ("391895").
        split: "train", "val", "test", or another name the file uses.
        file: the picture's file name (with folders, where the file gives them); "" when unknown.
        captions: as people wrote them; at least one.
        words: the words of each caption, never empty (see `xlan.text.tokenize`).
        shard: name of the tar file the picture is in, "" when it is a file of its own.
    """

    id: str
    split: str
    file: str
    captions: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    shard: str = ""


@dataclass(frozen=True)
class CaptionSet:
    """Images with captions, in the order of the file.

    Attributes:
        images: every image has at least one caption; ids are unique.
        source: where they came from, for messages.
        form: "karpathy", "coco", "tokens", "table" or "shapes".
        skipped: entries that could not be used.
    """

    images: tuple[CaptionedImage, ...]
    source: str
    form: str
    skipped: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[CaptionedImage]:
        return iter(self.images)

    @property
    def splits(self) -> dict[str, int]:
        """Number of images of each split, largest split first."""
        return dict(Counter(image.split for image in self.images).most_common())

    def split(self, name: str) -> tuple[CaptionedImage, ...]:
        """Images of a split.

        Raises:
            DataError: the split has no images.
        """
        chosen = tuple(image for image in self.images if image.split == name)
        if not chosen:
            there = ", ".join(f"{split} ({count:,} images)" for split, count in self.splits.items())
            raise DataError(f"{self.source}: split {name!r} has no images; there are: {there}")
        return chosen

    def words(self, split: str | None) -> Iterator[tuple[str, ...]]:
        """Words of every caption of a split, or of all splits (None), for a vocabulary."""
        images = self.images if split is None else self.split(split)
        return (words for image in images for words in image.words)

    def with_random_splits(
        self, *, val: float, test: float, seed: int = 0, keep: Mapping[str, str] | None = None
    ) -> CaptionSet:
        """The same images, each given a split at random: fractions `val` and `test` of them, the rest for training.

        Args:
            val: share for validation, rounded to whole images, at least one if it is not 0.
            test: share for the final test, likewise.
            seed: with the ids it determines everything; the order of the images does not matter.
            keep: id → split of images that keep theirs, so that a set may grow without moving old images.

        Raises:
            DataError: nothing would be left to train on.
        """
        if not (val >= 0 and test >= 0 and val + test < 1):
            raise DataError(f"val and test are fractions that leave something to train on, got {val} and {test}")
        chosen = {image.id: keep[image.id] for image in self.images if keep and image.id in keep}
        free = sorted((image.id for image in self.images if image.id not in chosen), key=partial(_place, seed))
        counts = Counter(chosen.values())
        for split, share in (("val", val), ("test", test)):
            wanted = max(round(share * len(self)), share > 0) - counts[split]
            chosen.update(dict.fromkeys(free[: max(0, wanted)], split))
            free = free[max(0, wanted) :]
        chosen.update(dict.fromkeys(free, "train"))
        if "train" not in chosen.values():
            raise DataError(f"{self.source}: {len(self)} images are too few to leave something to train on")
        return replace(self, images=tuple(replace(image, split=chosen[image.id]) for image in self.images))


def _place(seed: int, image_id: str) -> bytes:
    """Where an image stands in the random order of a seed."""
    return hashlib.sha256(f"{seed}\0{image_id}".encode("utf-8", "surrogatepass")).digest()


def feature_names(image: CaptionedImage) -> Iterator[str]:
    """Names under which features of the image may be kept, the most exact first.

    The rule is that of `image_names`.
    """
    return image_names(image.id, image.file)


def feature_key(image: CaptionedImage, store: Container[str]) -> str | None:
    """The name under which `store` keeps features of the image; None when it has none."""
    return next((name for name in feature_names(image) if name in store), None)
