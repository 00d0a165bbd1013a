"""Regions of a map → maps of one size: the maximum of each cell (RoIPool), or an average of samples (RoIAlign).

Neither needs a compiled extension. RoIs are rows `image x0 y0 x1 y1`, in the pixels of the
network's input; `scale` (1 / stride) brings them to the map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# RoIs handled together in RoIPool: what is looked up for them stays in the processor's cache.
_ROIS_AT_ONCE = 8
# Values of the intermediate maps of RoIAlign at once: 64 MB.
_ALIGN_VALUES = 16 << 20
# Maps with more values than this are worth a loop over the regions in RoIAlign.
_LARGE_MAP = 1 << 19


def _round_half_away(values: Tensor) -> Tensor:
    """Nearest integer, halves away from zero; `torch.round` would take halves to the even neighbour."""
    return torch.copysign(torch.floor(values.abs() + 0.5), values)


def _pool_edges(low: Tensor, high: Tensor, cells: int, side: int) -> tuple[Tensor, Tensor]:
    """First and end index on the map of each cell, `[R, cells]` int64, for corners `[R]` in map units."""
    start = _round_half_away(low)
    extent = (_round_half_away(high) - start + 1).clamp(min=1)
    size = extent / cells  # float32 on purpose: the ceil below depends on its rounding
    number = torch.arange(cells, dtype=torch.float32)
    first = torch.floor(number * size[:, None]) + start[:, None]
    end = torch.ceil((number + 1) * size[:, None]) + start[:, None]
    return first.clamp(0, side).long(), end.clamp(0, side).long()


def roi_pool(features: Tensor, rois: Tensor, size: int, scale: float) -> Tensor:
    """Maximum of each cell: `[B, C, H, W]`, `[R, 5]` → `[R, C, size, size]` (channels last in memory); empty cells: 0.

    A maximum over a rectangle is the maximum of four windows whose sides are powers of two, so windows of those sizes
    are made once for the whole map and every cell takes four lookups, however large it is.
    """
    batch, channels, height, width = features.shape
    corners = rois[:, 1:].float() * scale
    x_first, x_end = _pool_edges(corners[:, 0], corners[:, 2], size, width)
    y_first, y_end = _pool_edges(corners[:, 1], corners[:, 3], size, height)
    y_power, x_power = _power(y_end - y_first), _power(x_end - x_first)
    y_count, x_count = (int(p.max()) + 1 if p.numel() else 1 for p in (y_power, x_power))
    windows = _windows(features, y_count, x_count)  # [y_count * x_count * B * H * W, C]
    image = rois[:, 0].long()
    y_last, x_last = y_end - (1 << y_power), x_end - (1 << x_power)
    result = features.new_empty(len(rois), size, size, channels)
    for i in range(0, len(rois), _ROIS_AT_ONCE):
        part = slice(i, i + _ROIS_AT_ONCE)
        level = (y_power[part, :, None] * x_count + x_power[part, None, :]) * batch + image[part, None, None]
        out = result[part].view(-1, channels)
        for number, (y, x) in enumerate(
            ((y_first, x_first), (y_first, x_last), (y_last, x_first), (y_last, x_last)),
        ):
            rows, columns = y[part, :, None].clamp(0, height - 1), x[part, None, :].clamp(0, width - 1)
            index = ((level * height + rows) * width + columns).flatten()
            if number == 0:
                torch.index_select(windows, 0, index, out=out)
            else:
                torch.maximum(out, windows.index_select(0, index), out=out)
        empty = (y_end <= y_first)[part, :, None] | (x_end <= x_first)[part, None, :]
        if bool(empty.any()):
            out[empty.flatten()] = 0
    return result.permute(0, 3, 1, 2)


def _power(length: Tensor) -> Tensor:
    """The largest p with 2^p ≤ length; 0 for an empty interval."""
    return torch.floor(torch.log2(length.clamp(min=1).double() + 0.5)).long()


def _windows(features: Tensor, y_count: int, x_count: int) -> Tensor:
    """Maxima of windows of 2^p rows and 2^q columns that begin at each cell, one map per (p, q); channels are rows."""
    columns = [features.permute(0, 2, 3, 1).contiguous()]  # [B, H, W, C]
    for q in range(x_count - 1):
        columns.append(_doubled(columns[-1], 1 << q, dim=2))
    maps = [columns]
    for p in range(y_count - 1):
        maps.append([_doubled(window, 1 << p, dim=1) for window in maps[-1]])
    return torch.stack([window for row in maps for window in row]).view(-1, features.shape[1])


def _doubled(window: Tensor, step: int, *, dim: int) -> Tensor:
    """Windows twice as long in one direction; those that would reach beyond the map stay as they are."""
    result = window.clone()
    if step < window.shape[dim]:
        inner = result.narrow(dim, 0, window.shape[dim] - step)
        torch.maximum(inner, window.narrow(dim, step, window.shape[dim] - step), out=inner)
    return result


def roi_pool_reference(features: Tensor, rois: Tensor, size: int, scale: float) -> Tensor:
    """What `roi_pool` computes, cell by cell."""
    _, channels, height, width = features.shape
    result = features.new_zeros(len(rois), channels, size, size)
    for number, roi in enumerate(rois.float()):
        corners = roi[1:] * scale
        x_first, x_end = _pool_edges(corners[0:1], corners[2:3], size, width)
        y_first, y_end = _pool_edges(corners[1:2], corners[3:4], size, height)
        for row in range(size):
            for column in range(size):
                rows = slice(int(y_first[0, row]), int(y_end[0, row]))
                columns = slice(int(x_first[0, column]), int(x_end[0, column]))
                cell = features[int(roi[0]), :, rows, columns]
                if cell.numel():
                    result[number, :, row, column] = cell.amax(dim=(1, 2))
    return result


def roi_align(
    features: Tensor, rois: Tensor, size: int, scale: float, *, sampling: int = 2, aligned: bool = True
) -> Tensor:
    """Average of bilinear samples in each cell: `[B, C, H, W]`, `[R, 5]` → `[R, C, size, size]` (channels last).

    Args:
        features: the map.
        rois: regions.
        size: cells per side.
        scale: from RoIs to the map.
        sampling: samples per side of a cell; 0 takes as many as the cell has map cells, rounded up.
        aligned: pixel centres lie at one half (detectron2's "aligned"); otherwise at whole numbers, and a region is at
            least one map cell large.

    Bilinear weights are a product of a vertical and a horizontal part, so the whole operator is two matrix products,
    and gradients reach `features` through them.
    """
    _, channels, height, width = features.shape
    corners = rois[:, 1:].float() * scale - (0.5 if aligned else 0.0)
    rows = _sample_weights(corners[:, 1], corners[:, 3], size, height, sampling, aligned).to(features.dtype)
    columns = _sample_weights(corners[:, 0], corners[:, 2], size, width, sampling, aligned).to(features.dtype)
    # Unbound, not indexed: the gradient of an index is a map full of zeros for each picture.
    maps = features.permute(0, 2, 3, 1).unbind()  # B × [H, W, C]
    if height * width * channels > _LARGE_MAP:
        return _align_one_by_one(maps, rois[:, 0].long().tolist(), rows, columns)
    images = rois[:, 0].long()
    at_once = max(1, _ALIGN_VALUES // max(1, size * width * channels))
    parts: list[Tensor] = []
    places: list[Tensor] = []
    for image in torch.unique(images).tolist():
        chosen = torch.nonzero(images == image)[:, 0]
        for start in range(0, len(chosen), at_once):
            some = chosen[start : start + at_once]
            tall = rows[some].flatten(0, 1) @ maps[image].reshape(height, -1)  # [r * size, W * C]
            tall = tall.view(len(some) * size, width, channels)
            across = columns[some].repeat_interleave(size, dim=0)  # [r * size, size, W]
            parts.append(torch.bmm(across, tall).view(len(some), size, size, channels))
            places.append(some)
    if not parts:
        return features.new_zeros(0, channels, size, size)
    joined = torch.cat(parts)[torch.argsort(torch.cat(places))]
    return joined.permute(0, 3, 1, 2)


def _align_one_by_one(maps: Sequence[Tensor], images: list[int], rows: Tensor, columns: Tensor) -> Tensor:
    """The same on a large map: each region touches only the part of the map that has weight."""
    size, channels = rows.shape[1], maps[0].shape[2]
    spans = [_span(weights) for weights in (rows, columns)]
    parts = []
    for number, image in enumerate(images):
        (top, bottom), (left, right) = (span[number] for span in spans)
        cut = maps[image][top:bottom, left:right]
        tall = rows[number, :, top:bottom] @ cut.reshape(bottom - top, -1)  # [size, w * C]
        across = columns[number, :, left:right].expand(size, -1, -1)
        parts.append(torch.bmm(across, tall.view(size, right - left, channels)))
    if not parts:
        return rows.new_zeros(0, channels, size, size)
    return torch.stack(parts).permute(0, 3, 1, 2)


def _span(weights: Tensor) -> list[tuple[int, int]]:
    """First and end place with weight for each region; one place where there is none."""
    used = (weights != 0).any(dim=1)  # [R, side]
    side = used.shape[1]
    first = torch.where(used.any(dim=1), used.int().argmax(dim=1), 0)
    end = side - used.flip(1).int().argmax(dim=1)
    end = torch.where(used.any(dim=1), end, 1)
    return list(zip(first.tolist(), end.tolist(), strict=True))


def roi_mean(features: Tensor, rois: Tensor, scale: float, *, samples: int = 6) -> Tensor:
    """Mean of bilinear samples over each region: `[B, C, H, W]`, `[R, 5]` → `[R, C]`.

    The same as `roi_align` with one cell of `samples` × `samples` samples; of the two directions only the products of
    their weights are needed, so it is one matrix product a picture.
    """
    _, channels, height, width = features.shape
    corners = rois[:, 1:].float() * scale - 0.5
    rows = _sample_weights(corners[:, 1], corners[:, 3], 1, height, samples, True)
    columns = _sample_weights(corners[:, 0], corners[:, 2], 1, width, samples, True)
    weights = (rows.transpose(1, 2) * columns).flatten(1).to(features.dtype)  # [R, H * W]
    maps = features.permute(0, 2, 3, 1).reshape(len(features), height * width, channels).unbind()
    images = rois[:, 0].long()
    result = features.new_zeros(len(rois), channels)
    for image in torch.unique(images).tolist():
        chosen = torch.nonzero(images == image)[:, 0]
        result = result.index_copy(0, chosen, weights[chosen] @ maps[image])
    return result


def _sample_weights(low: Tensor, high: Tensor, cells: int, side: int, sampling: int, aligned: bool) -> Tensor:
    """`[R, cells, side]`: how much each place of one axis of the map counts for each cell."""
    extent = high - low
    if not aligned:
        extent = extent.clamp(min=1.0)
    cell = extent / cells
    counts = torch.full_like(low, sampling) if sampling > 0 else torch.ceil(cell).clamp(min=0)
    most = max(1, int(counts.max())) if counts.numel() else 1
    number = torch.arange(most, dtype=torch.float32)
    starts = low[:, None] + torch.arange(cells, dtype=torch.float32) * cell[:, None]  # [R, cells]
    # float32 in the order of the public versions: whether a sample on the border counts depends on its rounding
    within = (number + 0.5) * cell[:, None, None] / counts.clamp(min=1)[:, None, None]
    places = starts[:, :, None] + within  # [R, cells, most]
    counted = (number < counts[:, None, None]) & (places >= -1.0) & (places <= side)
    places = places.clamp(0, side - 1)
    below = places.floor().clamp(max=max(side - 2, 0))
    above_share = (places - below) * counted
    below_share = (1 - (places - below)) * counted
    weights = low.new_zeros(len(low), cells, side)
    weights.scatter_add_(2, below.long(), below_share)
    weights.scatter_add_(2, (below.long() + 1).clamp(max=side - 1), above_share)
    return weights / counts.clamp(min=1)[:, None, None]


def roi_align_reference(
    features: Tensor, rois: Tensor, size: int, scale: float, *, sampling: int = 2, aligned: bool = True
) -> Tensor:
    """What `roi_align` computes, sample by sample."""
    channels = features.shape[1]
    result = features.new_zeros(len(rois), channels, size, size)
    for number, roi in enumerate(rois):
        # float32, as in the public versions: whether a sample on the border counts depends on its rounding
        x0, y0, x1, y1 = (roi[1:].float() * scale - (0.5 if aligned else 0.0)).numpy()
        tall, wide = y1 - y0, x1 - x0
        if not aligned:
            tall, wide = max(tall, np.float32(1)), max(wide, np.float32(1))
        tall, wide = tall / np.float32(size), wide / np.float32(size)  # of a cell
        y_count = sampling or max(0, math.ceil(tall))
        x_count = sampling or max(0, math.ceil(wide))
        for row in range(size):
            for column in range(size):
                total = features.new_zeros(channels)
                for i in range(y_count):
                    for j in range(x_count):
                        y = y0 + np.float32(row) * tall + np.float32(i + 0.5) * tall / np.float32(y_count)
                        x = x0 + np.float32(column) * wide + np.float32(j + 0.5) * wide / np.float32(x_count)
                        total += _bilinear(features[int(roi[0])], float(y), float(x))
                result[number, :, row, column] = total / max(1, y_count * x_count)
    return result


def _bilinear(features: Tensor, y: float, x: float) -> Tensor:
    _, height, width = features.shape
    if not (-1.0 <= y <= height and -1.0 <= x <= width):
        return features.new_zeros(features.shape[0])
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = features[:, top, left] * (1 - x + left) + features[:, top, right] * (x - left)
    lower = features[:, bottom, left] * (1 - x + left) + features[:, bottom, right] * (x - left)
    return upper * (1 - y + top) + lower * (y - top)
