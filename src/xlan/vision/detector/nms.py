"""Non-maximum suppression: of boxes that overlap too much, only the one with the best score stays.

Boxes are taken from the best score to the worst (of equal scores, the one listed first). A box is dropped when it
overlaps one that was kept by more than the threshold; with `inclusive`, also by exactly the threshold.

Overlaps are float32 and are compared with the threshold as a double, as the public C++ and Cython versions do.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xlan.vision.detector.boxes import iou

# Candidates looked at together. Larger blocks waste overlaps of boxes that are dropped anyway, smaller ones cost calls.
_BLOCK = 256


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
    cut = _smallest_float32(threshold, above=not inclusive)
    kept: list[Tensor] = []
    count = 0
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        if kept:
            block = block[~_overlapping(boxes, groups, torch.cat(kept), block, offset, cut).any(dim=0)]
        inside = _overlapping(boxes, groups, block, block, offset, cut).triu_(diagonal=1)
        block = block[_first_come(inside)]
        kept.append(block)
        count += len(block)
        if count >= limit:
            break
    return torch.cat(kept)[:limit] if kept else order


def _overlapping(
    boxes: Tensor, groups: Tensor | None, first: Tensor, second: Tensor, offset: int, cut: float
) -> Tensor:
    """`[len(first), len(second)]` bool: pairs of one group that overlap by `cut` or more."""
    pairs = iou(boxes[first], boxes[second], offset=offset) >= cut
    return pairs if groups is None else pairs & (groups[first][:, None] == groups[second][None, :])


def _first_come(drops: Tensor) -> Tensor:
    """Who stays, `[n]` bool, when `drops[i, j]` (only for i < j) says that i, if it stays, drops j.

    Repeating "a box stays if no box that stays drops it" settles the first box at once and at least one more each
    time, so it ends with the only answer there is; usually after three or four times.
    """
    matrix = drops.float()
    stay = torch.ones(len(drops))
    while True:
        new = (stay @ matrix == 0).float()
        if torch.equal(new, stay):
            return stay.bool()
        stay = new


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
