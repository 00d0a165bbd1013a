"""The boxes that proposals start from: a few shapes, repeated at every cell of a map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_CAFFE_BASE = 16  # side in pixels of the box that Caffe's shapes are made from: pixels 0 to 15


def centred_shapes(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Shapes around the origin, `[len(sizes) * len(ratios), 4]`, all ratios of the first size first.

    A shape of size s has the area s²; a ratio is height over width.
    """
    shapes = []
    for size in sizes:
        for ratio in ratios:
            width = math.sqrt(size * size / ratio)
            height = ratio * width
            shapes.append([-width / 2, -height / 2, width / 2, height / 2])
    return torch.tensor(shapes)


def caffe_shapes(scales: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Caffe's shapes, `[len(ratios) * len(scales), 4]`, all scales of the first ratio first.

    They lie around pixel (7.5, 7.5), sides are whole pixels before scaling, and corners are pixels (offset 1).
    """
    centre = (_CAFFE_BASE - 1) / 2
    shapes = []
    for ratio in ratios:
        width = round(math.sqrt(_CAFFE_BASE * _CAFFE_BASE / ratio))
        height = round(width * ratio)
        for scale in scales:
            half_width, half_height = (width * scale - 1) / 2, (height * scale - 1) / 2
            shapes.append([centre - half_width, centre - half_height, centre + half_width, centre + half_height])
    return torch.tensor(shapes)


def place(shapes: Tensor, rows: int, columns: int, stride: int) -> Tensor:
    """Shapes `[A, 4]` at every cell of a map, row by row: `[rows * columns * A, 4]`."""
    y, x = torch.meshgrid(torch.arange(rows) * stride, torch.arange(columns) * stride, indexing="ij")
    corners = torch.stack([x, y, x, y], dim=2).to(shapes.dtype)
    return (corners[:, :, None] + shapes).reshape(-1, 4)
