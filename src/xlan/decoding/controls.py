"""What a sentence may and may not say: functions on the log-probabilities of the next word.

A control takes log-probabilities `[R, V]` and what the rows have said so far, and returns log-probabilities. It may
write into the tensor it is given. To forbid a word it sets -inf; nothing is renormalised, so scores stay the model's
own. A control never raises a log-probability. Any callable will do; those here are small frozen records, so that a
search can also check them before it starts.

Controls are applied in the order given. Required words (`xlan.decoding.required.Require`) are a control too, but
searches treat them with more care: see there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xlan.decoding.step import IMPOSSIBLE
from xlan.errors import DecodingError
from xlan.required import as_phrases
from xlan.types import SpecialIds


@dataclass(frozen=True)
class Prefix:
    """What R rows have said so far.

    Attributes:
        tokens: `[R, t]` int64, ids emitted before this step (no `bos`; no `eos` either, since these rows continue).
        image: `[R]` int64, the image of each row.
        special: ids with a meaning of their own; they may be the same id.
        max_length: steps of this search, the one that emits `eos` included.
        word_limit: most words a sentence may have: `max_length`, or less under `MaxLength`.
    """

    tokens: Tensor
    image: Tensor
    special: SpecialIds
    max_length: int
    word_limit: int

    @property
    def step(self) -> int:
        """Number of words said."""
        return self.tokens.shape[1]

    @property
    def words_left(self) -> int:
        """Number of words that may still be said, the one of this step included."""
        return self.word_limit - self.step


Control = Callable[[Tensor, Prefix], Tensor]


@dataclass(frozen=True)
class Limits:
    """What a control is checked against before a search starts."""

    vocab_size: int
    special: SpecialIds
    word_limit: int


@dataclass(frozen=True)
class MinLength:
    """At least `words` words before the end."""

    words: int

    def check(self, limits: Limits) -> None:
        """Refuse more words than fit."""
        if self.words > limits.word_limit:
            raise DecodingError(
                f"minimum length: {self.words} words are asked for, but a sentence may have at most "
                f"{limits.word_limit}; lower the minimum or raise the maximum length"
            )

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """Forbid `eos` while the sentence is too short."""
        if prefix.step < self.words:
            log_probs[:, prefix.special.eos] = IMPOSSIBLE
        return log_probs


@dataclass(frozen=True)
class MaxLength:
    """At most `words` words, then the end.

    Unlike the maximum length of a search, which cuts a sentence off, this makes the model end it.
    """

    words: int

    def check(self, limits: Limits) -> None:  # noqa: ARG002
        """Refuse limits below one word."""
        if self.words < 1:
            raise DecodingError(f"maximum length: expected at least 1 word, got {self.words}")

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """Forbid all but `eos` once the sentence is long enough."""
        if prefix.step >= self.words:
            end = log_probs[:, prefix.special.eos].clone()
            log_probs.fill_(IMPOSSIBLE)
            log_probs[:, prefix.special.eos] = end
        return log_probs


@dataclass(frozen=True)
class NoRepeat:
    """No `n` words in a row occur twice in a sentence (`n` = 1: no word twice)."""

    n: int

    def check(self, limits: Limits) -> None:  # noqa: ARG002
        """Refuse n below 1."""
        if self.n < 1:
            raise DecodingError(f"no repeated n-gram: expected n of at least 1, got {self.n}")

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """Forbid the words that would complete an n-gram for the second time."""
        said = prefix.tokens
        if prefix.step < self.n:
            return log_probs
        grams = said.unfold(1, self.n, 1)  # [R, t - n + 1, n]
        current = said[:, prefix.step - self.n + 1 :].unsqueeze(1)  # the last n - 1 words: [R, 1, n - 1]
        same = (grams[:, :, :-1] == current).all(dim=2)
        # A word can follow several n-grams of which one matches: the minimum keeps that one.
        penalty = torch.where(same, IMPOSSIBLE, float("inf")).to(log_probs.dtype)
        return log_probs.scatter_reduce_(1, grams[:, :, -1], penalty, reduce="amin")


@dataclass(frozen=True, init=False)
class Forbid:
    """Words, or phrases of several words, that never appear.

    Args:
        entries: ids, or sequences of ids for phrases.
    """

    phrases: tuple[tuple[int, ...], ...]

    def __init__(self, entries: Iterable[int | Sequence[int]]) -> None:
        object.__setattr__(self, "phrases", as_phrases(entries))

    @property
    def words(self) -> frozenset[int]:
        """Single ids that are forbidden wherever they stand."""
        return frozenset(phrase[0] for phrase in self.phrases if len(phrase) == 1)

    def check(self, limits: Limits) -> None:
        """Refuse ids outside the vocabulary, and forbidding the end."""
        check_ids("forbidden words", (word for phrase in self.phrases for word in phrase), limits)

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """Forbid the words, and the last word of each phrase whose other words were just said."""
        log_probs[:, sorted(self.words)] = IMPOSSIBLE
        for phrase in self.phrases:
            before = len(phrase) - 1
            if 0 < before <= prefix.step:
                said = prefix.tokens[:, prefix.step - before :] == prefix.tokens.new_tensor(phrase[:-1])
                log_probs[:, phrase[-1]].masked_fill_(said.all(dim=1), IMPOSSIBLE)
        return log_probs


@dataclass(frozen=True)
class SuppressUnknown:
    """The unknown word never appears (without effect where the vocabulary uses one id for it and for the end)."""

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """Forbid `unk`."""
        if prefix.special.unk != prefix.special.eos:
            log_probs[:, prefix.special.unk] = IMPOSSIBLE
        return log_probs


@dataclass(frozen=True, init=False)
class NoBadEnding:
    """A sentence does not end on certain words (a, the, of, with …), not even when it is cut off.

    Args:
        words: the ids of these words.
    """

    words: frozenset[int]

    def __init__(self, words: Iterable[int]) -> None:
        object.__setattr__(self, "words", frozenset(words))

    def check(self, limits: Limits) -> None:
        """Refuse ids outside the vocabulary, and the end itself."""
        check_ids("words a caption may not end on", self.words, limits)

    def __call__(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """Forbid `eos` after these words, and these words where no other could follow."""
        bad = sorted(self.words)
        if prefix.step:
            ends_badly = torch.isin(prefix.tokens[:, -1], prefix.tokens.new_tensor(bad))
            log_probs[:, prefix.special.eos].masked_fill_(ends_badly, IMPOSSIBLE)
        if prefix.words_left == 1:
            log_probs[:, bad] = IMPOSSIBLE
        return log_probs


def check_ids(what: str, ids: Iterable[int], limits: Limits) -> None:
    """Refuse ids that are not in the vocabulary or are the end of a sentence."""
    for i in ids:
        if not 0 <= i < limits.vocab_size:
            raise DecodingError(f"{what}: id {i} is outside the vocabulary (0 to {limits.vocab_size - 1})")
        if i == limits.special.eos:
            raise DecodingError(f"{what}: id {i} is the end of a sentence, not a word")
