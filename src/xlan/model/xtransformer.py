"""X-Transformer: X-Linear blocks in an encoder–decoder with feed-forward layers, as released.

Encoder layer: block and region update of Eq. 7, then a feed-forward layer on the regions. The image-level feature is
Eq. 9 with a LayerNorm behind it.

Decoder, with x the words and g their queries (one per word, as v̂ is the query in the encoder):

    g_t = LN(CELU(W_1 ṽ)) ⊙ LN(CELU(W_2 mean(x_1 … x_t)))
    each layer:  y = x + block(query g, keys x up to t)
                 g = LN(y + block(query LN(y), keys regions))
                 x = FeedForward(LN(ReLU(W [g, x]) + x))          except in the last layer
    logits of LN(GLU(W [g of every layer]))
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import Asking, Projected, masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.rows import RowGroups
from xlan.model.stack import RegionUpdate, StackLayer
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
from xlan.model.xlinear import XLinearAttention, activation
from xlan.types import StepTrace


class XTransformerEncoderLayer(nn.Module):
    """A block with its region update, and a feed-forward layer on the regions."""

    def __init__(self, attend: StackLayer, feed_forward: FeedForward) -> None:
        super().__init__()
        self.attend = attend
        self.feed_forward = feed_forward

    def forward(self, query: Tensor, regions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """`[B, D]`, `[B, N, D]`, `[B, N]` → the attended feature and the new regions."""
        attended, regions, _ = self.attend(query, regions, regions, mask)
        return attended, self.feed_forward(regions)


class XTransformerEncoder(LayeredEncoder):
    """`XTransformerEncoderLayer`s and image-level feature; see `LayeredEncoder`."""

    def __init__(self, feature_dim: int, layers: nn.ModuleList, *, dim: int, sigma: nn.Module, dropout: float) -> None:
        super().__init__(feature_dim, layers, dim=dim, sigma=sigma, dropout=dropout)
        self.W_G = nn.Linear(dim * (1 + len(layers)), dim)
        self.summary_norm = nn.LayerNorm(dim)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]`."""
        regions = self.embed_regions(features)
        found = [masked_mean(regions, mask)]
        for layer in self.layers:
            attended, regions = layer(found[-1], regions, mask)
            found.append(attended)
        return Encoded(self.summary_norm(self.W_G(torch.cat(found, dim=-1))), regions, mask)  # Eq. 9


class XTransformerDecoderLayer(nn.Module):
    """Two blocks, over words and over regions, and the update of the words.

    Args:
        words: block over the words so far.
        regions: block over the image's regions.
        update: updates the words with what was found; None in the last layer.
        feed_forward: on the updated words; None in the last layer.
        dim: width of the model.
        dropout: dropout on what the blocks found.
    """

    def __init__(
        self,
        *,
        words: XLinearAttention,
        regions: XLinearAttention,
        update: RegionUpdate | None,
        feed_forward: FeedForward | None,
        dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.words = words
        self.regions = regions
        self.cross_norm = nn.LayerNorm(dim)
        self.query_norm = nn.LayerNorm(dim)
        self.update = update
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        query: Tensor,
        words: Projected,
        regions: Projected,
        groups: RowGroups,
        *,
        allowed: Tensor | None,
        trace: bool,
    ) -> tuple[Tensor, Tensor, StepTrace | None]:
        """Words and queries `[R, L, D]`, both new; `words` are all words so far → new words, new queries."""
        y = x + self.dropout(self.words.attend(query, words, Asking(allowed)).feature)
        found, looked = ask_images(self.regions, self.cross_norm(y), regions, groups, trace=trace)
        query = self.query_norm(y + self.dropout(found))
        if self.update is not None and self.feed_forward is not None:
            x = self.feed_forward(self.update(query, x))
        return x, query, looked


