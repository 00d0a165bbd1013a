"""Attention layers as graphs: what `xlan.model.attention`, `.xlinear` and `.transformer_parts` compute.

A layer is used in two moves, as there: `project` regions once, then `attend` with queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from xlan.export.graph import Graph

CELU_ALPHA = 1.3  # of the released code


@dataclass(frozen=True)
class Mask:
    """Which regions exist, in the two forms that layers need.

    Attributes:
        bias: `[B, 1, 1, N]`, 0 where a region exists and -inf elsewhere; added to scores.
        mean: `[B, 1, 1, N]`, weights of a mean over the regions that exist.
    """

    bias: str
    mean: str


@dataclass(frozen=True)
class Cache:
    """Projected keys and values of B images, `[B, H, N, d]` each; `mask` is None when all regions exist."""

    keys: str
    values: str
    mask: Mask | None


@dataclass(frozen=True)
class Found:
    """What Q queries found: `feature` `[B, Q, D]`, `spatial` `[B, Q, N]` averaged over heads, `channel` `[B, Q, D]`."""

    feature: str
    spatial: str
    channel: str | None


class Layer(Protocol):
    """An attention layer whose queries, keys and values have one width."""

    @property
    def heads(self) -> int:
        """Heads of keys and values."""

    @property
    def key_width(self) -> int:
        """Width of a head's keys."""

    @property
    def value_width(self) -> int:
        """Width of a head's values."""

    def project(self, g: Graph, regions: str, mask: Mask | None) -> Cache:
        """Keys and values of regions `[B, N, D]`, projected."""

    def attend(self, g: Graph, query: str, cache: Cache) -> Found:
        """Ask with queries `[B, Q, D]`."""


def activation(g: Graph, x: str, sigma: str) -> str:
    """σ by its name in a spec."""
    if sigma == "celu":
        return g.op("Celu", x, alpha=CELU_ALPHA)
    return g.op({"relu": "Relu", "elu": "Elu"}[sigma], x)


def masked_softmax(g: Graph, scores: str, mask: Mask | None) -> str:
    """Softmax of `[B, H, Q, N]` over the regions that exist."""
    return g.op("Softmax", scores if mask is None else g.add(scores, mask.bias), axis=-1)


def _mean_over_heads(g: Graph, weights: str) -> str:
    return g.mean(weights, 1)


def _join_heads(g: Graph, x: str, width: int) -> str:
    """`[B, H, Q, d]` → `[B, Q, H · d]`."""
    return g.reshape(g.transpose(x, 0, 2, 1, 3), 0, 0, width)


class HeadWidth:
    """The widths of a layer whose heads share its width."""

    dim: int
    heads: int

    @property
    def key_width(self) -> int:
        """Width of a head."""
        return self.dim // self.heads

    @property
    def value_width(self) -> int:
        """Width of a head."""
        return self.key_width


@dataclass(frozen=True)
class XLinear(HeadWidth):
    """The X-Linear block of Eq. 2–6.

    Attributes:
        name: of the layer in the weights.
        dim: width of queries, keys, values and result.
        heads: heads.
        hidden_dim: D_c, per head.
        sigma: σ of the projections.
        released: biases, and a norm behind every projection.
    """

    name: str
    dim: int
    heads: int
    hidden_dim: int
    sigma: str
    released: bool

    def _project(self, g: Graph, x: str, side: str) -> str:
        """One side of bilinear pooling: `[B, L, D]` → `[B, H, L, d]`."""
        name = f"{self.name}.{side}"
        y = activation(g, g.linear(x, f"{name}.linear", self.dim, self.dim, bias=self.released), self.sigma)
        y = g.reshape(y, 0, 0, self.heads, self.key_width)
        if self.released:
            y = g.head_norm(y, f"{name}.norm", self.heads, self.key_width)
        return g.transpose(y, 0, 2, 1, 3)

    def project(self, g: Graph, regions: str, mask: Mask | None, *, values: str | None = None) -> Cache:
        """`σ(W_k k_i)` and `σ(W_v v_i)`; values are the regions themselves unless given."""
        return Cache(self._project(g, regions, "keys"), self._project(g, values or regions, "values"), mask)

    def attend(self, g: Graph, query: str, cache: Cache) -> Found:
        """Eq. 2–6 for queries `[B, Q, D]`."""
        q = self._project(g, query, "query_for_keys")
        product = g.mul(g.unsqueeze(q, 3), g.unsqueeze(cache.keys, 2))  # [B, H, Q, N, d]
        width, hidden_dim, bias = self.key_width, self.hidden_dim, self.released
        hidden = g.op("Relu", g.linear(product, f"{self.name}.W_B", width, hidden_dim, bias=bias))
        scores = g.squeeze(g.linear(hidden, f"{self.name}.W_b", hidden_dim, 1, bias=bias), 4)  # [B, H, Q, N]
        weights = masked_softmax(g, scores, cache.mask)
        if cache.mask is None:
            described = g.mean(hidden, 3)  # Eq. 4: [B, H, Q, c]
        else:
            described = g.squeeze(g.op("MatMul", g.unsqueeze(cache.mask.mean, 3), hidden), 3)
        channel = g.op("Sigmoid", g.linear(described, f"{self.name}.W_e", hidden_dim, width, bias=bias))
        pooled = g.op("MatMul", weights, cache.values)  # [B, H, Q, d]
        attended = g.mul(g.mul(channel, pooled), self._project(g, query, "query_for_values"))
        return Found(
            _join_heads(g, attended, self.dim), _mean_over_heads(g, weights), _join_heads(g, channel, self.dim)
        )


