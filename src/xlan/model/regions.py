"""The simplest encoder: every region goes through one layer, none knows of the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xlan.model.attention import masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded


class RegionEncoder(nn.Module):
    """`r_i = ReLU(W v_i + b)`, and for Up-Down `g = ReLU(W' v̄ + b')` with v̄ the mean of the raw regions.

    Args:
        feature_dim: width of the region features that come in.
        dim: width of the embedded regions; None leaves the regions as they are.
        summary_dim: width of the embedded mean; None takes the mean of the regions that go out.
        dropout: dropout on what was embedded.
    """

    def __init__(self, feature_dim: int, *, dim: int | None, summary_dim: int | None, dropout: float) -> None:
        super().__init__()
        self.embed = None if dim is None else nn.Linear(feature_dim, dim)
        self.embed_mean = None if summary_dim is None else nn.Linear(feature_dim, summary_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]`."""
        regions = features if self.embed is None else self.dropout(torch.relu(self.embed(features)))
        if self.embed_mean is None:
            return Encoded(masked_mean(regions, mask), regions, mask)
        summary = self.dropout(torch.relu(self.embed_mean(masked_mean(features, mask))))
        return Encoded(summary, regions, mask)
