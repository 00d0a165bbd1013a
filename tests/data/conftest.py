"""A small captioned data set with features, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xlan.data.dataset import CaptionDataset
from xlan.data.records import CaptionedImage, CaptionSet
from xlan.text.tokenize import tokenize
from xlan.text.vocab import Vocabulary
from xlan.types import Regions
from xlan.vision.store import FeatureStore, FeatureStoreWriter

WIDTH = 6


def make_captions(n: int) -> CaptionSet:
    """Image i has 1 + i % 4 captions of 2 + (i + j) % 20 words."""
    images = []
    for i in range(n):
        texts = tuple("w" + " w".join(str((i + k) % 30) for k in range(2 + (i + j) % 20)) for j in range(1 + i % 4))
        words = tuple(tokenize(text) for text in texts)
        images.append(CaptionedImage(str(i), "train" if i % 5 else "val", f"{i}.jpg", texts, words))
    return CaptionSet(tuple(images), "made up", "table")


@pytest.fixture(scope="session")
def captions() -> CaptionSet:
    """40 images, 32 of them for training."""
    return make_captions(40)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """Features of the 40 images: image i has 1 + i % 7 regions, all numbers i."""
    path = tmp_path_factory.mktemp("data") / "store"
    with FeatureStoreWriter(path, shard_bytes=200) as writer:
        for i in range(40):
            count = 1 + i % 7
            writer.add(str(i), Regions(np.full((count, WIDTH), i, np.float32), np.zeros((count, 4), np.float32)))
    return FeatureStore(path)


@pytest.fixture(scope="session")
def vocab() -> Vocabulary:
    """w0 to w28; w29 is unknown."""
    return Vocabulary.from_words([f"w{i}" for i in range(29)])


@pytest.fixture
def make(captions: CaptionSet, store: FeatureStore, vocab: Vocabulary) -> Callable[..., CaptionDataset]:
    """Make a data set of the training split, with options."""

    def build(**options: Any) -> CaptionDataset:
        return CaptionDataset(captions, store, vocab, **({"split": "train"} | options))

    return build
