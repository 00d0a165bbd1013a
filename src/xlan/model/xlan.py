"""X-LAN (§3.3): an encoder that refines regions, and an LSTM whose hidden state queries them through attention.

Encoder, region features → refined regions and one image-level feature:

    v_i          region embedding (released form: CELU and dropout)
    v̂(0) = mean of the regions, v̂(m), V(m) = the stack of Eq. 7
    ṽ    = W_G [v̂(0), v̂(1), …]                              Eq. 9 (released form: followed by a LayerNorm)

With depth 0 this is the ablation's encoder: regions as embedded, ṽ = W_G v̂(0).

Decoder:

    h_t = LSTM([w_t, ṽ, c_{t-1}], h_{t-1})       released form: ṽ and c_{t-1} are added, not concatenated
    v̂_d = attention(h_t, regions)                X-Linear, or Eq. 1 in the ablation
    c_t = GLU(W [v̂_d, h_t])                      released form: v̂_d first becomes LayerNorm(W' [h_t, v̂_d])
    p(w_{t+1}) = softmax(W_p c_t)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import AttentionLayer, masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.recurrent import ImageMemory, RecurrentDecoder, Tools, Vectors, WordArguments, lstm_cell
from xlan.model.stack import XLinearStack
from xlan.types import StepTrace


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
        regions = self.embed_regions(features)
        mean = masked_mean(regions, mask)  # v̂(0)
        found = self.stack.run(mean, regions, regions, mask)
        summary = self.summary_norm(self.W_G(torch.cat([mean, *found.features], dim=-1)))  # Eq. 9
        return Encoded(summary, found.values, mask)


class LSTMDecoder(RecurrentDecoder):
    """The decoder of X-LAN, and of AoANet; its state is hidden state, cell and context, each `[R, D]`.

    Args:
        dim: width of words, hidden state, context, regions and attended feature.
        attention: the attention layer asked by the hidden state.
        add_summary: add ṽ to the previous context (released form) instead of concatenating (paper).
        project_attended: `LayerNorm(W' [h, v̂_d])` before the GLU (released form).
        attended_dropout: dropout on the attended feature.
        context_dropout: dropout on the previous context.
        drop_in_steps: keep `logit_dropout` while stepping in training mode (AoANet).
        words: see `WordArguments`.
    """

    def __init__(
        self,
        *,
        dim: int,
        attention: AttentionLayer,
        add_summary: bool,
        project_attended: bool,
        attended_dropout: float,
        context_dropout: float,
        drop_in_steps: bool = False,
        **words: Unpack[WordArguments],
    ) -> None:
        super().__init__(dim=dim, drop_in_steps=drop_in_steps, **words)
        self.lstm = nn.LSTMCell(2 * dim if add_summary else 3 * dim, dim)
        self.attention = attention
        self.attended_linear = nn.Linear(2 * dim, dim) if project_attended else None
        self.attended_norm = nn.LayerNorm(dim) if project_attended else None
        self.context_linear = nn.Linear(2 * dim, 2 * dim)
        self.logits = nn.Linear(dim, words["vocab_size"])
        self.attended_dropout = Dropout(attended_dropout)
        self.context_dropout = Dropout(context_dropout)

    def _input_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """The columns of the LSTM's input weights for word, image and context; added ones share theirs."""
        words, image, *context = torch.split(self.lstm.weight_ih, self.dim, dim=1)
        return words, image, context[0] if context else image

    def word_weights(self) -> tuple[Tensor, Tensor | None]:
        """The words' columns of the LSTM's input weights."""
        return self._input_weights()[0], None

    def recurrent_weights(self) -> Sequence[Vectors]:
        """For the context and the hidden state."""
        return [(self._input_weights()[2], self.lstm.weight_hh)]

    def remember(self, encoded: Encoded) -> ImageMemory:
        """Project the regions and compute the image's share of the gates; the state starts at zero."""
        gates = F.linear(encoded.summary, self._input_weights()[1], self.lstm.bias_ih + self.lstm.bias_hh)
        zeros = encoded.summary.new_zeros(len(encoded), self.dim)
        cache = self.attention.projected(encoded.regions, encoded.regions, encoded.mask)
        return ImageMemory((zeros, zeros, zeros), gates, cache)

    def advance(self, gates: Tensor, vectors: Vectors, tools: Tools) -> tuple[Vectors, StepTrace | None]:
        """LSTM, attention, context."""
        hidden, cell, context = vectors
        hidden, cell = lstm_cell(gates + tools.product(0, self.context_dropout(context), hidden), cell)
        attended, trace = tools.ask(self.attention, hidden)
        attended = self.attended_dropout(attended)
        if self.attended_linear is not None and self.attended_norm is not None:
            together = torch.cat([hidden, attended], dim=-1)
            projected = tools.linear(together, self.attended_linear.weight, self.attended_linear.bias)
            attended = self.attended_norm(projected)
        together = torch.cat([attended, hidden], dim=-1)
        context = F.glu(tools.linear(together, self.context_linear.weight, self.context_linear.bias), dim=-1)
        return (hidden, cell, context), trace

    def spoken(self, vectors: Vectors) -> Tensor:
        """The context."""
        return vectors[2]
