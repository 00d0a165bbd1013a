"""Att2in and Att2all of the SCST paper: one LSTM, with the attended feature among its inputs.

    r_i = ReLU(W_r v_i),  x_t = ReLU(E[w_t])
    v̂_t = attention(h_{t-1}, r)                     Eq. 1, asked before the step
    u   = W_i x_t + W_h h_{t-1};   Att2in: the two candidates += W_z v̂_t;   Att2all: all five blocks += W_z v̂_t
    (h_t, c_t) = maxout cell;  p(w_{t+1}) = softmax(W_p h_t)

This is the form that public code trains ("att2in2"). The paper's own takes the regions as they are and has no ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import ConventionalAttention
from xlan.model.interface import Encoded
from xlan.model.plain import MaxoutCell, joint_bias, maxout_cell
from xlan.model.recurrent import ImageMemory, RecurrentDecoder, Tools, Vectors
from xlan.types import StepTrace


class Att2inDecoder(RecurrentDecoder):
    """The decoder; its state is hidden state and cell.

    Args:
        vocab_size: number of ids V.
        dim: width of words, hidden state and cell.
        attention: asked by the hidden state; the width of what it attends to is its `value_dim`.
        all_gates: Att2all.
        word_sigma: activation of the word embedding, None for none.
        word_dropout: dropout on words.
        logit_dropout: dropout in front of the logits.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        attention: ConventionalAttention,
        all_gates: bool,
        word_sigma: nn.Module | None,
        word_dropout: float,
        logit_dropout: float,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            word_dim=dim,
            word_sigma=word_sigma,
            word_dropout=word_dropout,
            logit_dropout=logit_dropout,
        )
        self.dim = dim
        self.cell = MaxoutCell(dim, dim)
        self.attention = attention
        self.W_z = nn.Linear(attention.value_dim, (5 if all_gates else 2) * dim)
        self.logits = nn.Linear(dim, vocab_size)

    def remember(self, encoded: Encoded) -> ImageMemory:
        """Project the regions; the state starts at zero."""
        zeros = encoded.regions.new_zeros(len(encoded), self.dim)
        return ImageMemory(
            (zeros, zeros), cache=self.attention.projected(encoded.regions, encoded.regions, encoded.mask)
        )

    def word_weights(self) -> tuple[Tensor, Tensor | None]:
        """Input weights and biases of the cell."""
        return self.cell.weight_ih, joint_bias(self.cell)

    def recurrent_weights(self) -> Sequence[Vectors]:
        """For the hidden state."""
        return [(self.cell.weight_hh,)]

    def advance(self, gates: Tensor, vectors: Vectors, tools: Tools) -> tuple[Vectors, StepTrace | None]:
        """Attention, then the cell."""
        hidden, cell = vectors
        attended, trace = tools.ask(self.attention, hidden)
        share = tools.linear(attended, self.W_z.weight, self.W_z.bias)
        share = F.pad(share, (5 * self.dim - share.shape[-1], 0))  # the candidates are the last blocks
        return maxout_cell(gates + tools.product(0, hidden) + share, cell), trace

    def spoken(self, vectors: Vectors) -> Tensor:
        """The hidden state."""
        return vectors[0]
