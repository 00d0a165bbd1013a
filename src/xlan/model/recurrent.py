"""Decoders that read one word after another: start, step and teacher forcing, written once for all of them.

A decoder says what it remembers of an image (`remember`), what words contribute to its gates (`word_weights`), which
weights meet its own state at every step (`recurrent_weights`), how it advances by one word (`advance`) and which vector
feeds the logits (`spoken`).

Teacher forcing computes what it can for all words at once: embeddings and their share of the gates before the loop,
logits after it, on real words only. Captions that have ended leave the loop, and every recurrent weight gets one
gradient product for all steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.lengths import real_positions
from xlan.model.attention import Asking, AttentionLayer, Projected
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded
from xlan.model.recurrent_linear import LinearFunction, RecurrentLinear
from xlan.model.rows import RowGroups, RowState
from xlan.types import StepTrace

Vectors = tuple[Tensor, ...]


@dataclass(frozen=True)
class ImageMemory:
    """What a decoder keeps of B images.

    Attributes:
        first: vectors `[B, ·]` of the state in front of the first word.
        gates: `[B, G]` the image's share of the gates at every step; None where it has none.
        cache: the projected regions; None without attention.
    """

    first: Vectors
    gates: Tensor | None = None
    cache: Projected | None = None

    def select(self, index: Tensor) -> ImageMemory:
        """Images `index` of this memory."""
        return ImageMemory(
            tuple(vector.index_select(0, index) for vector in self.first),
            None if self.gates is None else self.gates.index_select(0, index),
            None if self.cache is None else self.cache.select(index),
        )


@dataclass(frozen=True, kw_only=True)
class RecurrentState(RowState):
    """R rows of a decoder.

    Attributes:
        vectors: what changes with every word, each `[R, ·]`.
        memory: what the images contribute.
    """

    vectors: Vectors
    memory: ImageMemory

    def select(self, index: Tensor) -> RecurrentState:
        """Rows `index`; images without a row are dropped once there are enough of them."""
        groups, kept = self.groups.select(index)
        return RecurrentState(
            vectors=tuple(vector.index_select(0, index) for vector in self.vectors),
            memory=self.memory if kept is None else self.memory.select(kept),
            groups=groups,
            wants_trace=self.wants_trace,
        )


class Tools(NamedTuple):
    """What `advance` works with in one step of R rows.

    Attributes:
        cache: the projected regions.
        groups: which row belongs to which image.
        weights: as `recurrent_weights` returned them; in teacher forcing each group is joined into one.
        linear: replaces `F.linear`.
        trace: attention is wanted.
    """

    cache: Projected | None
    groups: RowGroups
    weights: Sequence[Vectors]
    linear: LinearFunction
    trace: bool

    def product(self, which: int, *inputs: Tensor) -> Tensor:
        """`Σ_i W_i x_i` with the weights of group `which`: `[R, G]`."""
        weights = self.weights[which]
        if len(weights) < len(inputs):
            return self.linear(torch.cat(inputs, dim=-1), weights[0], None)
        terms = [self.linear(x, weight, None) for x, weight in zip(inputs, weights, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def ask(self, attention: AttentionLayer, query: Tensor) -> tuple[Tensor, StepTrace | None]:
        """Let rows `[R, D_q]` query their images: the attended feature `[R, D]`, and where they looked."""
        assert self.cache is not None
        grid = self.groups.to_images(query)
        found = attention.attend(grid, self.cache, Asking(None, self.trace, self.linear))
        feature = self.groups.to_rows(found.feature)
        if found.spatial is None:
            return feature, None
        channel = None if found.channel is None else self.groups.to_rows(found.channel)
        return feature, StepTrace(self.groups.to_rows(found.spatial).mean(dim=1), channel)


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell `[R, D]` from gates `[R, 4D]` in PyTorch's order."""
    let_in, keep, new, let_out = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(let_in) * torch.tanh(new)
    return torch.sigmoid(let_out) * torch.tanh(cell), cell


class WordArguments(TypedDict):
    """What every decoder is told about words.

    Attributes:
        vocab_size: number of ids V.
        word_sigma: activation of the word embedding, None for none.
        word_dropout: dropout on words.
        logit_dropout: dropout in front of the logits.
    """

    vocab_size: int
    word_sigma: nn.Module | None
    word_dropout: float
    logit_dropout: float


