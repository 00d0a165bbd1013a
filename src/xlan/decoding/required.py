"""Required words: "the caption must mention *dog* (or *dogs*), and *frisbee*".

What has been mentioned so far is the state of a small automaton. It knows, for every state, how many more words it
takes at least until everything is mentioned. As a control, `Require` forbids the end while something is
missing, and forbids every word after which the missing ones would no longer fit: so they really appear, whatever picks
the words.

A beam search does better than wait for that moment: it keeps a beam for every state (constrained beam search, Anderson
et al. 2017), so sentences that already mention the words compete only with their like, and the words come where they
fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from xlan.decoding.controls import NEVER, Limits, Prefix, as_phrases, check_ids
from xlan.errors import DecodingError

Phrase = tuple[int, ...]
MAX_STATES = 128


class Require:
    """Words that must appear.

    Args:
        requirements: each is the alternatives of which one must appear; an alternative is an id, or a sequence of ids
            for a phrase. `Require([[dog, dogs], [frisbee]])`: a dog or dogs, and a frisbee.
        bad_endings: words a sentence may not end on, so that one more must fit behind them (searches fill this in from
            `NoBadEnding`).

    Raises:
        DecodingError: a requirement without alternatives, or more combinations than a search can follow.
    """

    def __init__(
        self, requirements: Iterable[Iterable[int | Sequence[int]]], *, bad_endings: Iterable[int] = ()
    ) -> None:
        self.requirements = tuple(as_phrases(alternatives) for alternatives in requirements)
        if not self.requirements or not all(self.requirements):
            raise DecodingError("required words: every requirement needs at least one word, got one without any")
        self.words: tuple[int, ...] = tuple(sorted({w for r in self.requirements for phrase in r for w in phrase}))
        self.successors: list[list[int]] = []
        """`[S][K + 1]`: the state after any other word (column 0) or after the K words in `words` (1 to K).

        State 0 is the start; the last state means that all is said.
        """
        self._build()
        self._still_needed = self._distances(frozenset(bad_endings))

    @property
    def states(self) -> int:
        """Number S of states."""
        return len(self.successors)

    def _build(self) -> None:
        """Number the states that can be reached and note where each word leads.

        A state is (requirements still open, the longest run of last words that starts a phrase still needed).
        """
        start: tuple[frozenset[int], Phrase] = (frozenset(range(len(self.requirements))), ())
        numbers = {start: 0}
        table: list[list[int]] = []
        queue = [start]
        for state in queue:
            row = []
            for word in (None, *self.words):
                following = self._follow(state, word)
                if following not in numbers:
                    numbers[following] = len(queue)
                    queue.append(following)
                row.append(numbers[following])
            table.append(row)
            if len(queue) > MAX_STATES:
                raise DecodingError(
                    f"required words: {len(self.requirements)} requirements make more than {MAX_STATES} combinations; "
                    "require fewer words at once"
                )
        goal = numbers[(frozenset(), ())]
        order = [i for i in range(len(table)) if i != goal] + [goal]
        place = {old: new for new, old in enumerate(order)}
        self.successors = [[place[i] for i in table[old]] for old in order]

    def _follow(self, state: tuple[frozenset[int], Phrase], word: int | None) -> tuple[frozenset[int], Phrase]:
        open_ones, run = state
        said = () if word is None else (*run, word)
        open_ones = frozenset(
            r for r in open_ones if not any(said[len(said) - len(p) :] == p for p in self.requirements[r] if said)
        )
        needed = [phrase for r in open_ones for phrase in self.requirements[r]]
        runs = (said[i:] for i in range(len(said)))
        return open_ones, next((r for r in runs if any(len(r) < len(p) and p[: len(r)] == r for p in needed)), ())

    def _distances(self, bad_endings: frozenset[int]) -> list[list[int]]:
        """`[S][K + 1]`: the fewest words that must follow each word, until all is said and the sentence may end."""
        goal, far = self.states - 1, self.states + 1
        behind = [0, *(int(word in bad_endings) for word in self.words)]
        fewest = [far] * self.states
        while True:
            needed = [
                [behind[column] if following == goal else 1 + fewest[following] for column, following in enumerate(row)]
                for row in self.successors
            ]
            before, fewest = fewest, [min(row) for row in needed]
            if fewest == before:
                return needed

    @property
    def fewest_words(self) -> int:
        """Length of the shortest sentence that says all."""
        return 1 + min(self._still_needed[0])

    def check(self, limits: Limits) -> None:
        """Refuse ids outside the vocabulary, and more words than fit."""
        check_ids("required words", self.words, limits)
        if self.fewest_words > limits.word_limit:
            raise DecodingError(
                f"required words: they take at least {self.fewest_words} words, but a sentence may have at most "
                f"{limits.word_limit}; require fewer words or raise the maximum length"
            )

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
        return state.new_tensor(self._still_needed)[state] <= words_left - 1

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
        named = log_probs[:, columns].masked_fill_(~allowed[:, 1:], NEVER)
        end = log_probs[:, prefix.special.eos].masked_fill(missing, NEVER)
        log_probs.masked_fill_(~allowed[:, :1], NEVER)
        log_probs[:, columns] = named
        log_probs[:, prefix.special.eos] = end
        return log_probs

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """`restrict` for rows whose state is not known."""
        return self.restrict(log_probs, self.state_of(prefix.tokens), prefix)
