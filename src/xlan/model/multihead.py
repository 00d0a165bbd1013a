"""Scaled dot-product attention with heads, as the Transformer and AoANet use it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from xlan.model.attention import PLAINLY, Asking, Attended, AttentionLayer, Projected, attention_mask, spatial_softmax
from xlan.model.dropout import Dropout


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[B, L, D]` → `[B, H, L, D/H]`."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def dot_product(queries: Tensor, cache: Projected, allowed: Tensor | None, dropout: nn.Module) -> tuple[Tensor, Tensor]:
    """Attend with queries `[B, H, Q, d]`: the feature `[B, Q, H·d]` and the weights `[B, Q, H, N]`."""
    scores = torch.matmul(queries, cache.keys.transpose(2, 3)) / math.sqrt(queries.shape[-1])
    weights = spatial_softmax(scores, attention_mask(cache.mask, allowed))  # [B, H, Q, N]
    pooled = torch.matmul(dropout(weights), cache.values)
    return pooled.transpose(1, 2).flatten(2), weights.transpose(1, 2)


class MultiHeadAttention(AttentionLayer):
    """Multi-head attention with an output projection (the Transformer's own), or without (AoANet's).

    Args:
        dim: width of queries, keys, values and result.
        heads: number of heads.
        dropout: dropout on the attention weights while training.
        project_output: whether there is a `W_o`.
    """

    def __init__(self, dim: int, *, heads: int, dropout: float = 0.0, project_output: bool = True) -> None:
        super().__init__(dim, dim, dim)
        self.heads = heads
        self.W_q = nn.Linear(dim, dim)
        self.W_k = nn.Linear(dim, dim)
        self.W_v = nn.Linear(dim, dim)
        self.W_o = nn.Linear(dim, dim) if project_output else None
        self.dropout = Dropout(dropout)

    def projected(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Projected:
        """Project keys and values `[B, N, D]` to `[B, H, N, D/H]`."""
        return Projected(split_heads(self.W_k(keys), self.heads), split_heads(self.W_v(values), self.heads), mask)

    def attend(self, queries: Tensor, cache: Projected, asking: Asking = PLAINLY) -> Attended:
        """Attend with queries `[B, Q, D]`; see `AttentionLayer`."""
        q = split_heads(asking.linear(queries, self.W_q.weight, self.W_q.bias), self.heads)
        feature, weights = dot_product(q, cache, asking.allowed, self.dropout)
        if self.W_o is not None:
            feature = asking.linear(feature, self.W_o.weight, self.W_o.bias)
        return Attended(feature, weights if asking.return_attention else None, None)