class RecurrentDecoder(nn.Module, ABC):
    """The decoder; its state is passed in and out. A subclass makes `logits`, a linear layer on what `spoken` returns.

    Args:
        dim: width of words and hidden states.
        drop_in_steps: keep `logit_dropout` while stepping in training mode; otherwise only teacher forcing has it.
        words: see `WordArguments`.
    """

    logits: nn.Linear

    def __init__(self, *, dim: int, drop_in_steps: bool = True, **words: Unpack[WordArguments]) -> None:
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(words["vocab_size"], dim)
        self.word_sigma = words["word_sigma"] or nn.Identity()
        self.word_dropout = Dropout(words["word_dropout"])
        self.logit_dropout = Dropout(words["logit_dropout"])
        self.drop_in_steps = drop_in_steps

    @abstractmethod
    def remember(self, encoded: Encoded) -> ImageMemory:
        """Compute what is needed of an image, once."""

    @abstractmethod
    def word_weights(self) -> tuple[Tensor, Tensor | None]:
        """Weight `[G, word_dim]` and bias `[G]` of the words' share of the gates."""

    @abstractmethod
    def recurrent_weights(self) -> Sequence[Vectors]:
        """Groups of weights `[G, ·]` whose products with parts of the state are added up (`Tools.product`)."""

    @abstractmethod
    def advance(self, gates: Tensor, vectors: Vectors, tools: Tools) -> tuple[Vectors, StepTrace | None]:
        """Advance R rows by one word; `gates` `[R, G]` holds what word and image contribute."""

    @abstractmethod
    def spoken(self, vectors: Vectors) -> Tensor:
        """The vector `[R, ·]` that feeds the logits."""

    def _words(self, tokens: Tensor) -> Tensor:
        words: Tensor = self.word_dropout(self.word_sigma(self.embed(tokens)))
        return words

    def _word_gates(self, tokens: Tensor) -> Tensor:
        """The words' share of the gates in one step, `[R, G]`."""
        weight, bias = self.word_weights()
        if self.training:  # every row has its own dropout
            return F.linear(self._words(tokens), weight, bias)
        # Rows often continue with the same words: beams of one image, and "a" in many images at once.
        distinct, which = torch.unique(tokens, return_inverse=True)
        return F.linear(self._words(distinct), weight, bias).index_select(0, which)

    def start(self, encoded: Encoded, *, trace: bool = False) -> RecurrentState:
        """One row per image, no words yet."""
        memory = self.remember(encoded)
        groups = RowGroups.regular(len(encoded), 1, encoded.regions.device)
        return RecurrentState(vectors=memory.first, memory=memory, groups=groups, wants_trace=trace)

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Ids `[R]` → log-probabilities `[R, V]` and the state behind them."""
        gates = self._word_gates(tokens)
        if state.memory.gates is not None:
            gates = gates + state.memory.gates.index_select(0, state.groups.owner)
        tools = Tools(state.memory.cache, state.groups, self.recurrent_weights(), F.linear, state.wants_trace)
        vectors, trace = self.advance(gates, state.vectors, tools)
        spoken = self.spoken(vectors)
        logits = self.logits(self.logit_dropout(spoken) if self.drop_in_steps else spoken)
        return F.log_softmax(logits, dim=-1), replace(state, vectors=vectors, trace=trace)

    def forward(
        self, encoded: Encoded, tokens: Tensor, lengths: Tensor, groups: RowGroups, *, scheduled_sampling: float = 0.0
    ) -> Tensor:
        """Logits of the real positions, `[lengths.sum(), V]`, from ids `[C, T]` (see `CaptionModel`)."""
        memory = self.remember(encoded)
        # Longest captions first: those still running at step t are the first alive[t] rows.
        sorted_lengths, order = torch.sort(lengths, descending=True, stable=True)
        words = int(sorted_lengths[0])
        alive = real_positions(sorted_lengths, words).sum(0).tolist()
        tokens, owner = tokens[order], groups.owner[order]
        groups_of = {rows: RowGroups.of(owner[:rows], groups.images) for rows in set(alive)}
        image_gates = None if memory.gates is None else memory.gates.index_select(0, owner)
        for_words, bias = self.word_weights()
        if scheduled_sampling == 0.0:
            packed = torch.cat([tokens[:rows, t] for t, rows in enumerate(alive)])
            word_gates = torch.split(F.linear(self._words(packed), for_words, bias), alive)

        linear = RecurrentLinear()
        joined = [
            (torch.cat(weights, dim=1) if len(weights) > 1 else weights[0],) for weights in self.recurrent_weights()
        ]
        vectors = tuple(vector.index_select(0, owner) for vector in memory.first)
        spoken: list[Tensor] = []
        for t, rows in enumerate(alive):
            vectors = tuple(vector[:rows] for vector in vectors)
            if scheduled_sampling == 0.0:
                gates = word_gates[t]
            else:
                fed = tokens[:rows, t]
                fed = self._mix_in_samples(fed, self.spoken(vectors), scheduled_sampling) if t > 0 else fed
                gates = linear(self._words(fed), for_words, bias)
            if image_gates is not None:
                gates = gates + image_gates[:rows]
            vectors, _ = self.advance(gates, vectors, Tools(memory.cache, groups_of[rows], joined, linear, False))
            spoken.append(self.spoken(vectors))

        ordered = torch.cat(spoken)[_reading_order(alive, order, lengths)]
        logits: Tensor = self.logits(self.logit_dropout(ordered))
        return logits

    @torch.no_grad()
    def _mix_in_samples(self, tokens: Tensor, spoken: Tensor, probability: float) -> Tensor:
        """Scheduled sampling: with `probability`, a row is fed a word drawn from its own last prediction."""
        drawn = torch.multinomial(F.softmax(self.logits(self.logit_dropout(spoken)).float(), dim=-1), 1).squeeze(1)
        chosen = torch.rand(tokens.shape, device=tokens.device) < probability
        return torch.where(chosen, drawn, tokens)


def _reading_order(alive: list[int], order: Tensor, lengths: Tensor) -> Tensor:
    """Places, in the time-major pile of vectors, of caption 0's words, then caption 1's, and so on."""
    device = lengths.device
    starts = torch.tensor([0, *alive[:-1]], device=device).cumsum(0)  # [T]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=device)  # row of each caption in the sorted order
    places = rank.unsqueeze(1) + starts.unsqueeze(0)  # [C, T]
    return places[real_positions(lengths, len(alive))]
