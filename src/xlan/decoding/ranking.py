"""The k best of each row, with ties broken by the lower index.

`torch.topk` is much faster than a sort but leaves open which of several equal elements it returns. The k + 1 best tell
whether that matters: only when the k-th and the next are equal, and only those rows are looked at again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xlan.decoding.step import IMPOSSIBLE

BLOCK = 64


def top_indices(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest of each row; among equals the lower index is taken.

    Args:
        scores: `[R, V]`; -inf means "not available", and which of those are returned is left open.
        k: how many, at least 1; at most V are returned.

    Returns:
        `[R, min(k, V)]` int64, from the largest on; among equals the lower index first.
    """
    size = scores.shape[1]
    if k >= size:
        return scores.sort(dim=1, descending=True, stable=True).indices
    values, indices = _topk(scores, k + 1)
    last = values[:, k - 1]
    tied = (last == values[:, k]) & (last > IMPOSSIBLE)
    chosen = indices[:, :k]
    if bool(tied.any()):
        chosen = chosen.clone()
        chosen[tied] = _lowest_of_equals(scores[tied], last[tied].unsqueeze(1), k)
    chosen = chosen.sort(dim=1).values
    return chosen.gather(1, scores.gather(1, chosen).sort(dim=1, descending=True, stable=True).indices)


def _topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)`, faster on long rows: the k best are in the k blocks with the largest maxima."""
    rows, size = scores.shape
    whole = size // BLOCK
    if whole < 4 * k:
        values, indices = scores.topk(k, dim=1)
        return values, indices
    maxima = scores[:, : whole * BLOCK].view(rows, whole, BLOCK).amax(dim=2)
    if whole * BLOCK < size:
        maxima = torch.cat([maxima, scores[:, whole * BLOCK :].amax(dim=1, keepdim=True)], dim=1)
    blocks = maxima.topk(k, dim=1).indices
    columns = (blocks.unsqueeze(2) * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)  # [R, k · BLOCK]
    inside = columns < size
    columns = columns.clamp_max(size - 1)
    values, places = scores.gather(1, columns).masked_fill_(~inside, IMPOSSIBLE).topk(k, dim=1)
    return values, columns.gather(1, places)


def _lowest_of_equals(scores: Tensor, last: Tensor, k: int) -> Tensor:
    """The k best of rows in which more than one element equals the k-th largest, `last` (`[R, 1]`), by index."""
    larger, equal = scores > last, scores == last
    wanted = k - larger.sum(dim=1, keepdim=True)
    taken = larger | (equal & (equal.cumsum(dim=1) <= wanted))
    return taken.nonzero()[:, 1].view(-1, k)
