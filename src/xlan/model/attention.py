"""What every attention layer here has in common, and the conventional attention of Eq. 1.

A layer is used in two moves, because a decoder asks many queries of the same image:

    cache = layer.project(regions, mask=mask)      # once per image
    attended = layer(query, cache)                 # once per word, beam or caption

Both check what they are given. Inside a model, whose input was checked at its own border, `projected` and `attend` do
the same without checking again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.errors import ShapeError
from xlan.model.dropout import Dropout
from xlan.model.recurrent_linear import LinearFunction


@dataclass(frozen=True)
class Projected:
    """Keys and values of B images, projected once and asked many times.

    Attributes:
        keys: `[B, H, N, d]` (H heads of width d).
        values: `[B, H, N, d']`.
        mask: `[B, N]` bool, True where a region exists; None when all do.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    def select(self, index: Tensor) -> Projected:
        """Images `index` (`[B']`) of this cache."""
        mask = None if self.mask is None else self.mask[index]
        return Projected(self.keys.index_select(0, index), self.values.index_select(0, index), mask)

    def append(self, other: Projected) -> Projected:
        """This cache with the regions of `other` behind its own; both without mask."""
        return Projected(torch.cat([self.keys, other.keys], 2), torch.cat([self.values, other.values], 2), None)


class Attended(NamedTuple):
    """What a layer found.

    Attributes:
        feature: `[B, D]` or `[B, Q, D]`, like the query.
        spatial: `[B, H, N]` or `[B, Q, H, N]` attention over regions; None unless asked for.
        channel: `[B, D]` or `[B, Q, D]` channel gate (Eq. 5); None unless asked for, or where there is no gate.
    """

    feature: Tensor
    spatial: Tensor | None
    channel: Tensor | None


class Asking(NamedTuple):
    """How a layer is queried.

    Attributes:
        allowed: `[Q, N]` or `[B, Q, N]` bool, which regions each query may see (causal attention); None for all.
        return_attention: also return the distributions over regions and channels.
        linear: applies the layers on the query's side; a loop over time passes `RecurrentLinear()`.
    """

    allowed: Tensor | None = None
    return_attention: bool = False
    linear: LinearFunction = F.linear


PLAINLY = Asking()


