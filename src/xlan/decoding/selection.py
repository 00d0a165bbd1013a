"""One step of a beam search: from the log-probabilities of all live beams to the beams of the next step.

Everything is a tensor operation over all images at once. A place in the beams of an image is counted by (group, state
of the required words, rank): `[A, G · S · W]`. An ordinary search has one group and one state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xlan.decoding.ranking import top_indices
from xlan.decoding.required import Require
from xlan.decoding.slots import Slots
from xlan.decoding.step import IMPOSSIBLE


@dataclass(frozen=True)
class Choice:
    """The beams of the next step, for M places of A images.

    Attributes:
        parent: `[A, M]` int64, the place each comes from.
        token: `[A, M]` int64, the word it adds.
        log_prob: `[A, M]` of that word.
        used: `[A, M]` bool, False where a place stays empty.
        grown: `[A, M]` bool, a word was added; False also where a finished hypothesis stays as it is.
    """

    parent: Tensor
    token: Tensor
    log_prob: Tensor
    used: Tensor
    grown: Tensor


@dataclass(frozen=True)
class _Candidates:
    """C possible words for each of L live beams, from the likeliest on (of equals, the lower id): all `[L, C]`."""

    token: Tensor
    rank: Tensor
    log_prob: Tensor
    state: Tensor | None


class Selector:
    """Chooses the best continuations.

    Args:
        width: beams W per group and state.
        groups: number of groups G.
        diversity: cost of a word an earlier group chose in the same step.
        length_penalty: α.
        required: the required words, or None.
    """

    def __init__(
        self, *, width: int, groups: int, diversity: float, length_penalty: float, required: Require | None
    ) -> None:
        self.width = width
        self.groups = groups
        self.states = required.states if required else 1
        self._diversity = diversity
        self._length_penalty = length_penalty
        self._required = required

    @property
    def places(self) -> int:
        """M = G · S · W."""
        return self.groups * self._per_group

    @property
    def _per_group(self) -> int:
        return self.states * self.width

    def states_of(self, place: Tensor) -> Tensor:
        """State of the required words of places (any shape)."""
        return place // self.width % self.states

    def choose(self, slots: Slots, live: Tensor, log_probs: Tensor, *, step: int) -> Choice:
        """Choose the next beams.

        Args:
            slots: the beams, `[A, M]`.
            live: `[L]` which of the A · M places are live, ascending.
            log_probs: `[L, V]` of their next words, after the controls.
            step: number of words live beams have.
        """
        if self.groups == 1:
            return self._choose_in_group(slots, 0, live, log_probs, log_probs, step)
        counts = log_probs.new_zeros(slots.total.shape[0], log_probs.shape[1])
        choices: list[Choice] = []
        for group in range(self.groups):
            mine = ((live % self.places) // self._per_group == group).nonzero().squeeze(1)
            image = live[mine] // self.places
            here = log_probs[mine]
            choice = self._choose_in_group(slots, group, live[mine], here, here - self._diversity * counts[image], step)
            choices.append(choice)
            where, column = choice.grown.nonzero(as_tuple=True)
            said = choice.token[where, column]
            counts.index_put_((where, said), counts.new_ones(len(said)), accumulate=True)
        names = ("parent", "token", "log_prob", "used", "grown")
        return Choice(*(torch.cat([getattr(choice, name) for choice in choices], dim=1) for name in names))

    def _choose_in_group(
        self, slots: Slots, group: int, live: Tensor, log_probs: Tensor, worth: Tensor, step: int
    ) -> Choice:
        """Choose for one group; `worth` (`[L, V]`) is what words count in the choice: log-probabilities, less costs."""
        images, size = slots.total.shape[0], self._per_group
        first = group * size
        candidates = self._candidates(slots.total.flatten()[live], live, log_probs, worth, step)
        width = candidates.token.shape[1]
        # A table of all beams: candidates of live ones at their places; a finished one has one candidate, itself.
        inner = live // self.places * size + live % self.places - first
        finished = slots.finished[:, first : first + size]
        rank = worth.new_full((images * size, width), IMPOSSIBLE)
        own = slots.ranks(self._length_penalty)[:, first : first + size]
        rank[:, 0] = own.masked_fill(~finished, IMPOSSIBLE).flatten()
        rank[inner] = candidates.rank
        token = live.new_zeros(images * size, width)
        token[inner] = candidates.token
        log_prob = worth.new_zeros(images * size, width)
        log_prob[inner] = candidates.log_prob
        rank, token, log_prob = (table.view(images, size * width) for table in (rank, token, log_prob))
        if candidates.state is None:
            picked = rank.sort(dim=1, descending=True, stable=True).indices[:, : self.width]
            used = rank.gather(1, picked) != IMPOSSIBLE
        else:
            state = live.new_full((images * size, width), self.states - 1)
            state[inner] = candidates.state
            picked, used = _best_by_state(rank, state.view(images, size * width), self.states, self.width)
        parent = picked // width + first
        return Choice(
            parent=parent,
            token=token.gather(1, picked),
            log_prob=log_prob.gather(1, picked),
            used=used,
            grown=used & ~slots.finished.gather(1, parent),
        )

    def _candidates(self, total: Tensor, live: Tensor, log_probs: Tensor, worth: Tensor, step: int) -> _Candidates:
        state = None
        if self._required is None:
            token = top_indices(worth, self.width)
            value = worth.gather(1, token)
        else:
            # The best of the other words, and every word that brings a requirement forward.
            words = live.new_tensor(self._required.words)
            named = worth[:, words]
            others = worth.index_fill(1, words, IMPOSSIBLE)
            token = top_indices(others, self.width)
            value = torch.cat([others.gather(1, token), named], dim=1)
            following = live.new_tensor(self._required.successors)[self.states_of(live)]  # [L, K + 1]
            state = torch.cat([following[:, :1].expand_as(token), following[:, 1:]], dim=1)
            token, order = torch.cat([token, words.expand(len(live), -1)], dim=1).sort(dim=1)
            value, by_value = value.gather(1, order).sort(dim=1, descending=True, stable=True)
            token, state = token.gather(1, by_value), state.gather(1, order).gather(1, by_value)
        rank = total.unsqueeze(1) + value
        if self._length_penalty:
            rank = rank / rank.new_tensor(float(step + 1) ** self._length_penalty)
        return _Candidates(token, rank, log_probs.gather(1, token), state)


def _best_by_state(rank: Tensor, state: Tensor, states: int, width: int) -> tuple[Tensor, Tensor]:
    """The `width` best candidates of each state: indices `[A, states · width]` and whether there is one.

    Args:
        rank: `[A, n]`, -inf where there is no candidate.
        state: `[A, n]` the state each candidate leads to.
        states: number of states.
        width: how many to keep of each.
    """
    by_rank = rank.sort(dim=1, descending=True, stable=True).indices
    state = state.masked_fill(rank == IMPOSSIBLE, states).gather(1, by_rank)
    state, by_state = state.sort(dim=1, stable=True)
    order = by_rank.gather(1, by_state)
    bounds = torch.arange(states + 1, device=rank.device).expand(len(rank), -1).contiguous()
    starts = torch.searchsorted(state, bounds)  # where each state's candidates begin: [A, states + 1]
    place = starts[:, :-1].unsqueeze(2) + torch.arange(width, device=rank.device)  # [A, states, width]
    used = place < starts[:, 1:].unsqueeze(2)
    place = place.clamp_max(rank.shape[1] - 1)
    return order.gather(1, place.flatten(1)), used.flatten(1)
