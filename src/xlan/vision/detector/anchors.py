"""The boxes that proposals start from: a few shapes, repeated at every cell of a map. Without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
# No box grows by more than this when it is moved, which keeps exp() finite: ln(1000 / 16).
MAX_LOG_GROWTH = math.log(1000.0 / 16)
_CAFFE_BASE = 16  # side in pixels of the box that Caffe's shapes are made from: pixels 0 to 15


def centred_shapes(sizes: Sequence[float], ratios: Sequence[float]) -> Floats:
    """Shapes around the origin, `[len(sizes) * len(ratios), 4]`, all ratios of the first size first.

    A shape of size s has the area s²; a ratio is height over width.
    """
    shapes = []
    for size in sizes:
        for ratio in ratios:
            width = math.sqrt(size * size / ratio)
            height = ratio * width
            shapes.append([-width / 2, -height / 2, width / 2, height / 2])
    return np.array(shapes, np.float32)


def caffe_shapes(scales: Sequence[float], ratios: Sequence[float]) -> Floats:
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
    return np.array(shapes, np.float32)


def place(shapes: Floats, rows: int, columns: int, stride: int) -> Floats:
    """Shapes `[A, 4]` at every cell of a map, row by row: `[rows * columns * A, 4]`."""
    y, x = np.meshgrid(np.arange(rows) * stride, np.arange(columns) * stride, indexing="ij")
    corners = np.stack([x, y, x, y], axis=2).astype(np.float32)
    return (corners[:, :, None] + shapes).reshape(-1, 4)
