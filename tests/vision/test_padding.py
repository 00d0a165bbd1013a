"""Regions of several images in one batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xlan.errors import ShapeError
from xlan.types import Regions
from xlan.vision.padding import pad_regions


def test_regions_are_padded_with_a_mask() -> None:
    items = [
        Regions(np.full((n, 3), n, dtype), np.zeros((n, 4), np.float32))
        for n, dtype in ((2, np.float16), (1, np.float32), (4, np.float16))
    ]
    features, mask = pad_regions(items, 3)
    assert features.shape == (3, 4, 3)
    assert features.dtype == torch.float32
    assert mask.tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    assert features.sum(dim=(1, 2)).tolist() == [12, 3, 48]


@pytest.mark.parametrize("shape", [(2, 4), (2,)])
def test_features_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    items = [
        Regions(np.zeros((1, 3), np.float32), np.zeros((1, 4), np.float32)),
        Regions(np.zeros(shape, np.float32), np.zeros((2, 4), np.float32)),
    ]
    with pytest.raises(ShapeError, match=r"regions of image 1: expected features \[N, 3\], got"):
        pad_regions(items, 3)
