"""Lengths → which positions are real. Ids alone do not tell: `pad` may be the same id as `eos`."""

from __future__ import annotations

import torch
from torch import Tensor


def real_positions(lengths: Tensor, positions: int) -> Tensor:
    """Which of the first `positions` places belong to a caption.

    Args:
        lengths: `[...]` how many places of each caption are real.
        positions: T, places to look at.

    Returns:
        `[..., T]` bool.
    """
    return torch.arange(positions, device=lengths.device) < lengths.unsqueeze(-1)
