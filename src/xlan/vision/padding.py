"""Regions of several images → the tensors of one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xlan.types import Regions
from xlan.vision.regions import blank_batch
from xlan.vision.shards import PIECE


def pad_regions(regions: Sequence[Regions], feature_dim: int) -> tuple[Tensor, Tensor]:
    """Pad the regions of B images to the same number N.

    Args:
        regions: features `[n, feature_dim]` of each image, float16 or float32.
        feature_dim: width D of the features.

    Returns:
        features `[B, N, D]` float32, zero in padding, and the mask `[B, N]`, True where a region exists.

    Raises:
        ShapeError: an image has features of another shape.
    """
    blank, mask = blank_batch(regions, feature_dim)
    features = torch.from_numpy(blank)
    step = max(1, PIECE // feature_dim)
    for row, item in enumerate(regions):
        source, target = _tensor(item.features), features[row]
        for start in range(0, len(item), step):
            end = min(start + step, len(item))
            target[start:end] = source[start:end]
    return features, torch.from_numpy(mask)


def pad_boxes(regions: Sequence[Regions]) -> Tensor:
    """Pad the boxes of B images to N regions: `[B, N, 4]` in units of each image's diagonal, zero in padding."""
    boxes = torch.zeros(len(regions), max(len(item) for item in regions), 4)
    for row, item in enumerate(regions):
        boxes[row, : len(item)] = torch.from_numpy(item.boxes_by_diagonal())
    return boxes


def _tensor(array: npt.NDArray[np.floating]) -> Tensor:
    """A tensor on the array's memory, for reading. torch converts float16 ten times as fast as numpy does."""
    if not array.flags.writeable:
        try:
            array = array.view()
            array.flags.writeable = True
        except ValueError:  # memory that really cannot be written
            array = array.copy()
    return torch.from_numpy(array)
