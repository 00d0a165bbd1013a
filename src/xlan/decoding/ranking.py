"""The k best of each row, with ties broken by the lower index.

`torch.topk` is much faster than a sort but leaves open which of several equal elements it returns. The k + 1 best tell
whether that matters: only when the k-th and the next are equal, and only those rows are looked at again.
"""

from __future__ import annotations

import torch
from torch import Tensor


def top_indices(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest of each row; among equals the lower index is taken.

    Args:
        scores: `[R, V]`; -inf means "not available", and which of those are returned is left open.
        k: how many, at least 1; at most V are returned.

    Returns:
        `[R, min(k, V)]` int64, each row in ascending order of the *index*, not of the score: a stable sort by score
        then keeps the lower index first.
    """
    size = scores.shape[1]
    if k >= size:
        return torch.arange(size, device=scores.device).expand(scores.shape[0], -1)
    values, indices = scores.topk(k + 1, dim=1)
    last = values[:, k - 1]
    tied = (last == values[:, k]) & (last > float("-inf"))
    chosen = indices[:, :k]
    if bool(tied.any()):
        chosen = chosen.clone()
        chosen[tied] = _lowest_of_equals(scores[tied], last[tied].unsqueeze(1), k)
    return chosen.sort(dim=1).values


def _lowest_of_equals(scores: Tensor, last: Tensor, k: int) -> Tensor:
    """`top_indices` of rows in which more than one element equals the k-th largest, `last` (`[R, 1]`)."""
    larger, equal = scores > last, scores == last
    wanted = k - larger.sum(dim=1, keepdim=True)
    taken = larger | (equal & (equal.cumsum(dim=1) <= wanted))
    return taken.nonzero()[:, 1].view(-1, k)
