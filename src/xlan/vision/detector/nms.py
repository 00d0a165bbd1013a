"""Non-maximum suppression: of boxes that overlap too much, only the one with the best score stays.

Boxes are taken from the best score to the worst (of equal scores, the one listed first). A box is dropped when it
overlaps one that was kept by more than the threshold; with `inclusive`, also by exactly the threshold.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xlan.vision.detector.boxes import iou
from xlan.vision.detector.suppression import smallest_float32, suppress


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
    kept = suppress(
        boxes.detach().float()[order].numpy(),
        threshold,
        groups=None if groups is None else groups[order].numpy(),
        offset=offset,
        inclusive=inclusive,
        limit=limit,
    )
    return order[torch.from_numpy(kept)]


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
    cut = smallest_float32(threshold, above=not inclusive)
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
