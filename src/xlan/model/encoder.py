"""X-LAN's image encoder (§3.3): region features → refined regions and one image-level feature.

    v_i          region embedding (released form: CELU and dropout)
    v̂(0) = mean of the regions, v̂(m), V(m) = the stack of Eq. 7
    ṽ    = W_G [v̂(0), v̂(1), …]                              Eq. 9 (released form: followed by a LayerNorm)

With depth 0 this is the ablation's encoder: regions as embedded, ṽ = W_G v̂(0).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xlan.model.attention import masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded, check_features
from xlan.model.stack import XLinearStack


class XLANEncoder(nn.Module):
    """Region embedding, stack and image-level feature.

    Args:
        feature_dim: width of the region features that come in.
        stack: the blocks; its width is the model's width.
        dim: width of the model.
        sigma: activation of the region embedding; None for a linear embedding.
        dropout: dropout on the embedded regions.
        normalise_summary: LayerNorm after W_G.
    """

    def __init__(
        self,
        feature_dim: int,
        stack: XLinearStack,
        *,
        dim: int,
        sigma: nn.Module | None,
        dropout: float,
        normalise_summary: bool,
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.embed = nn.Linear(feature_dim, dim)
        self.sigma = nn.Identity() if sigma is None else sigma
        self.dropout = Dropout(dropout)
        self.stack = stack
        self.W_G = nn.Linear(dim * (1 + len(stack.layers)), dim)
        self.summary_norm = nn.LayerNorm(dim) if normalise_summary else nn.Identity()

    def embed_regions(self, features: Tensor) -> Tensor:
        """`[B, N, feature_dim]` → `[B, N, D]`."""
        embedded: Tensor = self.dropout(self.sigma(self.embed(features)))
        return embedded

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]`."""
        regions = self.embed_regions(check_features(features, self.feature_dim, mask))
        mean = masked_mean(regions, mask)  # v̂(0)
        found = self.stack(mean, regions, mask=mask)
        summary = self.summary_norm(self.W_G(torch.cat([mean, *found.features], dim=-1)))  # Eq. 9
        return Encoded(summary, found.values, mask)
