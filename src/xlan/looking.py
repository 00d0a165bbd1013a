"""Which place a word looked at most: the strongest region, or the named box that its attention fell into.

A captioner on detected regions attends to things themselves: the strongest region is the answer. One on grid cells
attends to cells; where a detector has looked beside it, a word points at the thing whose box holds the most attention
beyond what its size alone would give it, provided that is clearly more than evenly spread attention would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from xlan.errors import ShapeError
from xlan.types import Look, Thing

Floats: TypeAlias = npt.NDArray[np.floating]
EVEN = 1.5  # times the mean: attention below that is hardly on a place


def covers_all(boxes: Floats) -> npt.NDArray[np.bool_]:
    """`[N]`: which of the boxes `[N, 4]` are the picture as a whole."""
    return np.asarray((boxes[:, :2] <= 0).all(axis=1) & (boxes[:, 2:] >= 1).all(axis=1))


def on_places(spatial: Floats, boxes: Floats) -> Floats:
    """The weights as float64, 0 where the region is the whole picture or the weight is no number.

    Args:
        spatial: `[N]` attention weights.
        boxes: `[N, 4]` boxes of the regions, fractions of the picture.

    Raises:
        ShapeError: there are not as many of both.
    """
    if spatial.ndim != 1 or boxes.shape != (len(spatial), 4):
        raise ShapeError(f"expected weights [N] and boxes [N, 4], got {list(spatial.shape)} and {list(boxes.shape)}")
    return np.where(covers_all(boxes), 0.0, np.nan_to_num(spatial.astype(np.float64), posinf=0.0, neginf=0.0))


def strongest(spatial: Floats, boxes: Floats) -> int | None:
    """The region with the greatest weight, those that cover the whole picture apart; None where there is none."""
    weights = on_places(spatial, boxes)
    return int(weights.argmax()) if weights.max(initial=0.0) > 0 else None


def where_most(
    spatial: Floats, boxes: Floats, things: Sequence[Thing] = (), thing_of: npt.NDArray[np.int64] | None = None
) -> Look | None:
    """Where a word looked most; see the top of this file.

    Args:
        spatial: `[N]` attention over the regions.
        boxes: `[N, 4]` of the regions.
        things: what a detector found.
        thing_of: `[N]` number of the thing that each region is, -1 for none; None where no region is one.
    """
    top = strongest(spatial, boxes)
    if top is None:
        return None
    number = -1 if thing_of is None else int(thing_of[top])
    if number < 0 and things:
        inside = _thing_inside(spatial, boxes, things)
        if inside is not None:
            return inside
    return Look(_box(boxes[top]), float(spatial[top]), top, number if number >= 0 else None)


def _thing_inside(spatial: Floats, boxes: Floats, things: Sequence[Thing]) -> Look | None:
    """The thing that holds most attention beyond its size; attention is taken to be even within a region."""
    weights = on_places(spatial, boxes)
    found = np.array([thing.box for thing in things])  # [T, 4]
    low, high = np.maximum(boxes[None, :, :2], found[:, None, :2]), np.minimum(boxes[None, :, 2:], found[:, None, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)  # [T, N]
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1)
    held = (shared / np.maximum(areas, 1e-9)) @ weights  # [T]
    by_chance = np.clip(found[:, 2:] - found[:, :2], 0, None).prod(axis=1) * weights.sum()
    best = int((held - by_chance).argmax())
    if held[best] < EVEN * by_chance[best] or held[best] <= 0:
        return None
    return Look(things[best].box, float(held[best]), None, best)


def _box(box: Floats) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = (float(value) for value in box)
    return x0, y0, x1, y1
