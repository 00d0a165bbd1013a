"""One split of captioned images together with their features, as numbers.

Captions are kept in three flat arrays rather than in lists of lists: worker processes then share or copy them
in one piece, whatever the size of the data set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt

from xlan.data.records import CaptionedImage, CaptionSet, feature_key
from xlan.errors import DataError, FeatureError
from xlan.text.vocab import Vocabulary
from xlan.types import Regions
from xlan.vision.store import FeatureStore

MAX_WORDS = 16  # as released: 16 words and the end make 17 positions
BOXES_LOOKED_AT = 100


class CaptionDataset:
    """Images of one split with features and encoded captions.

    A caption longer than `max_words` is cut as the released code does it: the model sees the first
    `max_words` words and is asked for one word more, so it is never taught to end a sentence in the middle.

    Args:
        captions: the caption set.
        store: features; an image is looked up by its id or by its file name (see `feature_names`).
        vocab: words outside it become its unknown word.
        split: which images.
        max_words: words of a caption that are fed to the model.
        max_regions: keep at most this many regions of an image (None: all). Detectors list the surest first.
        feature_dim: the width the model expects, checked here so that a run stops before it starts.
        missing: what to do with images that have no features: stop, or leave them out (listed in `missing`).

    Raises:
        DataError: the split has no images.
        FeatureError: features are missing, or have another width than `feature_dim`.
    """

    def __init__(
        self,
        captions: CaptionSet,
        store: FeatureStore,
        vocab: Vocabulary,
        *,
        split: str,
        max_words: int = MAX_WORDS,
        max_regions: int | None = None,
        feature_dim: int | None = None,
        missing: Literal["error", "skip"] = "error",
    ) -> None:
        if max_words < 1 or (max_regions is not None and max_regions < 1):
            raise DataError(f"max_words and max_regions must be at least 1, got {max_words} and {max_regions}")
        if feature_dim is not None and store.feature_dim != feature_dim:
            raise FeatureError(
                f"{store.path}: features are {store.feature_dim} wide, the model expects {feature_dim}; "
                "use the features it was made for, or set the model's feature width"
            )
        self.store, self.vocab, self.split, self.max_words, self.max_regions = (
            store,
            vocab,
            split,
            max_words,
            max_regions,
        )
        images = captions.split(split)
        keys = {image.id: feature_key(image, store) or "" for image in images}
        self.missing: tuple[str, ...] = tuple(image.id for image in images if not keys[image.id])
        if self.missing and (missing == "error" or len(self.missing) == len(images)):
            raise FeatureError(
                f"{store.path}: no features for {len(self.missing):,} of {len(images):,} images of split {split!r} "
                f"(the first: {self.missing[0]!r}); extract or import them"
                + ("" if len(self.missing) == len(images) else ", or leave these images out with missing='skip'")
            )
        self.images: tuple[CaptionedImage, ...] = tuple(image for image in images if keys[image.id])
        self.keys: tuple[str, ...] = tuple(keys[image.id] for image in self.images)
        owners: dict[str, str] = {}
        for image, key in zip(self.images, self.keys, strict=True):
            if owners.setdefault(key, image.id) != image.id:
                raise FeatureError(
                    f"{store.path}: images {owners[key]!r} and {image.id!r} of split {split!r} would share features "
                    f"{key!r}; name the features after the images' ids"
                )
        self._encode()

    def _encode(self) -> None:
        encoded = [self.vocab.encode(words) for image in self.images for words in image.words]
        counts = [len(image.words) for image in self.images]
        lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
        self._tokens = np.fromiter(chain.from_iterable(encoded), dtype=np.int32, count=int(lengths.sum()))
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self.first_caption: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.positions: npt.NDArray[np.int64] = np.minimum(lengths, self.max_words) + 1

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)

    @property
    def identity(self) -> str:
        """SHA-256 of the images, their encoded captions and what made their features, wherever the files are."""
        made = [self.store.extractor, self.store.dtype]
        listed = json.dumps([[image.id for image in self.images], made], sort_keys=True)
        found = hashlib.sha256(listed.encode())
        for numbers in (self.first_caption, self._starts, self._tokens):
            found.update(numbers.tobytes())
        return found.hexdigest()

    def regions(self, index: int) -> Regions:
        """Features and boxes of the image at `index`; views of the store, not copies."""
        regions = self.store[self.keys[index]]
        n = self.max_regions
        if n is None or len(regions) <= n:
            return regions
        scores = None if regions.scores is None else regions.scores[:n]
        return Regions(regions.features[:n], regions.boxes[:n], scores, regions.width, regions.height)

    def check_boxes(self) -> None:
        """Refuse regions without boxes, for a model that needs them: an import gives each of them the whole picture.

        Raises:
            FeatureError: in none of the first images do two boxes differ.
        """
        some = self._some_boxes()
        several = [boxes for boxes in some if len(boxes) > 1]
        if several and all((boxes == boxes[0]).all() for boxes in several):
            raise FeatureError(
                f"{self.store.path}: its regions have no boxes of their own, from which this model builds a graph; "
                "import features with boxes, or use a model without a graph"
            )

    def boxes_are_a_grid(self) -> bool:
        """Whether the boxes are the same in all of the first images, as grid cells are; not so for one image."""
        some = self._some_boxes()
        return len(some) > 1 and all(np.array_equal(some[0], boxes) for boxes in some[1:])

    def _some_boxes(self) -> list[npt.NDArray[np.float32]]:
        return [self.regions(i).boxes for i in range(min(len(self), BOXES_LOOKED_AT))]

    def region_count(self, index: int) -> int:
        """Number of regions of the image at `index`, without reading them."""
        count = self.store.region_count(self.keys[index])
        return count if self.max_regions is None else min(count, self.max_regions)

    def tokens(self, caption: int) -> npt.NDArray[np.int32]:
        """`[words]` ids of a caption (0 to the number of captions), uncut, without start and end."""
        return self._tokens[self._starts[caption] : self._starts[caption + 1]]

    def reference_ids(self) -> dict[str, list[tuple[int, ...]]]:
        """For each image its captions as ids, uncut, each ended by `eos`: what a CIDEr-D reward compares
        with."""
        end, bounds = (self.vocab.special.eos,), self.first_caption.tolist()
        return {
            image.id: [(*self.tokens(c).tolist(), *end) for c in range(first, last)]
            for image, first, last in zip(self.images, bounds, bounds[1:], strict=False)
        }

    def reference_texts(self) -> dict[str, Sequence[str]]:
        """For each image its captions as people wrote them: what the metrics compare with."""
        return {image.id: image.captions for image in self.images}
