"""Non-maximum suppression over arrays, without torch; `nms` has it for tensors, and says what it does.

Overlaps are float32 and are compared with the threshold as a double, as the public C++ and Cython versions do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

# Candidates that wait together, kept boxes that they are tested against at once, and candidates that are settled among
# themselves: small enough that little is computed for boxes that are dropped anyway, large enough that calls are few.
_WINDOW, _AT_ONCE, _FIRST = 1024, 64, 32


def suppress(
    boxes: npt.NDArray[np.float32],
    threshold: float,
    *,
    groups: npt.NDArray[Any] | None = None,
    offset: int = 0,
    inclusive: bool = False,
    limit: int | None = None,
) -> npt.NDArray[np.int64]:
    """Which of the boxes `[N, 4]`, listed from the best to the worst, stay; the arguments are those of `nms`."""
    limit = len(boxes) if limit is None else limit
    cut = np.float32(smallest_float32(threshold, above=not inclusive))
    pairs = _Pairs(boxes, groups, offset, cut)
    kept = np.zeros(0, dtype=np.int64)
    for start in range(0, len(boxes), _WINDOW):
        waiting = np.arange(start, min(start + _WINDOW, len(boxes)))
        for i in range(0, len(kept), _AT_ONCE):
            waiting = pairs.without(waiting, kept[i : i + _AT_ONCE])
        while len(waiting) and len(kept) < limit:
            first, waiting = waiting[:_FIRST], waiting[_FIRST:]
            first = first[_first_come(np.triu(pairs.overlap(first, first), k=1))]
            kept = np.concatenate([kept, first])
            waiting = pairs.without(waiting, first)
        if len(kept) >= limit:
            break
    return kept[:limit]


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


def smallest_float32(threshold: float, *, above: bool) -> float:
    """The smallest float32 that is at least the threshold, or above it."""
    value = np.float32(threshold)
    while float(value) < threshold or (above and float(value) == threshold):
        value = np.nextafter(value, np.float32(math.inf))
    while float(before := np.nextafter(value, np.float32(-math.inf))) >= threshold and not (
        above and float(before) == threshold
    ):
        value = before
    return float(value)