@dataclass(frozen=True)
class Conventional:
    """The attention of Eq. 1, one head; values stay as they are.

    Attributes:
        name: of the layer in the weights.
        query_dim: width of the queries.
        value_width: width of the regions.
        key_width: width inside the tanh.
        heads: always 1.
    """

    name: str
    query_dim: int
    value_width: int
    key_width: int
    heads: int = 1

    def project(self, g: Graph, regions: str, mask: Mask | None) -> Cache:
        """`W_k k_i`, and the regions themselves."""
        keys = g.linear(regions, f"{self.name}.W_k", self.value_width, self.key_width, bias=False)
        return Cache(g.unsqueeze(keys, 1), g.unsqueeze(regions, 1), mask)

    def attend(self, g: Graph, query: str, cache: Cache) -> Found:
        """Eq. 1 for queries `[B, Q, D]`."""
        asked = g.unsqueeze(g.linear(query, f"{self.name}.W_q", self.query_dim, self.key_width), 2)
        hidden = g.op("Tanh", g.add(cache.keys, asked))  # [B, Q, N, hidden]
        scores = g.linear(hidden, f"{self.name}.W_a", self.key_width, 1, bias=False)
        weights = masked_softmax(g, g.unsqueeze(g.squeeze(scores, 3), 1), cache.mask)  # [B, 1, Q, N]
        return Found(g.squeeze(g.op("MatMul", weights, cache.values), 1), _mean_over_heads(g, weights), None)


@dataclass(frozen=True)
class MultiHead(HeadWidth):
    """Scaled dot-product attention with heads and, unless `project_output` is off, an output projection."""

    name: str
    dim: int
    heads: int
    project_output: bool = True

    def project(self, g: Graph, regions: str, mask: Mask | None) -> Cache:
        """Keys and values of regions `[B, N, D]`."""
        keys, values = (g.linear(regions, f"{self.name}.{side}", self.dim, self.dim) for side in ("W_k", "W_v"))
        return Cache(split_heads(g, keys, self.heads, self.dim), split_heads(g, values, self.heads, self.dim), mask)

    def attend(self, g: Graph, query: str, cache: Cache) -> Found:
        """Attend with queries `[B, Q, D]`."""
        q = split_heads(g, g.linear(query, f"{self.name}.W_q", self.dim, self.dim), self.heads, self.dim)
        found = dot_product(g, q, cache, self.dim, self.key_width)
        if not self.project_output:
            return found
        return Found(g.linear(found.feature, f"{self.name}.W_o", self.dim, self.dim), found.spatial, None)


def split_heads(g: Graph, x: str, heads: int, dim: int) -> str:
    """`[B, L, D]` → `[B, H, L, d]`."""
    return g.transpose(g.reshape(x, 0, 0, heads, dim // heads), 0, 2, 1, 3)


def dot_product(g: Graph, query: str, cache: Cache, dim: int, width: int) -> Found:
    """Scaled dot-product attention of queries `[B, H, Q, width]`; the heads' results stand side by side."""
    q = g.mul(query, g.number(1 / math.sqrt(width)))
    weights = masked_softmax(g, g.op("MatMul", q, g.transpose(cache.keys, 0, 1, 3, 2)), cache.mask)
    return Found(_join_heads(g, g.op("MatMul", weights, cache.values), dim), _mean_over_heads(g, weights), None)
