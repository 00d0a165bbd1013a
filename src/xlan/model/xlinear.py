"""The X-Linear attention block, Eq. 2–6: the paper's one idea.

A query meets every region through bilinear pooling (an element-wise product of two projections); what comes out weighs
regions (spatial softmax) and feature channels (squeeze-and-excitation gate) at once.

    B_i  = σ(W_k k_i) ⊙ σ(W_q^k Q)                          Eq. 2
    B'_i = ReLU(W_B B_i),  β^s = softmax(W_b B'_i)           Eq. 3
    B̄    = mean_i B'_i                                       Eq. 4
    β^c  = sigmoid(W_e B̄)                                    Eq. 5
    v̂    = β^c ⊙ Σ_i β^s_i (σ(W_v v_i) ⊙ σ(W_q^v Q))         Eq. 6

The paper's text and the released code differ; one class has both forms by its arguments:

    paper form     heads=1, activation="relu" (or "elu", Eq. 8), normalise=False, bias=False
    released form  heads=8, activation="celu", normalise=True, bias=True

In the released form every projection is followed by a GroupNorm with one group per head, and W_B, W_b, W_e are shared
by the heads. Since σ(W_q^v Q) does not depend on the region, it is multiplied once, outside the sum of Eq. 6.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.errors import ModelError, ShapeError
from xlan.model.attention import PLAINLY, Asking, Attended, AttentionLayer, Projected, attention_mask, spatial_softmax
from xlan.model.bilinear import bilinear_scores
from xlan.model.recurrent_linear import LinearFunction

CELU_ALPHA = 1.3  # of the released code


def activation(name: str) -> nn.Module:
    """σ by name. ELU makes bilinear pooling model interactions of every order (Eq. 8); CELU is the released one."""
    choices: dict[str, nn.Module] = {"relu": nn.ReLU(), "elu": nn.ELU(), "celu": nn.CELU(CELU_ALPHA)}
    if name not in choices:
        raise ModelError(f"activation: expected one of {', '.join(choices)}, got {name!r}")
    return choices[name]


class BilinearProjection(nn.Module):
    """One side of bilinear pooling: `σ(W x)`, in the released form followed by a norm per head."""

    def __init__(self, input_dim: int, output_dim: int, *, heads: int, sigma: str, normalise: bool, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(input_dim, output_dim, bias=bias)
        self.sigma = activation(sigma)
        self.norm = nn.GroupNorm(heads, output_dim) if normalise else None

    def forward(self, x: Tensor, linear: LinearFunction = F.linear) -> Tensor:
        """`[..., input_dim]` → `[..., output_dim]`."""
        y = self.sigma(linear(x, self.linear.weight, self.linear.bias))
        if self.norm is None:
            return cast(Tensor, y)
        return cast(Tensor, self.norm(y.flatten(0, -2))).view(y.shape)


class XLinearAttention(AttentionLayer):
    """The block of Eq. 2–6.

    Args:
        query_dim: width D_q of the query.
        key_dim: width D_k of the keys (default: `query_dim`).
        value_dim: width D_v of the values (default: `key_dim`).
        bilinear_dim: width D_B of bilinear pooling and of the attended feature, over all heads.
        hidden_dim: width D_c of the transformed bilinear representation, per head.
        heads: number of heads; each works on `bilinear_dim / heads` channels.
        activation: σ of Eq. 2 and 6: `relu`, `elu` or `celu`.
        normalise: a GroupNorm, one group per head, after every projection.
        bias: biases in every projection.
        dropout: dropout on B' while training.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        bilinear_dim: int = 1024,
        hidden_dim: int = 512,
        heads: int = 1,
        activation: str = "relu",
        normalise: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(query_dim, key_dim or query_dim, value_dim or key_dim or query_dim)
        if heads < 1 or bilinear_dim % heads:
            raise ShapeError(f"heads: expected a divisor of bilinear_dim {bilinear_dim}, got {heads}")
        self.bilinear_dim = bilinear_dim
        self.heads = heads
        self.head_dim = bilinear_dim // heads

        def projection(width: int) -> BilinearProjection:
            return BilinearProjection(
                width, bilinear_dim, heads=heads, sigma=activation, normalise=normalise, bias=bias
            )

        self.query_for_keys = projection(query_dim)  # σ(W_q^k ·), Eq. 2
        self.keys = projection(self.key_dim)  # σ(W_k ·), Eq. 2
        self.query_for_values = projection(query_dim)  # σ(W_q^v ·), Eq. 6
        self.values = projection(self.value_dim)  # σ(W_v ·), Eq. 6
        self.W_B = nn.Linear(self.head_dim, hidden_dim, bias=bias)  # Eq. 3
        self.W_b = nn.Linear(hidden_dim, 1, bias=bias)  # Eq. 3
        self.W_e = nn.Linear(hidden_dim, self.head_dim, bias=bias)  # Eq. 5
        self.dropout = dropout

    def _split(self, x: Tensor) -> Tensor:
        """`[B, L, D_B]` → `[B, H, L, d]`."""
        return x.view(*x.shape[:-1], self.heads, self.head_dim).transpose(1, 2)

    def projected(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Projected:
        """Project keys `[B, N, D_k]` and values `[B, N, D_v]`, once for any number of queries."""
        # Contiguous: asked many times, copied once.
        return Projected(self._split(self.keys(keys)).contiguous(), self._split(self.values(values)).contiguous(), mask)

    def attend(self, queries: Tensor, cache: Projected, asking: Asking = PLAINLY) -> Attended:
        """Attend with queries `[B, Q, D_q]`; `return_attention` gives the distributions of Eq. 3 and 5."""
        mask = attention_mask(cache.mask, asking.allowed)  # [B, 1, Q, N] or None

        q = self._split(self.query_for_keys(queries, asking.linear))  # [B, H, Q, d]
        scores, described = bilinear_scores(
            q,
            cache.keys,
            _mean_weights(mask, q, cache.keys),
            (self.W_B.weight, _bias(self.W_B)),
            (self.W_b.weight, _bias(self.W_b)),
            dropout=self.dropout if self.training else 0.0,
        )
        spatial = spatial_softmax(scores, mask)  # [B, H, Q, N]
        channel = torch.sigmoid(self.W_e(described))  # [B, H, Q, d]
        pooled = torch.matmul(spatial.to(cache.values.dtype), cache.values)  # Σ_i β^s_i σ(W_v v_i): [B, H, Q, d]
        attended = channel * pooled * self._split(self.query_for_values(queries, asking.linear))

        if not asking.return_attention:
            return Attended(_join(attended), None, None)
        return Attended(_join(attended), spatial.transpose(1, 2), _join(channel))


def _join(x: Tensor) -> Tensor:
    """`[B, H, Q, d]` → `[B, Q, H·d]`."""
    return x.transpose(1, 2).flatten(2)


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias


def _mean_weights(mask: Tensor | None, query: Tensor, keys: Tensor) -> Tensor:
    """Weights of the mean of Eq. 4 over the regions that exist, broadcastable to `[B, H, Q, N]`."""
    if mask is None:
        return query.new_full((1, 1, 1, 1), 1.0 / keys.shape[2])
    weights = mask.to(query.dtype)
    return weights / weights.sum(dim=-1, keepdim=True)
