"""Att2in and Att2all of the SCST paper: one LSTM, with the attended feature among its inputs.

    r_i = ReLU(W_r v_i),  x_t = ReLU(E[w_t])
    v̂_t = attention(h_{t-1}, r)                     Eq. 1, asked before the step
    u   = W_i x_t + W_h h_{t-1};   Att2in: the two candidates += W_z v̂_t;   Att2all: all five blocks += W_z v̂_t
    (h_t, c_t) = maxout cell;  p(w_{t+1}) = softmax(W_p h_t)

This is the form that public code trains ("att2in2"). The paper's own takes the regions as they are and has no ReLU.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import ConventionalAttention
from xlan.model.interface import Encoded
from xlan.model.plain import CellDecoder, MaxoutCell, maxout_cell
from xlan.model.recurrent import ImageMemory, Tools, Vectors, WordArguments
from xlan.types import StepTrace


class Att2inDecoder(CellDecoder):
    """The decoder; its state is hidden state and cell.

    Args:
        dim: width of words, hidden state and cell.
        attention: asked by the hidden state; the width of what it attends to is its `value_dim`.
        all_gates: Att2all.
        words: see `WordArguments`.
    """

    def __init__(
        self, *, dim: int, attention: ConventionalAttention, all_gates: bool, **words: Unpack[WordArguments]
    ) -> None:
        super().__init__(dim=dim, **words)
        self.cell = MaxoutCell(dim, dim)
        self.attention = attention
        self.W_z = nn.Linear(attention.value_dim, (5 if all_gates else 2) * dim)
        self.logits = nn.Linear(dim, words["vocab_size"])

    def remember(self, encoded: Encoded) -> ImageMemory:
        """Project the regions; the state starts at zero."""
        zeros = encoded.regions.new_zeros(len(encoded), self.dim)
        return ImageMemory(
            (zeros, zeros), cache=self.attention.projected(encoded.regions, encoded.regions, encoded.mask)
        )

    def advance(self, gates: Tensor, vectors: Vectors, tools: Tools) -> tuple[Vectors, StepTrace | None]:
        """Attention, then the cell."""
        hidden, cell = vectors
        attended, trace = tools.ask(self.attention, hidden)
        share = tools.linear(attended, self.W_z.weight, self.W_z.bias)
        share = F.pad(share, (5 * self.dim - share.shape[-1], 0))  # the candidates are the last blocks
        return maxout_cell(gates + tools.product(0, hidden) + share, cell), trace
