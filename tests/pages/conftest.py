"""Explanations to draw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from xlan.types import Caption, Word


def grid_with_whole() -> np.ndarray:
    """The whole picture and nine cells."""
    cells = [[x / 3, y / 3, (x + 1) / 3, (y + 1) / 3] for y in range(3) for x in range(3)]
    return np.array([[0, 0, 1, 1], *cells], np.float32)


@pytest.fixture
def explained() -> Callable[..., Caption]:
    """`explained("a", "dog", gate=False)`: a caption of these words, each with attention of its own."""

    def make(*texts: str, gate: bool = True, boxes: np.ndarray | None = None) -> Caption:
        generator = np.random.default_rng(len(texts))
        places = grid_with_whole() if boxes is None else boxes
        words = []
        for text in texts:
            spatial = generator.dirichlet(np.full(len(places), 0.5)).astype(np.float32)
            channel = generator.random(96).astype(np.float32) if gate else None
            words.append(Word(text, float(generator.random()), spatial, channel, (("cat", 0.2), ("horse", 0.004))))
        others = (Caption("a horse", -4.0, 0.31, ()), Caption("a cat", -5.0, 0.25, ()))
        return Caption(" ".join(texts), -3.25, 0.47, tuple(words), others, places)

    return make


@pytest.fixture
def picture() -> Image.Image:
    """Wider than high, different in each corner."""
    image = Image.new("RGB", (640, 400), "seagreen")
    image.paste("navy", (0, 0, 320, 200))
    image.paste("ivory", (320, 200, 640, 400))
    return image
