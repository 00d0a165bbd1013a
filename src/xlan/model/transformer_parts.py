"""What X-Transformer and the Transformer baseline share: positions, feed-forward, the state of decoding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from xlan.errors import ModelError
from xlan.lengths import real_positions
from xlan.model.attention import Asking, AttentionLayer, Projected
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.rows import RowGroups, RowState
from xlan.types import StepTrace

POSITION_BASE = 10_000.0


def positions(first: int, count: int, like: Tensor) -> Tensor:
    """Sinusoids of positions `first` to `first + count - 1`, `[count, D]`, sine on even and cosine on odd channels."""
    dim = like.shape[-1]
    where = torch.arange(first, first + count, device=like.device, dtype=torch.float32).unsqueeze(1)
    channel = torch.arange(0, dim, 2, device=like.device, dtype=torch.float32)
    angle = where * torch.exp(channel * -(math.log(POSITION_BASE) / dim))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :dim].to(like.dtype)


class WordInput(nn.Module):
    """`Dropout(LayerNorm(√D · embedding + position))`.

    Args:
        vocab_size: number of ids.
        dim: width of the words.
        dropout: dropout on the result.
    """

    def __init__(self, vocab_size: int, dim: int, *, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Ids `[R, L]`, the first of them at position `first` → `[R, L, D]`."""
        words = self.embed(tokens)
        words = math.sqrt(words.shape[-1]) * words + positions(first, tokens.shape[1], words)
        return cast(Tensor, self.dropout(self.norm(words)))


class FeedForward(nn.Module):
    """`LayerNorm(x + Dropout(W_2 Dropout(ReLU(W_1 x))))`.

    Args:
        dim: width of input and output.
        hidden_dim: width inside.
        dropout: dropout inside and behind.
    """

    def __init__(self, dim: int, hidden_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.linear_in = nn.Linear(dim, hidden_dim)
        self.linear_out = nn.Linear(hidden_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` → `[..., D]`."""
        hidden = self.dropout(torch.relu(self.linear_in(x)))
        return cast(Tensor, self.norm(x + self.dropout(self.linear_out(hidden))))


class LayeredEncoder(nn.Module):
    """Region embedding and layers; a subclass says how they are run.

    Args:
        feature_dim: width of the region features that come in.
        layers: the layers.
        dim: width of the model.
        sigma: activation of the region embedding.
        dropout: dropout on the embedded regions.
    """

    def __init__(self, feature_dim: int, layers: nn.ModuleList, *, dim: int, sigma: nn.Module, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Linear(feature_dim, dim)
        self.sigma = sigma
        self.embed_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.layers = layers

    def embed_regions(self, features: Tensor) -> Tensor:
        """`[B, N, feature_dim]` → `[B, N, D]`."""
        return cast(Tensor, self.dropout(self.embed_norm(self.sigma(self.embed(features)))))


def ask_images(
    attention: AttentionLayer, query: Tensor, cache: Projected, groups: RowGroups, *, trace: bool
) -> tuple[Tensor, StepTrace | None]:
    """Let rows `[R, L, D]` query the images they belong to; all L·K queries of an image go together."""
    grid = groups.to_images(query)  # [B, K, L, D]
    found = attention.attend(grid.flatten(1, 2), cache, Asking(return_attention=trace))
    feature = groups.to_rows(found.feature.view(grid.shape))
    if found.spatial is None:
        return feature, None

    def last_of_rows(x: Tensor) -> Tensor:
        return groups.to_rows(x.view(*grid.shape[:3], *x.shape[2:]))[:, -1]

    channel = None if found.channel is None else last_of_rows(found.channel)
    return feature, StepTrace(last_of_rows(found.spatial).mean(dim=1), channel)


@dataclass(frozen=True, kw_only=True)
class TransformerState(RowState):
    """R rows of a decoder with caches.

    Attributes:
        words: per layer, keys and values of the words so far, `[R, H, t, d]`; empty before the first word.
        regions: per layer, keys and values of the images, `[B, H, N, d]`.
        image: `[B, D]` the image's share of the first query (X-Transformer), else None.
        prefix: `[R, D]` sum of the words so far (X-Transformer), else None.
        length: number of words so far.
    """

    words: tuple[Projected, ...]
    regions: tuple[Projected, ...]
    image: Tensor | None
    prefix: Tensor | None
    length: int

    @classmethod
    def start(
        cls,
        attentions: Iterable[AttentionLayer],
        encoded: Encoded,
        *,
        trace: bool,
        image: Tensor | None = None,
        prefix: Tensor | None = None,
    ) -> TransformerState:
        """One row per image, no words yet; `attentions` are the layers that look at regions."""
        return cls(
            words=(),
            regions=tuple(layer.projected(encoded.regions, encoded.regions, encoded.mask) for layer in attentions),
            image=image,
            prefix=prefix,
            length=0,
            groups=RowGroups.regular(len(encoded), 1, encoded.regions.device),
            wants_trace=trace,
        )

    def words_with(self, layer: int, attention: AttentionLayer, new: Tensor) -> Projected:
        """Keys and values of the words so far in one layer, with the `new` one (`[R, 1, D]`) behind them."""
        added = attention.projected(new, new, None)
        return self.words[layer].append(added) if self.words else added

    def select(self, index: Tensor) -> TransformerState:
        """Rows `index`; images without a row are dropped once there are enough of them."""
        groups, kept = self.groups.select(index)
        return TransformerState(
            words=tuple(cache.select(index) for cache in self.words),
            regions=self.regions if kept is None else tuple(cache.select(kept) for cache in self.regions),
            image=self.image if kept is None or self.image is None else self.image.index_select(0, kept),
            prefix=None if self.prefix is None else self.prefix.index_select(0, index),
            length=self.length,
            groups=groups,
            wants_trace=self.wants_trace,
        )

    def after(
        self, words: tuple[Projected, ...], trace: StepTrace | None, *, prefix: Tensor | None = None
    ) -> TransformerState:
        """The state behind one word more."""
        return replace(self, words=words, trace=trace, prefix=prefix, length=self.length + 1)


def causal(length: int, device: torch.device) -> Tensor:
    """`[T, T]` bool: word t may see words 0 to t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def trim(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Which positions are real, and ids without columns that no caption reaches."""
    real = real_positions(lengths, tokens.shape[1])
    if torch.compiler.is_compiling():
        return real, tokens
    words = int(lengths.max())
    return real[:, :words], tokens[:, :words]


def refuse_scheduled_sampling(probability: float) -> None:
    """A decoder that sees all words at once cannot feed itself its own."""
    if probability > 0.0:
        raise ModelError(
            f"scheduled_sampling: a Transformer reads all words at once and takes only 0, got {probability}; "
            "use it with X-LAN"
        )