class XTransformerDecoder(nn.Module):
    """The decoder; its state is passed in and out.

    Args:
        layers: `XTransformerDecoderLayer`s.
        vocab_size: number of ids.
        dim: width of the model.
        word_dropout: dropout on words.
        dropout: dropout on the first queries.
        logit_dropout: dropout in front of the logits, in teacher forcing only.
    """

    def __init__(
        self,
        layers: nn.ModuleList,
        *,
        vocab_size: int,
        dim: int,
        word_dropout: float,
        dropout: float,
        logit_dropout: float,
    ) -> None:
        super().__init__()
        self.word_input = WordInput(vocab_size, dim, dropout=word_dropout)
        self.query_of_image = nn.Sequential(nn.Linear(dim, dim), activation("celu"), nn.LayerNorm(dim))
        self.query_of_words = nn.Sequential(nn.Linear(dim, dim), activation("celu"), nn.LayerNorm(dim))
        self.dropout = Dropout(dropout)
        self.layers = layers
        self.join = nn.Sequential(nn.Linear((1 + len(layers)) * dim, 2 * dim), nn.GLU(), nn.LayerNorm(dim))
        self.logit_dropout = Dropout(logit_dropout)
        self.logits = nn.Linear(dim, vocab_size)

    def start(self, encoded: Encoded, *, trace: bool = False) -> TransformerState:
        """One row per image, no words yet."""
        return TransformerState.start(
            (layer.regions for layer in self._layers()),
            encoded,
            trace=trace,
            image=self.query_of_image(encoded.summary),
            prefix=torch.zeros_like(encoded.summary),
        )

    def _layers(self) -> list[XTransformerDecoderLayer]:
        return [cast(XTransformerDecoderLayer, layer) for layer in self.layers]

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Ids `[R]` → log-probabilities `[R, V]` and the state behind them."""
        assert state.image is not None
        assert state.prefix is not None
        x = self.word_input(tokens.unsqueeze(1), state.length)  # [R, 1, D]
        prefix = state.prefix + x.squeeze(1)
        mean = (prefix / (state.length + 1)).unsqueeze(1)
        query = self.dropout(state.image.index_select(0, state.groups.owner).unsqueeze(1) * self.query_of_words(mean))
        queries, caches, looked = [query], [], None
        for i, layer in enumerate(self._layers()):
            caches.append(state.words_with(i, layer.words, x))
            x, query, looked = layer(
                x, query, caches[-1], state.regions[i], state.groups, allowed=None, trace=state.wants_trace
            )
            queries.append(query)
        joined = self.join(torch.cat(queries, dim=-1)).squeeze(1)
        log_probs = F.log_softmax(self.logits(joined), dim=-1)
        return log_probs, state.after(tuple(caches), looked, prefix=prefix)

    def forward(
        self, encoded: Encoded, tokens: Tensor, lengths: Tensor, groups: RowGroups, *, scheduled_sampling: float = 0.0
    ) -> Tensor:
        """Logits of the real positions, `[lengths.sum(), V]`, from ids `[C, T]` (see `CaptionModel`)."""
        refuse_scheduled_sampling(scheduled_sampling)
        real, tokens = trim(tokens, lengths)
        x = self.word_input(tokens)  # [C, T, D]
        steps = torch.arange(1, tokens.shape[1] + 1, device=x.device, dtype=x.dtype).unsqueeze(1)
        mean = x.cumsum(dim=1) / steps
        image = self.query_of_image(encoded.summary).index_select(0, groups.owner).unsqueeze(1)
        query = self.dropout(image * self.query_of_words(mean))
        allowed = causal(tokens.shape[1], x.device)
        queries = [query[real]]
        for layer in self._layers():
            regions = layer.regions.projected(encoded.regions, encoded.regions, encoded.mask)
            words = layer.words.projected(x, x, None)
            x, query, _ = layer(x, query, words, regions, groups, allowed=allowed, trace=False)
            queries.append(query[real])
        joined = self.join(torch.cat(queries, dim=-1))
        return cast(Tensor, self.logits(self.logit_dropout(joined)))