class AttentionLayer(nn.Module, ABC):
    """The interface of conventional, multi-head and X-Linear attention.

    Args:
        query_dim: width D_q of the queries.
        key_dim: width D_k of the keys.
        value_dim: width D_v of the values.
    """

    def __init__(self, query_dim: int, key_dim: int, value_dim: int) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.key_dim = key_dim
        self.value_dim = value_dim

    def project(self, keys: Tensor, values: Tensor | None = None, *, mask: Tensor | None = None) -> Projected:
        """Project keys `[B, N, D_k]` and values `[B, N, D_v]` (default: the keys) for later queries.

        Args:
            keys: what queries are compared with.
            values: what is attended to; only for layers that tell the two apart.
            mask: `[B, N]` bool, True where a region exists; None when all do.
        """
        return self.projected(*check_keys_and_values(keys, values, mask, self.key_dim, self.value_dim))

    def forward(
        self,
        query: Tensor,
        cache: Projected,
        *,
        allowed: Tensor | None = None,
        return_attention: bool = False,
        linear: LinearFunction = F.linear,
    ) -> Attended:
        """Attend with one query per image or a sequence of them.

        Args:
            query: `[B, D_q]` or `[B, Q, D_q]`.
            cache: what `project` returned for the same B images.
            allowed: `[Q, N]` or `[B, Q, N]` bool, which regions each query may see (causal attention); default all.
            return_attention: also return the distributions over regions and channels.
            linear: applies the layers on the query's side; a loop over time passes `RecurrentLinear()`.
        """
        check_query(query, self.query_dim, cache, allowed)
        queries = query if query.dim() == 3 else query.unsqueeze(1)
        found = self.attend(queries, cache, Asking(allowed, return_attention, linear))
        if query.dim() == 3:
            return found
        return Attended(*(None if tensor is None else tensor.squeeze(1) for tensor in found))  # type: ignore[arg-type]

    @abstractmethod
    def projected(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Projected:
        """`project` without checks: finite keys and values of the right shapes, a mask only where one is needed."""

    @abstractmethod
    def attend(self, queries: Tensor, cache: Projected, asking: Asking = PLAINLY) -> Attended:
        """Calling the layer without checks; queries are always `[B, Q, D_q]`, and so is what is returned."""


def check_regions(name: str, regions: Tensor, width: int, mask: Tensor | None) -> Tensor | None:
    """Check regions and their mask; `name` is used in the message.

    Returns:
        The mask, or None when every region exists.

    Raises:
        ShapeError: wrong rank or width, a mask that is not boolean or not `[B, N]`, or an image without any region.
    """
    if regions.dim() != 3 or regions.shape[-1] != width:
        raise ShapeError(f"{name}: expected shape [images, regions, {width}], got {list(regions.shape)}")
    if regions.shape[1] == 0:
        raise ShapeError(f"{name}: expected at least one region per image, got shape {list(regions.shape)}")
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise ShapeError(f"mask: expected a boolean tensor (True = region exists), got {mask.dtype}; use mask.bool()")
    if mask.shape != regions.shape[:2]:
        raise ShapeError(f"mask: expected shape {list(regions.shape[:2])}, got {list(mask.shape)}")
    if torch.compiler.is_compiling():
        return mask
    counts = mask.sum(dim=1).tolist()
    if 0 in counts:
        image = counts.index(0)
        raise ShapeError(f"mask: image {image} of the batch has no valid region; every image needs at least one")
    return None if min(counts, default=0) == mask.shape[1] else mask


def check_keys_and_values(
    keys: Tensor, values: Tensor | None, mask: Tensor | None, key_dim: int, value_dim: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check keys `[B, N, D_k]`, values `[B, N, D_v]` (default: the keys) and their mask, and blank the padding.

    Returns:
        Keys and values with zeros in padding, and the mask, which is None when every region exists.
    """
    mask = check_regions("keys", keys, key_dim, mask)
    blanked = blank_padding(keys, mask)
    if values is None:
        return blanked, blanked, mask
    check_regions("values", values, value_dim, None)
    if values.shape[:2] != keys.shape[:2]:
        raise ShapeError(f"values: expected one per key {list(keys.shape[:2])}, got {list(values.shape[:2])}")
    return blanked, blank_padding(values, mask), mask


def check_query(query: Tensor, width: int, cache: Projected, allowed: Tensor | None) -> None:
    """Refuse a query that is not `[images, width]` or `[images, queries, width]`, and a wrong `allowed`."""
    images = cache.keys.shape[0]
    if query.dim() not in (2, 3) or query.shape[-1] != width or query.shape[0] != images:
        raise ShapeError(
            f"query: expected shape [{images}, {width}] or [{images}, queries, {width}], got {list(query.shape)}"
        )
    if allowed is not None:
        check_allowed(allowed, (images, query.shape[1] if query.dim() == 3 else 1, cache.keys.shape[2]))


def blank_padding(regions: Tensor, mask: Tensor | None) -> Tensor:
    """`regions` with zeros where the mask is False: whatever was there, even NaN, has no effect from here on."""
    return regions if mask is None else regions.masked_fill(~mask.unsqueeze(-1), 0.0)


def masked_mean(regions: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of `[B, N, D]` over the valid regions: `[B, D]`."""
    if mask is None:
        return regions.mean(dim=1)
    weights = mask.to(regions.dtype).unsqueeze(-1)
    return (regions * weights).sum(dim=1) / weights.sum(dim=1)


def check_allowed(allowed: Tensor, shape: tuple[int, int, int]) -> None:
    """Refuse a mask of what queries may see that is not boolean `[Q, N]` or `[B, Q, N]`, or lets one see nothing."""
    if allowed.dtype != torch.bool or tuple(allowed.shape) not in (shape, shape[1:]):
        raise ShapeError(
            f"allowed: expected a boolean tensor {list(shape[1:])} or {list(shape)}, "
            f"got {allowed.dtype} {list(allowed.shape)}"
        )
    if not torch.compiler.is_compiling() and not bool(allowed.any(-1).all()):
        raise ShapeError("allowed: a query may see no region at all; every query needs at least one")


def attention_mask(cache_mask: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """Join "the region exists" `[B, N]` and "this query may look there" `[Q, N]` or `[B, Q, N]` into `[B, 1, Q, N]`."""
    mask = None if cache_mask is None else cache_mask[:, None, None, :]
    if allowed is None:
        return mask
    allowed = (allowed if allowed.dim() == 3 else allowed.unsqueeze(0)).unsqueeze(1)
    return allowed if mask is None else mask & allowed


def spatial_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of `[B, H, Q, N]` over the regions that exist; others get exactly 0."""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return F.softmax(scores, dim=-1)


class ConventionalAttention(AttentionLayer):
    """Eq. 1: `a_i = W_a tanh(W_k k_i + W_q Q)`, `α = softmax(a)`, attended feature `Σ α_i v_i`.

    Args:
        query_dim: width of the query.
        region_dim: width of keys and values, and of the attended feature.
        hidden_dim: width inside the tanh.
        dropout: dropout on the tanh's output while training.
    """

    def __init__(self, query_dim: int, region_dim: int, *, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__(query_dim, region_dim, region_dim)
        self.W_k = nn.Linear(region_dim, hidden_dim, bias=False)
        self.W_q = nn.Linear(query_dim, hidden_dim)
        self.W_a = nn.Linear(hidden_dim, 1, bias=False)
        self.dropout = Dropout(dropout)

    def projected(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Projected:
        """Keys go through `W_k`; values stay as they are: `[B, 1, N, ·]` each."""
        return Projected(self.W_k(keys).unsqueeze(1), values.unsqueeze(1), mask)

    def attend(self, queries: Tensor, cache: Projected, asking: Asking = PLAINLY) -> Attended:
        """Attend with queries `[B, Q, D_q]`; see `AttentionLayer`."""
        asked = asking.linear(queries, self.W_q.weight, self.W_q.bias)
        hidden = torch.tanh(cache.keys + asked.unsqueeze(2))  # [B, Q, N, hidden]
        scores = self.W_a(self.dropout(hidden)).squeeze(-1).unsqueeze(1)  # [B, 1, Q, N]
        alpha = spatial_softmax(scores, attention_mask(cache.mask, asking.allowed))
        attended = torch.matmul(alpha, cache.values).squeeze(1)  # [B, Q, D]
        return Attended(attended, alpha.transpose(1, 2) if asking.return_attention else None, None)  # α: [B, Q, 1, N]
