"""Non-maximum suppression: of boxes that overlap too much, only the one with the best score stays.

Boxes are taken from the best score to the worst (of equal scores, the one listed first). A box is dropped when it
overlaps one that was kept by more than the threshold; with `inclusive`, also by exactly the threshold.

Overlaps are float32 and are compared with the threshold as a double, as the public C++ and Cython versions do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xlan.vision.detector.boxes import iou

# Candidates that wait together, kept boxes that they are tested against at once, and candidates that are settled among
# themselves: small enough that little is computed for boxes that are dropped anyway, large enough that calls are few.
_WINDOW, _AT_ONCE, _FIRST = 1024, 64, 32


def nms(
    boxes: Tensor,
    scores: Tensor,
    threshold: float,
    *,
    groups: Tensor | None = None,
    offset: int = 0,
    inclusive: bool = False,
    limit: int | None = None,
) -> Tensor:
    """Indices of the boxes that stay, best score first.

    Args:
        boxes: `[N, 4]`.
        scores: `[N]`.
        threshold: overlap (intersection over union) above which a box is dropped.
        groups: `[N]` classes; only boxes of the same class suppress each other. None: one class.
        offset: 1 when corners are pixels (see `boxes`).
        inclusive: drop at exactly the threshold too.
        limit: stop when this many were kept.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    limit = len(order) if limit is None else limit
    cut = np.float32(_smallest_float32(threshold, above=not inclusive))
    # Arrays, not tensors: these are small, and calls on small arrays cost a fraction.
    pairs = _Pairs(
        boxes.detach().float()[order].numpy(), None if groups is None else groups[order].numpy(), offset, cut
    )
    kept = np.zeros(0, dtype=np.int64)
    for start in range(0, len(order), _WINDOW):
        waiting = np.arange(start, min(start + _WINDOW, len(order)))
        for i in range(0, len(kept), _AT_ONCE):
            waiting = pairs.without(waiting, kept[i : i + _AT_ONCE])
        while len(waiting) and len(kept) < limit:
            first, waiting = waiting[:_FIRST], waiting[_FIRST:]
            first = first[_first_come(np.triu(pairs.overlap(first, first), k=1))]
            kept = np.concatenate([kept, first])
            waiting = pairs.without(waiting, first)
        if len(kept) >= limit:
            break
    return order[torch.from_numpy(kept[:limit])]


class _Pairs:
    """Which boxes overlap too much, computed where it is asked for; the same numbers as `boxes.iou`."""

    def __init__(
        self, corners: npt.NDArray[np.float32], groups: npt.NDArray[Any] | None, offset: int, cut: np.float32
    ) -> None:
        self.x0, self.y0, self.x1, self.y1 = np.ascontiguousarray(corners.T)
        self.plus, self.cut, self.groups = np.float32(offset), cut, groups
        self.area = (self.x1 - self.x0 + self.plus) * (self.y1 - self.y0 + self.plus)
        self.some_empty = bool((self.area <= 0).any())

    def overlap(self, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """`[len(first), len(second)]`: pairs of one group that overlap by the threshold."""
        shared = self._shared(self.x0, self.x1, first, second)
        np.maximum(shared, 0, out=shared)
        tall = self._shared(self.y0, self.y1, first, second)
        shared *= np.maximum(tall, 0, out=tall)
        union = self.area[first][:, None] + self.area[second]
        union -= shared
        if self.some_empty:
            shared[union <= 0], union[union <= 0] = 0, 1
        shared /= union
        found: npt.NDArray[np.bool_] = shared >= self.cut
        if self.groups is not None:
            found &= self.groups[first][:, None] == self.groups[second]
        return found

    def _shared(
        self,
        low: npt.NDArray[np.float32],
        high: npt.NDArray[np.float32],
        first: npt.NDArray[np.int64],
        second: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float32]:
        side = np.minimum(high[first][:, None], high[second])
        side -= np.maximum(low[first][:, None], low[second])
        if self.plus:
            side += self.plus
        return side

    def without(self, waiting: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those that none of the kept ones drops."""
        return waiting[~self.overlap(kept, waiting).any(axis=0)] if len(waiting) else waiting


def _first_come(drops: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Who stays, `[n]`, when `drops[i, j]` (only for i < j) says that i, if it stays, drops j.

    Repeating "a box stays if no box that stays drops it" settles the first box at once and at least one more each
    time, so it ends with the only answer there is; usually after three or four times.
    """
    stay = np.ones(len(drops), dtype=bool)
    while True:
        new = ~drops[stay].any(axis=0)
        if (new == stay).all():
            return stay
        stay = np.asarray(new)


def _smallest_float32(threshold: float, *, above: bool) -> float:
    """The smallest float32 that is at least the threshold, or above it."""
    value = np.float32(threshold)
    while float(value) < threshold or (above and float(value) == threshold):
        value = np.nextafter(value, np.float32(math.inf))
    while float(before := np.nextafter(value, np.float32(-math.inf))) >= threshold and not (
        above and float(before) == threshold
    ):
        value = before
    return float(value)


def kept_by_class(overlaps: Tensor, scores: Tensor, threshold: float, *, inclusive: bool = False) -> Tensor:
    """Suppression of the same boxes once per class, each class with scores of its own.

    Args:
        overlaps: `[N, N]` intersection over union of the boxes.
        scores: `[N, C]`.
        threshold: as in `nms`.
        inclusive: as in `nms`.

    Returns:
        `[N, C]` bool: which boxes stay in which class.
    """
    count, classes = scores.shape
    cut = _smallest_float32(threshold, above=not inclusive)
    # One bit per box: a step of all classes then touches a few dozen bytes per class.
    drops: npt.NDArray[np.uint8] = np.packbits((overlaps >= cut).numpy(), axis=1, bitorder="little")
    order = torch.argsort(scores.t(), dim=1, descending=True, stable=True).numpy()  # [C, N]
    dropped = np.zeros((classes, drops.shape[1]), dtype=np.uint8)
    kept = np.zeros((classes, count), dtype=bool)
    rows = np.arange(classes)
    for rank in range(count):
        box = order[:, rank]
        stays = (dropped[rows, box >> 3] >> (box & 7) & 1) == 0
        kept[rows, box] = stays
        dropped |= np.where(stays[:, None], drops[box], 0).astype(np.uint8)
    return torch.from_numpy(kept.T)


def nms_reference(
    boxes: Tensor, scores: Tensor, threshold: float, *, offset: int = 0, inclusive: bool = False
) -> list[int]:
    """What `nms` computes for one class, pair by pair."""
    order = sorted(range(len(scores)), key=lambda i: -float(scores[i]))
    kept: list[int] = []
    for candidate in order:
        overlaps = [float(iou(boxes[i : i + 1], boxes[candidate : candidate + 1], offset=offset)) for i in kept]
        if not any(value >= threshold if inclusive else value > threshold for value in overlaps):
            kept.append(candidate)
    return kept
