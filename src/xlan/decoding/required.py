"""Required words: "the caption must mention *dog* (or *dogs*), and *frisbee*".

What has been mentioned so far is the state of a small automaton. It knows, for every state, how many more words it
takes at least until everything is mentioned. As a control, `Require` forbids the end while something is
missing, and forbids every word after which the missing ones would no longer fit: so they really appear, whatever picks
the words.

A beam search does better than wait for that moment: it keeps a beam for every state (constrained beam search, Anderson
et al. 2017), so sentences that already mention the words compete only with each other, and the words come where they
fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xlan.decoding.controls import Limits, Prefix, check_ids
from xlan.decoding.step import IMPOSSIBLE
from xlan.required import RequiredWords


class Require(RequiredWords):
    """Words that must appear, as a control; see `RequiredWords` for the arguments.

    `Require([[dog, dogs], [frisbee]])`: a dog or dogs, and a frisbee. Searches fill in `bad_endings` from
    `NoBadEnding`.
    """

    def check(self, limits: Limits) -> None:
        """Refuse ids outside the vocabulary, and more words than fit."""
        check_ids("required words", self.words, limits)
        self.check_room(limits.word_limit)

    def state_of(self, tokens: Tensor) -> Tensor:
        """State of rows that said `tokens` (`[R, t]`): `[R]` int64."""
        words = tokens.new_tensor(self.words)
        place = torch.searchsorted(words, tokens.contiguous()).clamp_max(len(self.words) - 1)
        column = torch.where(words[place] == tokens, place + 1, 0)  # [R, t]
        successors = tokens.new_tensor(self.successors)
        state = tokens.new_zeros(tokens.shape[0])
        for step in range(tokens.shape[1]):
            state = successors[state, column[:, step]]
        return state

    def allowed(self, state: Tensor, words_left: int) -> Tensor:
        """Which words still leave room for what is missing: `[R, K + 1]` bool, columns as in `successors`.

        Args:
            state: `[R]` int64.
            words_left: words that may still be said, the next one included.
        """
        return state.new_tensor(self.still_needed)[state] <= words_left - 1

    def restrict(self, log_probs: Tensor, state: Tensor, prefix: Prefix) -> Tensor:
        """Forbid, in place, the end where something is missing and words that leave no room for it.

        Args:
            log_probs: `[R, V]`.
            state: `[R]` int64.
            prefix: of the same rows.
        """
        missing = state != self.states - 1
        allowed = self.allowed(state, prefix.words_left) | ~missing.unsqueeze(1)
        columns = list(self.words)
        named = log_probs[:, columns].masked_fill_(~allowed[:, 1:], IMPOSSIBLE)
        end = log_probs[:, prefix.special.eos].masked_fill(missing, IMPOSSIBLE)
        log_probs.masked_fill_(~allowed[:, :1], IMPOSSIBLE)
        log_probs[:, columns] = named
        log_probs[:, prefix.special.eos] = end
        return log_probs

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """`restrict` for rows whose state is not known."""
        return self.restrict(log_probs, self.state_of(prefix.tokens), prefix)
