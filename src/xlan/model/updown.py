"""Up-Down: one LSTM looks, a second one speaks. Also the decoder of GCN-LSTM, and with a look back half of LBPF.

    h¹_t = LSTM₁([h²_{t-1}; g; x_t], h¹_{t-1})       x_t = ReLU(E[w_t]), g the image
    v̂_t  = attention(h¹_t, regions)                  Eq. 1; looking back: the query is [h¹_t; v̂_{t-1}]
    h²_t = LSTM₂([v̂_t; h¹_t], h²_{t-1});             p(w_{t+1}) = softmax(W_p h²_t)

No gradient flows through the v̂_{t-1} of the query, and v̂_0 = 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import ConventionalAttention
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.recurrent import ImageMemory, RecurrentDecoder, Tools, Vectors, lstm_cell
from xlan.types import StepTrace


class UpDownDecoder(RecurrentDecoder):
    """The decoder; its state is hidden state and cell of both LSTMs, and with a look back the last attended feature.

    Args:
        vocab_size: number of ids V.
        dim: width of words and of both LSTMs.
        region_dim: width of the regions.
        summary_dim: width of the image's vector g.
        attention_dim: width inside the attention.
        look_back: what was attended last is part of the next query.
        word_dropout: dropout on words.
        attention_dropout: dropout inside the attention, behind its tanh.
        language_dropout: dropout on the input of the second LSTM.
        logit_dropout: dropout in front of the logits.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        region_dim: int,
        summary_dim: int,
        attention_dim: int,
        look_back: bool,
        word_dropout: float,
        attention_dropout: float,
        language_dropout: float,
        logit_dropout: float,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            dim=dim,
            word_sigma=nn.ReLU(),
            word_dropout=word_dropout,
            logit_dropout=logit_dropout,
        )
        self.region_dim = region_dim
        self.look_back = look_back
        self.attention_lstm = nn.LSTMCell(dim + summary_dim + dim, dim)
        self.attention = ConventionalAttention(
            dim + region_dim if look_back else dim, region_dim, hidden_dim=attention_dim, dropout=attention_dropout
        )
        self.language_lstm = nn.LSTMCell(region_dim + dim, dim)
        self.language_dropout = Dropout(language_dropout)
        self.logits = nn.Linear(dim, vocab_size)

    def _input_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """The columns of the first LSTM's input weights for h², image and word."""
        weight = self.attention_lstm.weight_ih
        spoken, image, words = torch.split(weight, [self.dim, weight.shape[1] - 2 * self.dim, self.dim], dim=1)
        return spoken, image, words

    def remember(self, encoded: Encoded) -> ImageMemory:
        """Project the regions and compute the image's share of the first gates; the state starts at zero."""
        bias = self.attention_lstm.bias_ih + self.attention_lstm.bias_hh
        gates = F.linear(encoded.summary, self._input_weights()[1], bias)
        zeros = encoded.summary.new_zeros(len(encoded), self.dim)
        first: Vectors = (zeros, zeros, zeros, zeros)
        if self.look_back:
            first = (*first, encoded.summary.new_zeros(len(encoded), self.region_dim))
        cache = self.attention.projected(encoded.regions, encoded.regions, encoded.mask)
        return ImageMemory(first, gates, cache)

    def word_weights(self) -> tuple[Tensor, Tensor | None]:
        """The words' columns of the first LSTM's input weights."""
        return self._input_weights()[2], None

    def recurrent_weights(self) -> Sequence[Vectors]:
        """Of the first LSTM for h² and h¹, of the second for its input and h²."""
        first = (self._input_weights()[0], self.attention_lstm.weight_hh)
        return [first, (self.language_lstm.weight_ih, self.language_lstm.weight_hh)]

    def advance(self, gates: Tensor, vectors: Vectors, tools: Tools) -> tuple[Vectors, StepTrace | None]:
        """First LSTM, attention, second LSTM."""
        looking, looking_cell, speaking, speaking_cell, *before = vectors
        looking, looking_cell = lstm_cell(gates + tools.product(0, speaking, looking), looking_cell)
        query = torch.cat([looking, before[0].detach()], dim=-1) if before else looking
        attended, trace = tools.ask(self.attention, query)
        read = self.language_dropout(torch.cat([attended, looking], dim=-1))
        bias = self.language_lstm.bias_ih + self.language_lstm.bias_hh
        speaking, speaking_cell = lstm_cell(tools.product(1, read, speaking) + bias, speaking_cell)
        after = (looking, looking_cell, speaking, speaking_cell)
        return (*after, attended) if before else after, trace

    def spoken(self, vectors: Vectors) -> Tensor:
        """The second hidden state."""
        return vectors[2]
