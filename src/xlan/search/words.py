"""A query → the words that the model knows, and suggestions for those it does not."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from xlan.errors import SearchError
from xlan.text.content import fold
from xlan.text.tokenize import tokenize
from xlan.text.vocab import SPECIAL_WORDS, Vocabulary

MAX_WORDS = 30
MAX_CHARACTERS = 500
_NEAREST = 3
_ALIKE = 0.65  # of difflib: "labrador" and "labradors" have 0.94, "teh" and "the" 0.67, "dog" and "frog" 0.57


class QueryError(SearchError):
    """A sentence that cannot be searched for."""


@dataclass(frozen=True)
class UnknownWord:
    """A word of a query that the model does not know, and known words of similar spelling, nearest first."""

    word: str
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        near = f"; nearest known: {', '.join(self.nearest)}" if self.nearest else ""
        return f"unknown word {self.word!r}{near}"


@dataclass(frozen=True)
class Query:
    """A sentence to search for.

    Attributes:
        text: as it was typed.
        words: its words that the model knows, in order; at least one.
        unknown: the others.
    """

    text: str
    words: tuple[str, ...]
    unknown: tuple[UnknownWord, ...]


def read_query(text: str, vocabulary: Vocabulary) -> Query:
    """The words of a query. A form that is not known is replaced by its singular or plural where that is known.

    Raises:
        QueryError: no word of it is known, or it is too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise QueryError(f"query: expected at most {MAX_CHARACTERS} characters, got {len(text):,}")
    found = tokenize(text)
    if not found:
        raise QueryError(f"query: expected a sentence such as 'a dog on the beach', got {text!r}")
    if len(found) > MAX_WORDS:
        raise QueryError(f"query: expected at most {MAX_WORDS} words, got {len(found)}")
    known: list[str] = []
    unknown: dict[str, UnknownWord] = {}
    special = {vocabulary.words[i] for i in vars(vocabulary.special).values()} | set(SPECIAL_WORDS)
    words = [word for word in vocabulary.words if word not in special]
    for word in found:
        form = _known_form(word, vocabulary, special)
        if form:
            known.append(form)
        elif word not in unknown:
            unknown[word] = UnknownWord(word, nearest_words(word, words))
    if not known:
        raise QueryError(f"query: the model knows none of its words: {'; '.join(map(str, unknown.values()))}")
    return Query(text, tuple(known), tuple(unknown.values()))


def _known_form(word: str, vocabulary: Vocabulary, special: set[str]) -> str:
    """The word, or its singular or plural, whichever the vocabulary has; empty where it has none."""
    forms = (word, fold(word), word + "s", word + "es", word[:-1] + "ies" if word.endswith("y") else word)
    return next((form for form in forms if form in vocabulary and form not in special), "")


def nearest_words(word: str, words: list[str], *, count: int = _NEAREST) -> tuple[str, ...]:
    """Words of similar spelling, nearest first; of equally near words the commoner (earlier in `words`) first."""
    return tuple(difflib.get_close_matches(word, words, n=count, cutoff=_ALIKE))
