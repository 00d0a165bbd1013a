"""Language models that see the image before the first word and never look again: LSTM, Show and Tell, LSTM-A₃.

    the "LSTM" row of the SCST paper    (h, c) = cell(W_v v̄), then cell(E[w_t], h, c); a maxout cell
    Show and Tell                       the same with an LSTM without biases
    LSTM-A₃                             (h, c) = LSTM(W_A A), then LSTM(W_v v̄), then LSTM(ReLU(E[w_t]))
    p(w_{t+1}) = softmax(W_p h_t)

v̄ is the mean of the regions, A the probabilities of attributes (common words) in the image. There is no attention, so
there is nothing to show where the model looked.

LSTM-A₃ as published reads attributes from a detector. Here they are a linear layer on the regions, whose votes are
pooled by the logarithm of the mean of exponentials: the form of the word head that `xlan adapt` teaches to a vision
network, from which the layer can start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.errors import ShapeError
from xlan.model.attention import masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.recurrent import ImageMemory, RecurrentDecoder, Tools, Vectors, WordArguments, lstm_cell
from xlan.types import StepTrace


def maxout_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell `[R, D]` from gates `[R, 5D]`: in, keep, out and two candidates; the larger one counts."""
    let_in, keep, let_out, one, other = gates.chunk(5, dim=-1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(let_in) * torch.maximum(one, other)
    return torch.sigmoid(let_out) * torch.tanh(cell), cell


class MaxoutCell(nn.RNNCellBase):
    """The weights of the SCST paper's LSTM, whose candidate is the larger of two linear maps.

    Args:
        input_size: width of the input.
        hidden_size: width of hidden state and cell.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, bias=True, num_chunks=5)


def joint_bias(cell: nn.RNNCellBase) -> Tensor | None:
    """The two biases of a cell, which act as one."""
    return cell.bias_ih + cell.bias_hh if cell.bias else None


class MeanEncoder(nn.Module):
    """`W_v v̄ + b_v`: one vector for an image; its regions stay as they are and are not used.

    Args:
        feature_dim: width of the region features that come in.
        dim: width of the vector.
    """

    def __init__(self, feature_dim: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Linear(feature_dim, dim)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]`."""
        return Encoded(self.embed(masked_mean(features, mask)), features, mask)


class AttributeEncoder(nn.Module):
    """Two vectors for an image, side by side in `Encoded.summary` `[B, 2D]`: its attributes' and its own.

    Args:
        feature_dim: width of the region features that come in.
        dim: width D of each vector.
        attributes: number of attributes.
        dropout: dropout on both vectors.
    """

    def __init__(self, feature_dim: int, dim: int, *, attributes: int, dropout: float) -> None:
        super().__init__()
        self.attributes = nn.Linear(feature_dim, attributes)
        self.embed_attributes = nn.Linear(attributes, dim)
        self.embed = nn.Linear(feature_dim, dim)
        self.dropout = Dropout(dropout)

    def probabilities(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """`[B, A]`: how likely each attribute is, each region having one vote."""
        votes = self.attributes(features)
        count = torch.full_like(votes[:, 0, :1], float(votes.shape[1]))
        if mask is not None:
            votes = votes.masked_fill(~mask.unsqueeze(-1), float("-inf"))
            count = mask.sum(dim=1, keepdim=True).to(votes.dtype)
        return torch.sigmoid(torch.logsumexp(votes, dim=1) - count.log())

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]`."""
        return self.with_attributes(self.probabilities(features, mask), features, mask)

    def with_attributes(self, probabilities: Tensor, features: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode images whose attributes `[B, A]` are known from elsewhere."""
        wanted = (features.shape[0], self.attributes.out_features)
        if probabilities.shape != wanted:
            raise ShapeError(f"attributes: expected shape {list(wanted)}, got {list(probabilities.shape)}")
        vectors = [self.embed_attributes(probabilities), self.embed(masked_mean(features, mask))]
        return Encoded(torch.cat([self.dropout(vector) for vector in vectors], dim=-1), features, mask)

    def start_from(self, weight: Tensor, bias: Tensor) -> None:
        """Take over the word head of an adapted vision network: weight `[A, feature_dim]` and bias `[A]`."""
        if weight.shape != self.attributes.weight.shape or bias.shape != self.attributes.bias.shape:
            expected = f"{self.attributes.out_features} words on features {self.attributes.in_features} wide"
            got = f"{weight.shape[0]} on {weight.shape[-1]}" if weight.dim() == 2 else f"shape {list(weight.shape)}"
            raise ShapeError(f"expected a head of {expected}, got {got}; build the model with as many attributes")
        with torch.no_grad():
            self.attributes.weight.copy_(weight)
            self.attributes.bias.copy_(bias)


class CellDecoder(RecurrentDecoder):
    """A decoder with one recurrent cell, whose state is hidden state and cell."""

    cell: nn.LSTMCell | MaxoutCell

    def word_weights(self) -> tuple[Tensor, Tensor | None]:
        """Input weights and biases of the cell."""
        return self.cell.weight_ih, joint_bias(self.cell)

    def recurrent_weights(self) -> Sequence[Vectors]:
        """For the hidden state."""
        return [(self.cell.weight_hh,)]

    def spoken(self, vectors: Vectors) -> Tensor:
        """The hidden state."""
        return vectors[0]


class PlainDecoder(CellDecoder):
    """A recurrent cell that reads the image's vectors, then words; its state is hidden state and cell.

    Args:
        dim: width of words, image vectors, hidden state and cell.
        cell: `nn.LSTMCell` or `MaxoutCell`.
        words: see `WordArguments`.
    """

    def __init__(self, *, dim: int, cell: nn.LSTMCell | MaxoutCell, **words: Unpack[WordArguments]) -> None:
        super().__init__(dim=dim, **words)
        self.cell = cell
        self.logits = nn.Linear(dim, words["vocab_size"])

    def _turn(self, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return maxout_cell(gates, cell) if isinstance(self.cell, MaxoutCell) else lstm_cell(gates, cell)

    def remember(self, encoded: Encoded) -> ImageMemory:
        """Read the image's vectors one after the other; what would be said after them is not used."""
        zeros = encoded.summary.new_zeros(len(encoded), self.dim)
        hidden, cell = zeros, zeros
        for vector in torch.split(encoded.summary, self.dim, dim=-1):
            gates = F.linear(vector, *self.word_weights()) + F.linear(hidden, self.cell.weight_hh)
            hidden, cell = self._turn(gates, cell)
        return ImageMemory((hidden, cell))

    def advance(self, gates: Tensor, vectors: Vectors, tools: Tools) -> tuple[Vectors, StepTrace | None]:
        """One turn of the cell; nothing to show, since nothing is attended to."""
        hidden, cell = vectors
        return self._turn(gates + tools.product(0, hidden), cell), None
