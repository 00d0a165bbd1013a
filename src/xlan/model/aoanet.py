"""AoANet: after every attention a gate decides how much of the result matters to the query ("attention on attention").

    AoA(q, A) = GLU(W [A; q] + b)
    encoder   r = ReLU(W_r v);  six times: q = norm(r), r = r + AoA(q, heads(q, q, q));  R = norm(r), g = mean of R
    decoder   h_t = LSTM([x_t; g + c_{t-1}], h_{t-1});  c_t = AoA(h_t, heads(norm(h_t), R, R));  p = softmax(W_p c_t)

The decoder is X-LAN's `LSTMDecoder` with another attention. The norm divides by the standard deviation with N − 1 and
adds ε to it, not to the variance: it is not PyTorch's LayerNorm, and published weights need it as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import PLAINLY, Asking, Attended, AttentionLayer, Projected, masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.multihead import MultiHeadAttention, dot_product, split_heads
from xlan.model.spec import AOANET_EPSILON


class DeviationNorm(nn.Module):
    """`a (x − mean) / (s + ε) + b` over the last dimension, s the standard deviation with N − 1.

    Args:
        dim: width of the input.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` → `[..., D]`."""
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + AOANET_EPSILON) + self.bias


class RefinerLayer(nn.Module):
    """Self-attention over regions with attention on attention, and a residual.

    Args:
        dim: width of the regions.
        heads: number of heads.
        attention_dropout: dropout on the attention weights.
        gate_dropout: dropout on `[A; q]`.
        dropout: dropout on what is added to the regions.
    """

    def __init__(self, dim: int, *, heads: int, attention_dropout: float, gate_dropout: float, dropout: float) -> None:
        super().__init__()
        self.norm = DeviationNorm(dim)
        self.attention = MultiHeadAttention(dim, heads=heads, dropout=attention_dropout, project_output=False)
        self.gate = nn.Linear(2 * dim, 2 * dim)
        self.gate_dropout = Dropout(gate_dropout)
        self.dropout = Dropout(dropout)

    def forward(self, regions: Tensor, mask: Tensor | None) -> Tensor:
        """`[B, N, D]` with region mask `[B, N]` → `[B, N, D]`."""
        query = self.norm(regions)
        found = self.attention.attend(query, self.attention.projected(query, query, mask)).feature
        gated = F.glu(self.gate(self.gate_dropout(torch.cat([found, query], dim=-1))), dim=-1)
        refined: Tensor = regions + self.dropout(gated)
        return refined


class AoAEncoder(nn.Module):
    """Region embedding, refiner and mean.

    Args:
        feature_dim: width of the region features that come in.
        layers: `RefinerLayer`s.
        dim: width of the model.
        dropout: dropout on the embedded regions.
    """

    def __init__(self, feature_dim: int, layers: nn.ModuleList, *, dim: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Linear(feature_dim, dim)
        self.dropout = Dropout(dropout)
        self.layers = layers
        self.norm = DeviationNorm(dim)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]`."""
        regions = self.dropout(torch.relu(self.embed(features)))
        for layer in self.layers:
            regions = layer(regions, mask)
        regions = self.norm(regions)
        return Encoded(masked_mean(regions, mask), regions, mask)


class AoAAttention(AttentionLayer):
    """The decoder's attention: a norm on the query, one projection for values and keys, no output projection.

    Args:
        dim: width of queries, regions and result.
        heads: number of heads.
        dropout: dropout on the attention weights.
    """

    def __init__(self, dim: int, *, heads: int, dropout: float = 0.0) -> None:
        super().__init__(dim, dim, dim)
        self.heads = heads
        self.norm = DeviationNorm(dim)
        self.W_q = nn.Linear(dim, dim)
        self.W_vk = nn.Linear(dim, 2 * dim)
        self.dropout = Dropout(dropout)

    def projected(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Projected:
        """Regions are keys and values at once; both come from one projection, the values first."""
        del values
        first, second = self.W_vk(keys).chunk(2, dim=-1)
        return Projected(split_heads(second, self.heads), split_heads(first, self.heads), mask)

    def attend(self, queries: Tensor, cache: Projected, asking: Asking = PLAINLY) -> Attended:
        """Attend with queries `[B, Q, D]`; see `AttentionLayer`."""
        q = split_heads(asking.linear(self.norm(queries), self.W_q.weight, self.W_q.bias), self.heads)
        feature, weights = dot_product(q, cache, asking.allowed, self.dropout)
        return Attended(feature, weights if asking.return_attention else None, None)
