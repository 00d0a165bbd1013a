"""Eq. 2 and 3 up to the hidden layer, without ever holding the query–key product.

`B' = ReLU(W_B (q ⊙ k_i) + b)` for every query and region. The product `q ⊙ k_i` is `[B, H, Q, N, d]`: for a training
batch of X-Transformer it is the largest tensor of the model by far. Here it exists for a few images and heads at a
time, small enough for a processor's cache, and the backward pass forms it again instead of keeping it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Elements of the product formed at a time. On a CPU it should stay in the cache; elsewhere memory is the only limit.
CPU_CHUNK = 1 << 19
DEVICE_CHUNK = 1 << 26


def bilinear_hidden(query: Tensor, keys: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`ReLU(W (q ⊙ k) + b)`.

    Args:
        query: `[B, H, Q, d]`.
        keys: `[B, H, N, d]`.
        weight: `[c, d]`, shared by the heads.
        bias: `[c]`.

    Returns:
        `[B, H, Q, N, c]`.
    """
    if torch.compiler.is_compiling():  # the compiler fuses the product into the matmul's loop by itself
        return F.linear(query.unsqueeze(3) * keys.unsqueeze(2), weight, bias).relu()
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, keys, weight, bias = (tensor.to(dtype) for tensor in (query, keys, weight, bias))
    batch, heads = query.shape[:2]
    query, keys = query.flatten(0, 1), keys.flatten(0, 1)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, keys, weight, bias)):
        hidden: Tensor = _BilinearHidden.apply(query, keys, weight, bias)  # type: ignore[no-untyped-call]
    else:
        hidden = _forward(query, keys, weight, bias)
    return hidden.view(batch, heads, *hidden.shape[1:])


class _Product:
    """`q ⊙ k`, a chunk at a time, always in the same memory.

    Repeating each query for every region by `index_select` and multiplying in place is several times faster on a CPU
    than one multiplication that broadcasts both sides.
    """

    def __init__(self, query: Tensor, keys: Tensor) -> None:
        self.query, self.keys = query, keys  # [G, Q, d], [G, N, d]
        groups, queries, width = query.shape
        limit = CPU_CHUNK if query.device.type == "cpu" else DEVICE_CHUNK
        per_query = keys.shape[1] * width
        self.queries = max(1, min(queries, limit // per_query))
        self.groups = max(1, min(groups, limit // (per_query * queries)))
        rows = self.groups * self.queries
        self.index = torch.arange(rows, device=query.device).repeat_interleave(keys.shape[1])
        self.repeated = query.new_empty(rows * keys.shape[1], width)
        self.product = torch.empty_like(self.repeated)

    def chunks(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield which groups and queries, the queries repeated `[g, q, N, d]` and the product `[g·q·N, d]`."""
        regions, width = self.keys.shape[1:]
        for group in range(0, self.query.shape[0], self.groups):
            keys = self.keys[group : group + self.groups].unsqueeze(1)  # [g, 1, N, d]
            for first in range(0, self.query.shape[1], self.queries):
                which = slice(group, group + self.groups), slice(first, first + self.queries)
                query = self.query[which]
                rows = query.shape[0] * query.shape[1] * regions
                repeated, product = self.repeated[:rows], self.product[:rows]
                torch.index_select(query.reshape(-1, width), 0, self.index[:rows], out=repeated)
                repeated = repeated.view(*query.shape[:2], regions, width)
                torch.mul(repeated, keys, out=product.view_as(repeated))
                yield *which, repeated, product


def _forward(query: Tensor, keys: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    groups, queries, _ = query.shape
    hidden = query.new_empty(groups, queries, keys.shape[1], weight.shape[0])
    for group, some, _, product in _Product(query, keys).chunks():
        part = hidden[group, some].view(-1, weight.shape[0])
        torch.addmm(bias, product, weight.t(), out=part).relu_()
    return hidden


class _BilinearHidden(torch.autograd.Function):
    """`_forward` with a backward pass that forms the product again, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            hidden = _forward(query, keys, weight, bias)
        ctx.save_for_backward(query, keys, weight, hidden)
        return hidden

    @staticmethod
    def backward(ctx: Any, grad_hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query, keys, weight, hidden = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        grad_keys = torch.zeros_like(keys)
        grad_weight = torch.zeros_like(weight)
        grad_bias = weight.new_zeros(weight.shape[0])
        for group, some, repeated, product in _Product(query, keys).chunks():
            rows = torch.ops.aten.threshold_backward(grad_hidden[group, some], hidden[group, some], 0)
            rows = rows.view(-1, weight.shape[0])
            grad_weight.addmm_(rows.t(), product)
            grad_bias += rows.sum(0)
            grad_product = torch.mm(rows, weight, out=product).view_as(repeated)  # the product is not needed any more
            grad_keys[group] += repeated.mul_(grad_product).sum(1)
            grad_query[group, some] = grad_product.mul_(keys[group].unsqueeze(1)).sum(2)
        return grad_query, grad_keys, grad_weight, grad_bias
