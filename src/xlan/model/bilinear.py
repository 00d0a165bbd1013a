"""Eq. 2 and 3 up to the hidden layer, without ever holding the query–key product.

`B' = σ(W_B (q ⊙ k_i) + b)` for every query and region. The product `q ⊙ k_i` is `[B, H, Q, N, d]`: for a training
batch of X-Transformer it is the largest tensor of the model by far. Here it exists for a few queries at a time, and the
backward pass forms it again instead of keeping it: two element-wise products more, one tensor of that size fewer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Elements of the product formed at a time: small enough to stay in a processor's cache, large enough for a good matmul.
CHUNK_ELEMENTS = 1 << 20


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
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, keys, weight, bias = (tensor.to(dtype) for tensor in (query, keys, weight, bias))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, keys, weight, bias)):
        return _BilinearHidden.apply(query, keys, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(query, keys, weight, bias)


def _queries_per_chunk(query: Tensor, keys: Tensor) -> int:
    per_query = keys.shape[0] * keys.shape[1] * keys.shape[2] * keys.shape[3]
    return max(1, min(query.shape[2], CHUNK_ELEMENTS // max(1, per_query)))


def _forward(query: Tensor, keys: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    size = _queries_per_chunk(query, keys)
    if size >= query.shape[2]:
        return F.linear(query.unsqueeze(3) * keys.unsqueeze(2), weight, bias).relu_()
    batch, heads, queries, _ = query.shape
    hidden = query.new_empty(batch, heads, queries, keys.shape[2], weight.shape[0])
    for first in range(0, queries, size):
        part = slice(first, first + size)
        product = query[:, :, part].unsqueeze(3) * keys.unsqueeze(2)  # [B, H, size, N, d]
        hidden[:, :, part] = F.linear(product, weight, bias).relu_()
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
        size = _queries_per_chunk(query, keys)
        for first in range(0, query.shape[2], size):
            part = slice(first, first + size)
            some = query[:, :, part].unsqueeze(3)  # [B, H, size, 1, d]
            grad = torch.where(hidden[:, :, part] > 0, grad_hidden[:, :, part], 0.0)  # [B, H, size, N, c]
            rows = grad.flatten(0, 3)
            product = (some * keys.unsqueeze(2)).flatten(0, 3)
            grad_weight.addmm_(rows.t(), product)
            grad_bias += rows.sum(0)
            grad_product = torch.mm(rows, weight, out=product).view(*grad.shape[:-1], -1)  # the product's memory
            grad_query[:, :, part] = torch.einsum("bhqnd,bhnd->bhqd", grad_product, keys)
            grad_keys += torch.einsum("bhqnd,bhqd->bhnd", grad_product, query[:, :, part])
        return grad_query, grad_keys, grad_weight, grad_bias
