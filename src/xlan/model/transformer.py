"""The Transformer baseline: plain multi-head attention in the skeleton of X-Transformer.

Encoder: regions attend to one another. Decoder: words attend to the words before them, then to the regions. Every
attention is followed by a residual and a LayerNorm, then by a feed-forward layer (post-norm, as in the original).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import Asking, Projected, masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.multihead import MultiHeadAttention
from xlan.model.rows import RowGroups
from xlan.model.transformer_parts import (
    FeedForward,
    LayeredEncoder,
    TransformerState,
    WordInput,
    ask_images,
    causal,
    refuse_scheduled_sampling,
    trim,
)
from xlan.types import StepTrace


class TransformerEncoderLayer(nn.Module):
    """Self-attention over regions and a feed-forward layer."""

    def __init__(self, attention: MultiHeadAttention, feed_forward: FeedForward, *, dim: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(dim)
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)

    def forward(self, regions: Tensor, mask: Tensor | None) -> Tensor:
        """`[B, N, D]` with region mask `[B, N]` → `[B, N, D]`."""
        found = self.attention.attend(regions, self.attention.projected(regions, regions, mask)).feature
        return cast(Tensor, self.feed_forward(self.norm(regions + self.dropout(found))))


class TransformerEncoder(LayeredEncoder):
    """`TransformerEncoderLayer`s; the image-level feature is the mean of the regions (the decoder does not use it)."""

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]`."""
        regions = self.embed_regions(features)
        for layer in self.layers:
            regions = layer(regions, mask)
        return Encoded(masked_mean(regions, mask), regions, mask)


class TransformerDecoderLayer(nn.Module):
    """Attention over words, attention over regions, feed-forward."""

    def __init__(
        self,
        *,
        words: MultiHeadAttention,
        regions: MultiHeadAttention,
        feed_forward: FeedForward,
        dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.words = words
        self.words_norm = nn.LayerNorm(dim)
        self.regions = regions
        self.regions_norm = nn.LayerNorm(dim)
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        words: Projected,
        regions: Projected,
        groups: RowGroups,
        *,
        allowed: Tensor | None,
        trace: bool,
    ) -> tuple[Tensor, StepTrace | None]:
        """New words `[R, L, D]`; `words` are all words so far."""
        x = self.words_norm(x + self.dropout(self.words.attend(x, words, Asking(allowed)).feature))
        found, looked = ask_images(self.regions, x, regions, groups, trace=trace)
        return self.feed_forward(self.regions_norm(x + self.dropout(found))), looked


class TransformerDecoder(nn.Module):
    """The decoder; its state is passed in and out.

    Args:
        layers: `TransformerDecoderLayer`s.
        vocab_size: number of ids.
        dim: width of the model.
        word_dropout: dropout on words.
        logit_dropout: dropout in front of the logits, in teacher forcing only.
    """

    def __init__(
        self, layers: nn.ModuleList, *, vocab_size: int, dim: int, word_dropout: float, logit_dropout: float
    ) -> None:
        super().__init__()
        self.word_input = WordInput(vocab_size, dim, dropout=word_dropout)
        self.layers = layers
        self.logit_dropout = Dropout(logit_dropout)
        self.logits = nn.Linear(dim, vocab_size)

    def _layers(self) -> list[TransformerDecoderLayer]:
        return [cast(TransformerDecoderLayer, layer) for layer in self.layers]

    def start(self, encoded: Encoded, *, trace: bool = False) -> TransformerState:
        """One row per image, no words yet."""
        return TransformerState.start((layer.regions for layer in self._layers()), encoded, trace=trace)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Ids `[R]` → log-probabilities `[R, V]` and the state behind them."""
        x = self.word_input(tokens.unsqueeze(1), state.length)
        caches, looked = [], None
        for i, layer in enumerate(self._layers()):
            caches.append(state.words_with(i, layer.words, x))
            x, looked = layer(x, caches[-1], state.regions[i], state.groups, allowed=None, trace=state.wants_trace)
        log_probs = F.log_softmax(self.logits(x.squeeze(1)), dim=-1)
        return log_probs, state.after(tuple(caches), looked)

    def forward(
        self, encoded: Encoded, tokens: Tensor, lengths: Tensor, groups: RowGroups, *, scheduled_sampling: float = 0.0
    ) -> Tensor:
        """Logits of the real positions, `[lengths.sum(), V]`, from ids `[C, T]` (see `CaptionModel`)."""
        refuse_scheduled_sampling(scheduled_sampling)
        real, tokens = trim(tokens, lengths)
        x = self.word_input(tokens)
        allowed = causal(tokens.shape[1], x.device)
        for layer in self._layers():
            regions = layer.regions.projected(encoded.regions, encoded.regions, encoded.mask)
            x, _ = layer(x, layer.words.projected(x, x, None), regions, groups, allowed=allowed, trace=False)
        return cast(Tensor, self.logits(self.logit_dropout(x[real])))
