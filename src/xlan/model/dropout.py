"""Dropout that is fast on a CPU.

PyTorch draws one Bernoulli number per element, one after the other; in an X-Linear block, whose hidden layer has an
element for every query, region and channel, that is a tenth of a training step. Here one 64-bit draw decides for four
elements, with 16 bits each: the probability is rounded to a multiple of 1/65,536 and the scale follows the rounded one,
so the expected value is exact. It uses PyTorch's generator and is as reproducible as any other draw.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.errors import ModelError

_STEPS = 1 << 16
_SMALL = 1 << 12  # below this PyTorch's own is as fast


class Dropout(nn.Module):
    """Zero elements with probability `p` while training and scale the others by `1 / (1 - p)`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ModelError(f"dropout: expected a probability from 0 to below 1, got {p}")
        self.p = p

    def extra_repr(self) -> str:
        """Show the probability when a model is printed."""
        return f"p={self.p}"

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same shape out."""
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu" or x.numel() < _SMALL or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        keep, scale = _draw(x, self.p)
        kept: Tensor = _Keep.apply(x, keep, scale)  # type: ignore[no-untyped-call]
        return kept


def _draw(x: Tensor, p: float) -> tuple[Tensor, float]:
    """Which elements of `x` to keep, and their scale."""
    dropped = min(round(p * _STEPS), _STEPS - 1)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    keep = bits.view(torch.int16)[: x.numel()] >= dropped - _STEPS // 2
    return keep.view(x.shape), _STEPS / (_STEPS - dropped)


class _Keep(torch.autograd.Function):
    """`x · keep · scale`, remembering one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.where(keep, x, 0.0).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return torch.where(keep, gradient, 0.0).mul_(ctx.scale), None, None
