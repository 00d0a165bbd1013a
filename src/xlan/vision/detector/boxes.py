"""Boxes as `x0 y0 x1 y1`: overlap, coding relative to other boxes, clipping.

Two conventions are in use. With `offset` 0 a box is a part of the plane and its width is `x1 - x0`. With `offset` 1, as
in Caffe, corners are pixels that belong to the box: its width is `x1 - x0 + 1` and it ends at pixel `W - 1`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xlan.vision.detector.anchors import MAX_LOG_GROWTH


def area(boxes: Tensor, *, offset: int = 0) -> Tensor:
    """`[..., 4]` → `[...]`."""
    return (boxes[..., 2] - boxes[..., 0] + offset) * (boxes[..., 3] - boxes[..., 1] + offset)


def iou(first: Tensor, second: Tensor, *, offset: int = 0) -> Tensor:
    """Intersection over union of every pair: `[N, 4]`, `[M, 4]` → `[N, M]`; 0 where both boxes are empty."""
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    sides = (high - low + offset).clamp_(min=0)
    shared = sides[..., 0] * sides[..., 1]
    union = area(first, offset=offset)[:, None] + area(second, offset=offset)[None, :] - shared
    return torch.where(union > 0, shared / union, 0.0)


def decode(
    boxes: Tensor,
    deltas: Tensor,
    *,
    weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0),
    offset: int = 0,
    max_log_growth: float | None = MAX_LOG_GROWTH,
) -> Tensor:
    """Move and resize boxes `[N, 4]` by deltas `[N, 4 * K]` (K versions of each box) → `[N, 4 * K]`.

    The offset enters the width and height of `boxes` only; decoded corners do not subtract it again (neither does any
    of the public implementations).
    """
    width = (boxes[:, 2] - boxes[:, 0] + offset)[:, None]
    height = (boxes[:, 3] - boxes[:, 1] + offset)[:, None]
    centre_x, centre_y = boxes[:, 0, None] + 0.5 * width, boxes[:, 1, None] + 0.5 * height
    dx, dy, dw, dh = (deltas[:, i::4] / weights[i] for i in range(4))
    if max_log_growth is not None:
        dw, dh = dw.clamp(max=max_log_growth), dh.clamp(max=max_log_growth)
    x, y = dx * width + centre_x, dy * height + centre_y
    half_width, half_height = 0.5 * (torch.exp(dw) * width), 0.5 * (torch.exp(dh) * height)
    corners = torch.stack([x - half_width, y - half_height, x + half_width, y + half_height], dim=2)  # [N, K, 4]
    return corners.flatten(1)


def encode(
    boxes: Tensor, targets: Tensor, *, weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
) -> Tensor:
    """Deltas `[N, 4]` that `decode` turns into `targets` `[N, 4]`, with offset 0."""
    size, wanted = boxes[:, 2:] - boxes[:, :2], targets[:, 2:] - targets[:, :2]
    centre, wanted_centre = boxes[:, :2] + 0.5 * size, targets[:, :2] + 0.5 * wanted
    move = (wanted_centre - centre) / size
    return torch.cat([move, torch.log(wanted / size)], dim=1) * boxes.new_tensor(weights)


def clip(boxes: Tensor, *, height: float, width: float, offset: int = 0) -> Tensor:
    """Clip `[..., 4 * K]` to a picture: to `[0, W]`, or to `[0, W - 1]` with offset 1."""
    corners = boxes.reshape(*boxes.shape[:-1], -1, 4)
    limit = boxes.new_tensor([width - offset, height - offset, width - offset, height - offset])
    return torch.minimum(corners.clamp(min=0), limit).flatten(-2)
