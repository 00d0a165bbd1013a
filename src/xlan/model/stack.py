"""The stack of X-Linear blocks with key/value update, Eq. 7: interactions of order 2M from M blocks.

Block m attends with the feature that block m-1 found; then every region is updated with what was found:

    v̂(m)   = F_X-Linear(K(m-1), V(m-1), v̂(m-1))
    k_i(m) = LayerNorm(σ(W^k_m [v̂(m), k_i(m-1)]) + k_i(m-1)),  v_i(m) likewise with W^v_m

The paper updates keys and values with separate matrices; the released code has one tensor that is both
(`separate_values=False`). `W [v̂, k_i]` is computed as `W_v̂ v̂ + W_k k_i`: the first half once per image, not per region.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.errors import ModelError
from xlan.model.attention import check_keys_and_values
from xlan.model.dropout import Dropout
from xlan.model.xlinear import XLinearAttention


class RegionUpdate(nn.Module):
    """`LayerNorm(ReLU(W [v̂, x_i]) + x_i)`: the second half of Eq. 7.

    Args:
        dim: width of regions and attended feature.
        dropout: dropout on the update while training.
    """

    def __init__(self, dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, dim)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, attended: Tensor, regions: Tensor) -> Tensor:
        """Update `[B, N, D]` with `[B, D]` (one feature per image) or `[B, N, D]` (one per region)."""
        dim = regions.shape[-1]
        for_attended, for_regions = torch.split(self.linear.weight, dim, dim=1)
        shared = F.linear(attended, for_attended, self.linear.bias)
        shared = shared.unsqueeze(1) if shared.dim() == 2 else shared
        update = torch.relu(F.linear(regions, for_regions) + shared)
        return cast(Tensor, self.norm(self.dropout(update) + regions))


class Stacked(NamedTuple):
    """What M blocks found: `features` M × `[B, D]`, `keys` and `values` `[B, N, D]` after the last update."""

    features: list[Tensor]
    keys: Tensor
    values: Tensor


class StackLayer(nn.Module):
    """One block and the update of the regions behind it.

    Args:
        block: an X-Linear block whose query, keys, values and result have one width.
        update_keys: update for the keys; None when nothing reads the keys after this layer.
        update_values: update for the values; None when keys and values are one tensor.
        dropout: dropout on the attended feature while training.
    """

    def __init__(
        self,
        block: XLinearAttention,
        *,
        update_keys: RegionUpdate | None,
        update_values: RegionUpdate | None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.block = block
        self.update_keys = update_keys
        self.update_values = update_values
        self.dropout = Dropout(dropout)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`[B, D]`, `[B, N, D]`, `[B, N, D]`, `[B, N]` → the attended feature, new keys and new values."""
        cache = self.block.projected(keys, values, mask)
        attended = self.dropout(self.block.attend(query.unsqueeze(1), cache).feature.squeeze(1))
        if self.update_keys is not None:
            keys = self.update_keys(attended, keys)
        values = keys if self.update_values is None else self.update_values(attended, values)
        return attended, keys, values


class XLinearStack(nn.Module):
    """M X-Linear blocks in sequence, Eq. 7.

    Args:
        dim: width of queries, keys, values and D_B.
        depth: number of blocks M.
        hidden_dim: D_c per head.
        heads: heads of every block.
        activation: σ of the blocks (`relu`, `elu`, `celu`).
        normalise: GroupNorm after every projection of the blocks.
        bias: biases in the blocks.
        separate_values: keys and values have updates of their own, as the paper writes it; else they are one tensor.
        update_last_keys: also update the keys behind the last block (only where something reads them).
        block_dropout: dropout on B' inside the blocks.
        dropout: dropout on every attended feature.
        update_dropout: dropout on the update of the regions.
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        hidden_dim: int,
        heads: int = 1,
        activation: str = "relu",
        normalise: bool = False,
        bias: bool = False,
        separate_values: bool = True,
        update_last_keys: bool = True,
        block_dropout: float = 0.0,
        dropout: float = 0.0,
        update_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if depth < 0:
            raise ModelError(f"depth: expected 0 or more blocks, got {depth}")
        self.dim = dim
        self.separate_values = separate_values
        self.layers = nn.ModuleList(
            StackLayer(
                XLinearAttention(
                    dim,
                    bilinear_dim=dim,
                    hidden_dim=hidden_dim,
                    heads=heads,
                    activation=activation,
                    normalise=normalise,
                    bias=bias,
                    dropout=block_dropout,
                ),
                update_keys=(
                    RegionUpdate(dim, dropout=update_dropout)
                    if not separate_values or update_last_keys or m < depth - 1
                    else None
                ),
                update_values=RegionUpdate(dim, dropout=update_dropout) if separate_values else None,
                dropout=dropout,
            )
            for m in range(depth)
        )

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Stacked:
        """Run the stack on a query `[B, D]`, keys and values `[B, N, D]` (default: the keys), region mask `[B, N]`."""
        if values is not None and not self.separate_values:
            raise ModelError("values: this stack was built with separate_values=False, it takes keys only")
        return self.run(query, *check_keys_and_values(keys, values, mask, self.dim, self.dim))

    def run(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Stacked:
        """The same without checks; where keys and values are one tensor, it is passed twice."""
        features = []
        for layer in self.layers:
            query, keys, values = layer(query, keys, values, mask)
            features.append(query)
        return Stacked(features, keys, values)
