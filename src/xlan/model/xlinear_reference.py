"""The X-Linear block, slow and obvious: one image, one query, one region after the other, Eq. 2–6 as they stand.

`XLinearAttention` is tested against this; read it beside the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xlan.model.xlinear import XLinearAttention


def xlinear_reference(
    block: XLinearAttention, query: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend with the weights of `block` (without dropout).

    Args:
        block: whose weights to use.
        query: Q, `[D_q]`.
        keys: k_1 … k_N, `[N, D_k]`.
        values: v_1 … v_N, `[N, D_v]`.

    Returns:
        The attended feature v̂ `[D_B]`, the spatial attention β^s `[H, N]` and the channel attention β^c `[D_B]`.
    """
    regions, heads = keys.shape[0], block.heads

    def by_head(x: Tensor) -> Tensor:
        return x.view(heads, -1)

    def one(projection: torch.nn.Module, x: Tensor) -> Tensor:
        return by_head(projection(x.unsqueeze(0)).squeeze(0))

    query_for_keys = one(block.query_for_keys, query)  # σ(W_q^k Q)
    query_for_values = one(block.query_for_values, query)  # σ(W_q^v Q)
    features, spatials, channels = [], [], []
    for head in range(heads):
        transformed, enhanced = [], []
        for i in range(regions):
            joint = one(block.keys, keys[i])[head] * query_for_keys[head]  # Eq. 2: B^k_i
            transformed.append(torch.relu(block.W_B(joint)))  # Eq. 3: B'^k_i
            enhanced.append(one(block.values, values[i])[head] * query_for_values[head])  # Eq. 6: B^v_i
        scores = torch.stack([block.W_b(b)[0] for b in transformed])  # Eq. 3: b^s
        spatial = torch.softmax(scores, dim=0)  # Eq. 3: β^s
        mean = sum(transformed, torch.zeros_like(transformed[0])) / regions  # Eq. 4
        channel = torch.sigmoid(block.W_e(mean))  # Eq. 5: β^c
        pooled = sum((spatial[i] * enhanced[i] for i in range(regions)), torch.zeros_like(enhanced[0]))
        features.append(channel * pooled)  # Eq. 6
        spatials.append(spatial)
        channels.append(channel)
    return torch.cat(features), torch.stack(spatials), torch.cat(channels)
