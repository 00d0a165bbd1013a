"""Dropout that is fast on a CPU.

PyTorch draws one Bernoulli number per element, one after the other; in an X-Linear block, whose hidden layer has an
element for every query, region and channel, that is a tenth of a training step. Here one 64-bit draw decides for four
elements, with 16 bits each: the probability is rounded to a multiple of 1/65,536 and the scale follows the rounded one,
so the expected value is exact. It uses PyTorch's generator and is as reproducible as any other draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        dropped, scale = draw_dropped(x.shape, self.p, x.device)
        kept: Tensor = _Keep.apply(x, dropped, scale)  # type: ignore[no-untyped-call]
        return kept


def draw_dropped(shape: Sequence[int], p: float, device: torch.device) -> tuple[Tensor, float]:
    """Which elements of a tensor to drop (bool), and the scale of the others."""
    dropped = min(round(p * _STEPS), _STEPS - 1)
    count = math.prod(shape)
    bits = torch.empty(-(-count // 4), dtype=torch.int64, device=device).random_(-(1 << 63), None)
    lost = bits.view(torch.int16)[:count] < dropped - _STEPS // 2
    return lost.view(shape), _STEPS / (_STEPS - dropped)


class _Keep(torch.autograd.Function):
    """What is left of `x`, scaled, remembering one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(dropped)
        ctx.scale = scale
        return (x * scale).masked_fill_(dropped, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (dropped,) = ctx.saved_tensors
        return (gradient * ctx.scale).masked_fill_(dropped, 0.0), None, None
