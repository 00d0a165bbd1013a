"""X-LAN's sentence decoder (§3.3): an LSTM whose hidden state queries the image through attention.

    h_t = LSTM([w_t, ṽ, c_{t-1}], h_{t-1})       released form: ṽ and c_{t-1} are added, not concatenated
    v̂_d = attention(h_t, regions)                X-Linear, or Eq. 1 in the ablation
    c_t = GLU(W [v̂_d, h_t])                      released form: v̂_d first becomes LayerNorm(W' [h_t, v̂_d])
    p(w_{t+1}) = softmax(W_p c_t)

Teacher forcing computes what it can for all words at once: embeddings and their share of the LSTM's gates before the
loop, logits after it, on real words only; captions that have ended leave the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import AttentionLayer, Projected
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded, real_positions
from xlan.model.overtime import LinearFunction, OverTime
from xlan.model.rows import RowGroups
from xlan.types import StepTrace


@dataclass(frozen=True)
class ImageMemory:
    """What the decoder keeps of B images: projected regions and the image's share of the LSTM's gates `[B, 4D]`."""

    cache: Projected
    gates: Tensor

    def select(self, index: Tensor) -> ImageMemory:
        """Images `index` of this memory."""
        return ImageMemory(self.cache.select(index), self.gates.index_select(0, index))


@dataclass(frozen=True)
class LSTMState:
    """R rows of the decoder, each `[R, D]`, about the images in `memory`."""

    hidden: Tensor
    cell: Tensor
    context: Tensor
    memory: ImageMemory
    groups: RowGroups
    wants_trace: bool
    trace: StepTrace | None = None

    @property
    def rows(self) -> int:
        """Number R of rows."""
        return self.groups.owner.numel()

    @property
    def device(self) -> torch.device:
        """Where tokens and indices have to be."""
        return self.groups.owner.device

    def select(self, index: Tensor) -> LSTMState:
        """Rows `index`; images without a row are dropped once there are enough of them."""
        groups, kept = self.groups.select(index)
        return LSTMState(
            hidden=self.hidden.index_select(0, index),
            cell=self.cell.index_select(0, index),
            context=self.context.index_select(0, index),
            memory=self.memory if kept is None else self.memory.select(kept),
            groups=groups,
            wants_trace=self.wants_trace,
        )


class LSTMDecoder(nn.Module):
    """The decoder; its state is passed in and out.

    Args:
        vocab_size: number of ids V.
        dim: width of words, hidden state, context, regions and attended feature.
        attention: the attention layer asked by the hidden state.
        word_sigma: activation of the word embedding, None for none.
        add_summary: add ṽ to the previous context (released form) instead of concatenating (paper).
        project_attended: `LayerNorm(W' [h, v̂_d])` before the GLU (released form).
        word_dropout: dropout on words.
        dropout: dropout on the attended feature and on the previous context.
        logit_dropout: dropout on the context in front of the logits, in teacher forcing only.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        attention: AttentionLayer,
        word_sigma: nn.Module | None,
        add_summary: bool,
        project_attended: bool,
        word_dropout: float,
        dropout: float,
        logit_dropout: float,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(vocab_size, dim)
        self.word_sigma = nn.Identity() if word_sigma is None else word_sigma
        self.word_dropout = Dropout(word_dropout)
        self.lstm = nn.LSTMCell(2 * dim if add_summary else 3 * dim, dim)
        self.attention = attention
        self.attended_linear = nn.Linear(2 * dim, dim) if project_attended else None
        self.attended_norm = nn.LayerNorm(dim) if project_attended else None
        self.context_linear = nn.Linear(2 * dim, 2 * dim)
        self.logits = nn.Linear(dim, vocab_size)
        self.dropout = Dropout(dropout)
        self.logit_dropout = Dropout(logit_dropout)

    def _words(self, tokens: Tensor) -> Tensor:
        words: Tensor = self.word_dropout(self.word_sigma(self.embed(tokens)))
        return words

    def _word_gates(self, tokens: Tensor, for_words: Tensor) -> Tensor:
        """The words' share of the gates, `[R, 4D]`."""
        if self.training:  # every row has its own dropout
            return F.linear(self._words(tokens), for_words)
        # Rows often go on with the same words: beams of one image, and "a" in many images at once.
        distinct, which = torch.unique(tokens, return_inverse=True)
        return F.linear(self._words(distinct), for_words).index_select(0, which)

    def _input_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """The columns of the LSTM's input weights for word, image and context; added ones share theirs."""
        words, image, *context = torch.split(self.lstm.weight_ih, self.dim, dim=1)
        return words, image, context[0] if context else image

    def _remember(self, encoded: Encoded, for_image: Tensor) -> ImageMemory:
        """Project the regions and compute the image's share of the gates, once per image."""
        cache = self.attention.project(encoded.regions, mask=encoded.mask)
        return ImageMemory(cache, F.linear(encoded.summary, for_image, self.lstm.bias_ih + self.lstm.bias_hh))

    def _advance(
        self,
        gates: Tensor,
        state: tuple[Tensor, Tensor, Tensor],
        cache: Projected,
        groups: RowGroups,
        recurrent: Callable[[Tensor, Tensor], Tensor],
        linear: LinearFunction,
        trace: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, StepTrace | None]:
        """One time step of rows `[R, D]`: `gates` `[R, 4D]` holds what words and images contribute.

        `recurrent` computes the share of the previous context and hidden state.
        """
        hidden, cell, context = state
        gates = gates + recurrent(self.dropout(context), hidden)
        let_in, keep, new, let_out = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(let_in) * torch.tanh(new)
        hidden = torch.sigmoid(let_out) * torch.tanh(cell)

        found = self.attention(groups.to_images(hidden), cache, return_attention=trace, linear=linear)
        attended = self.dropout(groups.to_rows(found.feature))
        if self.attended_linear is not None and self.attended_norm is not None:
            together = torch.cat([hidden, attended], dim=-1)
            attended = self.attended_norm(linear(together, self.attended_linear.weight, self.attended_linear.bias))
        together = torch.cat([attended, hidden], dim=-1)
        context = F.glu(linear(together, self.context_linear.weight, self.context_linear.bias), dim=-1)

        if found.spatial is None:
            return hidden, cell, context, None
        channel = None if found.channel is None else groups.to_rows(found.channel)
        return hidden, cell, context, StepTrace(groups.to_rows(found.spatial).mean(dim=1), channel)

    def start(self, encoded: Encoded, *, trace: bool = False) -> LSTMState:
        """One row per image, everything zero."""
        zeros = encoded.summary.new_zeros(len(encoded), self.dim)
        groups = RowGroups.regular(len(encoded), 1, zeros.device)
        return LSTMState(zeros, zeros, zeros, self._remember(encoded, self._input_weights()[1]), groups, trace)

    def step(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Ids `[R]` → log-probabilities `[R, V]` and the state behind them."""
        for_words, _, for_context = self._input_weights()
        gates = self._word_gates(tokens, for_words) + state.memory.gates.index_select(0, state.groups.owner)
        hidden, cell, context, trace = self._advance(
            gates,
            (state.hidden, state.cell, state.context),
            state.memory.cache,
            state.groups,
            lambda context, hidden: F.linear(context, for_context) + F.linear(hidden, self.lstm.weight_hh),
            F.linear,
            state.wants_trace,
        )
        log_probs = F.log_softmax(self.logits(context), dim=-1)
        return log_probs, replace(state, hidden=hidden, cell=cell, context=context, trace=trace)

    def forward(
        self, encoded: Encoded, tokens: Tensor, lengths: Tensor, groups: RowGroups, *, scheduled_sampling: float = 0.0
    ) -> Tensor:
        """Logits of the real positions, `[lengths.sum(), V]`, from ids `[C, T]` (see `CaptionModel`)."""
        for_words, for_image, for_context = self._input_weights()
        memory = self._remember(encoded, for_image)
        # Longest captions first: those still running at step t are the first alive[t] rows.
        sorted_lengths, order = torch.sort(lengths, descending=True, stable=True)
        words = int(sorted_lengths[0])
        alive = real_positions(sorted_lengths, words).sum(0).tolist()
        tokens, owner = tokens[order], groups.owner[order]
        groups_of = {rows: RowGroups.of(owner[:rows], groups.images) for rows in set(alive)}
        image_gates = memory.gates.index_select(0, owner)
        if scheduled_sampling == 0.0:
            packed = torch.cat([tokens[:rows, t] for t, rows in enumerate(alive)])
            word_gates = torch.split(F.linear(self._words(packed), for_words), alive)

        linear: LinearFunction = OverTime()
        together = torch.cat([for_context, self.lstm.weight_hh], dim=1)

        def recurrent(context: Tensor, hidden: Tensor) -> Tensor:
            return linear(torch.cat([context, hidden], dim=-1), together, None)

        hidden = cell = context = encoded.summary.new_zeros(tokens.shape[0], self.dim)
        contexts: list[Tensor] = []
        for t, rows in enumerate(alive):
            state = (hidden[:rows], cell[:rows], context[:rows])
            if scheduled_sampling == 0.0:
                gates = word_gates[t]
            else:
                fed = tokens[:rows, t]
                fed = self._mix_in_samples(fed, state[2], scheduled_sampling) if t > 0 else fed
                gates = linear(self._words(fed), for_words, None)
            hidden, cell, context, _ = self._advance(
                gates + image_gates[:rows], state, memory.cache, groups_of[rows], recurrent, linear
            )
            contexts.append(context)

        ordered = torch.cat(contexts)[_reading_order(alive, order, lengths)]
        logits: Tensor = self.logits(self.logit_dropout(ordered))
        return logits

    @torch.no_grad()
    def _mix_in_samples(self, tokens: Tensor, context: Tensor, probability: float) -> Tensor:
        """Scheduled sampling: with `probability`, a row is fed a word drawn from its own last prediction."""
        drawn = torch.multinomial(F.softmax(self.logits(self.logit_dropout(context)).float(), dim=-1), 1).squeeze(1)
        chosen = torch.rand(tokens.shape, device=tokens.device) < probability
        return torch.where(chosen, drawn, tokens)


def _reading_order(alive: list[int], order: Tensor, lengths: Tensor) -> Tensor:
    """Places, in the time-major pile of contexts, of caption 0's words, then caption 1's, and so on."""
    device = lengths.device
    starts = torch.tensor([0, *alive[:-1]], device=device).cumsum(0)  # [T]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=device)  # row of each caption in the sorted order
    places = rank.unsqueeze(1) + starts.unsqueeze(0)  # [C, T]
    return places[real_positions(lengths, len(alive))]
