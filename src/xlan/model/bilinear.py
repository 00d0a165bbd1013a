"""Eq. 2–4 without ever holding the query–key product: spatial scores and channel descriptor of every query.

`B'_i = ReLU(W_B (q ⊙ k_i) + b)`, scores `W_b B'_i`, descriptor `mean_i B'_i`. The product `q ⊙ k_i` is
`[B, H, Q, N, d]` and B' is `[B, H, Q, N, c]`: for a training batch of X-Transformer they are the largest tensors of
the model by far. Here both exist for a few images and heads at a time, small enough for a processor's cache, and the
backward pass forms them again instead of keeping them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from xlan.model.dropout import draw_dropped

# Elements of the product formed at a time. On a CPU it should stay in the cache; elsewhere memory is the only limit.
CPU_CHUNK = 1 << 19
DEVICE_CHUNK = 1 << 26


def bilinear_scores(
    query: Tensor,
    keys: Tensor,
    mean: Tensor,
    W_B: tuple[Tensor, Tensor],
    W_b: tuple[Tensor, Tensor],
    *,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Spatial scores b^s (Eq. 3) and channel descriptors B̄ (Eq. 4).

    Args:
        query: σ(W_q^k Q), `[B, H, Q, d]`.
        keys: σ(W_k k_i), `[B, H, N, d]`.
        mean: `[B, 1, Q, N]` (or broadcastable to it) weights of the mean over regions, 0 where there is none.
        W_B: weight `[c, d]` and bias `[c]`, shared by the heads.
        W_b: weight `[1, c]` and bias `[1]`.
        dropout: probability of dropping elements of B'.

    Returns:
        `[B, H, Q, N]` and `[B, H, Q, c]`.
    """
    if torch.compiler.is_compiling():  # the compiler fuses loops by itself
        hidden = torch.relu(F.linear(query.unsqueeze(3) * keys.unsqueeze(2), *W_B))
        hidden = F.dropout(hidden, dropout)
        return F.linear(hidden, *W_b).squeeze(-1), torch.matmul(mean.unsqueeze(3), hidden).squeeze(3)
    batch, heads, queries, _ = query.shape
    mean = mean.expand(batch, heads, queries, keys.shape[2])
    tensors = [query, keys, mean, W_B[0], W_B[1], W_b[0], W_b[1]]
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    query, keys, mean, *weights = (tensor.to(dtype) for tensor in tensors)
    # A mean that is only expanded would make PyTorch take the small products below one after the other.
    scores, pooled = _Scores.apply(  # type: ignore[no-untyped-call]
        query.flatten(0, 1), keys.flatten(0, 1), mean.flatten(0, 1).contiguous(), *weights, dropout
    )
    return scores.view(batch, heads, *scores.shape[1:]), pooled.view(batch, heads, *pooled.shape[1:])


class _Product:
    """`q ⊙ k` of queries `[G, Q, d]` and keys `[G, N, d]`, a chunk at a time, always in the same memory.

    Repeating each query for every region by `index_select` and multiplying is several times faster on a CPU than one
    multiplication that broadcasts both sides.
    """

    def __init__(self, query: Tensor, keys: Tensor) -> None:
        self.query, self.keys = query, keys
        groups, queries, width = query.shape
        limit = CPU_CHUNK if query.device.type == "cpu" else DEVICE_CHUNK
        per_query = keys.shape[1] * width
        self.queries = max(1, min(queries, limit // per_query))
        self.groups = max(1, min(groups, limit // (per_query * max(1, queries))))
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


def _hidden(product: Tensor, weight: Tensor, bias: Tensor, dropped: Tensor | None, out: Tensor) -> Tensor:
    """B' without the scale of dropout: `[rows, d]` → `[rows, c]`."""
    hidden = torch.addmm(bias, product, weight.t(), out=out[: product.shape[0]]).relu_()
    return hidden if dropped is None else hidden.masked_fill_(dropped.view_as(hidden), 0.0)


class _Scores(torch.autograd.Function):
    """The chunks of a forward and of a backward pass; dropout's scale is put on W_b and on the mean."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        mean: Tensor,
        weight: Tensor,
        bias: Tensor,
        score_weight: Tensor,
        score_bias: Tensor,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        groups, queries, _ = query.shape
        shape = (groups, queries, keys.shape[1], weight.shape[0])
        dropped, scale = draw_dropped(shape, dropout, query.device) if dropout else (None, 1.0)
        scores = query.new_empty(shape[:3])
        pooled = query.new_empty(groups, queries, shape[3])
        product = _Product(query, keys)
        buffer = query.new_empty(product.product.shape[0], shape[3])
        with torch.autocast(query.device.type, enabled=False):
            for group, some, repeated, rows in product.chunks():
                lost = None if dropped is None else dropped[group, some]
                hidden = _hidden(rows, weight, bias, lost, buffer)
                scores[group, some] = torch.mv(hidden, score_weight[0] * scale).view(repeated.shape[:3])
                queries_regions = hidden.view(-1, shape[2], shape[3])
                weights = mean[group, some].reshape(-1, 1, shape[2])
                pooled[group, some] = torch.bmm(weights, queries_regions).view(*repeated.shape[:2], -1).mul_(scale)
        ctx.save_for_backward(query, keys, mean, weight, bias, score_weight, dropped)
        ctx.scale = scale
        return scores.add_(score_bias), pooled

    @staticmethod
    def backward(ctx: Any, grad_scores: Tensor, grad_pooled: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, mean, weight, bias, score_weight, dropped = ctx.saved_tensors
        grad_query, grad_keys = torch.empty_like(query), torch.zeros_like(keys)
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        grad_score = torch.zeros_like(score_weight[0])
        scaled = score_weight[0] * ctx.scale
        grad_pooled = grad_pooled * ctx.scale
        product = _Product(query, keys)
        buffer = query.new_empty(product.product.shape[0], weight.shape[0])
        for group, some, repeated, rows in product.chunks():
            hidden = _hidden(rows, weight, bias, None if dropped is None else dropped[group, some], buffer)
            of_scores = grad_scores[group, some]  # [g, q, N]
            grad_score.addmv_(hidden.t(), of_scores.reshape(-1), alpha=ctx.scale)
            # What scores and mean say of B'_i, `s_i w + m_i p`, as a product of [N, 2] and [2, c] for every query.
            left = torch.stack([of_scores, mean[group, some]], dim=-1).flatten(0, 1)
            of_mean = grad_pooled[group, some].flatten(0, 1)
            right = torch.stack([scaled.expand_as(of_mean), of_mean], dim=1)
            grad = torch.bmm(left, right).view_as(hidden)
            grad = torch.ops.aten.threshold_backward(grad, hidden, 0)  # dropped elements are 0 in `hidden` too
            grad_weight.addmm_(grad.t(), rows)
            grad_bias += grad.sum(0)
            grad_product = torch.mm(grad, weight, out=rows).view_as(repeated)  # the product is not needed any more
            grad_keys[group] += repeated.mul_(grad_product).sum(1)
            grad_query[group, some] = grad_product.mul_(keys[group].unsqueeze(1)).sum(2)
        return (
            grad_query,
            grad_keys,
            None,
            grad_weight,
            grad_bias,
            grad_score.unsqueeze(0),
            grad_scores.sum().view(1),
            None,
        )
