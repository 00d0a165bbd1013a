"""Linear layers used at every time step, with one weight gradient for all steps.

Autograd computes the gradient of a recurrent weight as one small matrix product per step and adds them up: for a
caption of 17 words, 17 products that each read and write a whole weight matrix for a few dozen rows. `RecurrentLinear`
collects inputs and output gradients while the steps run backwards and multiplies them once at the end. The values are
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

LinearFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class RecurrentLinear:
    """Replaces `F.linear` during one pass over time: `linear = RecurrentLinear()`, then `linear(x, weight, bias)`."""

    def __init__(self) -> None:
        self._bags: dict[int, _Bag] = {}

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x W^T + b` for `x` `[..., in]`."""
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and weight.requires_grad):
            return F.linear(x, weight, bias)
        if id(weight) not in self._bags:
            self._bags[id(weight)] = _Bag(weight, bias)
        bag = self._bags[id(weight)]
        return _Step.apply(x.to(bag.weight.dtype), bag.ticket, bag)  # type: ignore[no-any-return, no-untyped-call]


class _Bag:
    """Inputs and output gradients of one weight, collected over the steps."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.original = weight  # kept alive: RecurrentLinear tells weights apart by their identity
        device = weight.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        self.inputs: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        # Steps depend on the ticket and the ticket depends on the weight, so the weight's turn comes after all steps.
        self.ticket: Tensor = _Collect.apply(weight, bias, self)  # type: ignore[no-untyped-call]


class _Collect(torch.autograd.Function):
    """weight, bias → ticket; backwards, after the last step: the gradients of weight and bias."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, bag: _Bag) -> Tensor:
        ctx.bag, ctx.has_bias = bag, bias is not None
        return torch.zeros((), device=weight.device)

    @staticmethod
    def backward(ctx: Any, steps: Tensor) -> tuple[Tensor, Tensor | None, None]:
        # Each step of this pass sent a 1. What lies before them in the bag is from a pass that did not come here:
        # one that asked for the gradient of an input alone, or was interrupted.
        first = len(ctx.bag.inputs) - int(steps)
        gradient = torch.cat(ctx.bag.gradients[first:])
        inputs = torch.cat(ctx.bag.inputs[first:])
        ctx.bag.gradients.clear()
        ctx.bag.inputs.clear()
        return gradient.t() @ inputs, gradient.sum(0) if ctx.has_bias else None, None


class _Step(torch.autograd.Function):
    """One use of the weight: the gradient of the input now, that of the weight later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _ticket: Tensor, bag: _Bag) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bag = bag
        return F.linear(x, bag.weight, bag.bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.bag.inputs.append(x.flatten(0, -2))
        ctx.bag.gradients.append(gradient.flatten(0, -2))
        return gradient @ ctx.bag.weight, torch.ones((), device=gradient.device), None
