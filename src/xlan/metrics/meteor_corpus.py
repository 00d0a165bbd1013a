"""The sentences METEOR compares, and how the words and phrases of a batch relate: stems, synsets, paraphrases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xlan.metrics.meteor_align import Sentence
from xlan.metrics.meteor_data import HASH_FACTOR, MAX_PHRASE, MeteorData, word_hash
from xlan.metrics.meteor_text import normalise


class Word(NamedTuple):
    """What METEOR knows of one word by itself."""

    key: int
    stem: str
    synsets: frozenset[int]


class Corpus:
    """The sentences of a batch, each analysed once, with the relations between their words and phrases.

    Looking a phrase up in the table is worth it only when one of its paraphrases occurs in the batch; finding those
    for all sentences together is a few NumPy operations.

    Args:
        data: the resources.
        stem: the stemmer.
        known: words analysed before; new ones are added.
    """

    def __init__(self, data: MeteorData, stem: Callable[[str], str], known: dict[str, Word]) -> None:
        self._data = data
        self._stem = stem
        self._known = known
        self._lines: dict[str, int] = {}
        self._tokens: list[list[str]] = []
        self._sentences: list[Sentence] = []

    def add(self, line: str) -> int:
        """Register a caption; returns the number `self[number]` knows it by after `finish`."""
        number = self._lines.get(line)
        if number is None:
            number = self._lines[line] = len(self._tokens)
            self._tokens.append(
                normalise(line, prefixes=self._data.prefixes, numeric_prefixes=self._data.numeric_prefixes)
            )
        return number

    def __getitem__(self, number: int) -> Sentence:
        return self._sentences[number]

    def finish(self) -> None:
        """Relate the words and phrases of everything added."""
        words = {word: self._word(word) for word in dict.fromkeys(chain.from_iterable(self._tokens))}
        related = _relate(words)
        function_words = self._data.function_words
        self._sentences = [Sentence(tokens, related, function_words) for tokens in self._tokens]
        self._find_phrases(words)

    def _word(self, word: str) -> Word:
        known = self._known.get(word)
        if known is None:
            key = word_hash(word)
            known = self._known[word] = Word(key, self._stem(word), frozenset(self._synsets(word, key)))
        return known

    def _synsets(self, word: str, key: int) -> set[int]:
        """Synsets of a word and of its base form: irregular ones from WordNet's list, else by one ending rule."""
        synsets = set(self._data.synsets.get(key))
        bases = self._data.exceptions.get(key)
        if bases:
            for base in bases:
                synsets.update(self._data.synsets.get(base))
        elif len(word) > 2 and not word.endswith("ss"):
            for base_form in _base_forms(word):
                more = self._data.synsets.get(word_hash(base_form))
                if more:
                    synsets.update(more)
                    break
        return synsets

    def _find_phrases(self, words: Mapping[str, Word]) -> None:
        """Fill `sources` and `phrases` of every sentence."""
        lengths = np.array([len(tokens) for tokens in self._tokens], dtype=np.int64)
        total = int(lengths.sum())
        if total == 0:
            return
        flat = np.fromiter(
            (words[word].key for tokens in self._tokens for word in tokens), dtype=np.uint64, count=total
        )
        owner = np.repeat(np.arange(len(lengths)), lengths)
        begin = np.repeat(np.cumsum(lengths) - lengths, lengths)
        spans = _spans(flat, np.repeat(np.cumsum(lengths), lengths))
        present = np.unique(np.concatenate([values for values, _ in spans]))
        table = self._data.paraphrases
        rows = [table.rows(values) for values, _ in spans]
        useful = _useful(self._data, np.unique(np.concatenate(rows)), present)
        is_useful = np.zeros(len(table.keys) + 1, dtype=np.bool_)  # the last stands for "not in the table", row -1
        is_useful[list(useful)] = True
        wanted = np.array(sorted({other for others in useful.values() for other in others}), dtype=np.uint64)
        sources = []
        for size, ((values, at), row) in enumerate(zip(spans, rows, strict=True), start=1):
            known = np.flatnonzero(is_useful[row])
            sources.append(np.stack([at[known], np.full(len(known), size), row[known]]))
            chosen = np.flatnonzero(_contains(wanted, values))
            places = at[chosen]
            starts = (places - begin[places]).tolist()
            for number, start, key in zip(owner[places].tolist(), starts, values[chosen].tolist(), strict=True):
                self._sentences[number].phrases.setdefault(key, []).append((start, start + size))
        # Sources come by start, then length; so does the program, and ties depend on it.
        places, sizes, numbers = (found := np.concatenate(sources, axis=1))[:, np.lexsort(found[1::-1])]
        starts = (places - begin[places]).tolist()
        for owned, start, size, row_number in zip(
            owner[places].tolist(), starts, sizes.tolist(), numbers.tolist(), strict=True
        ):
            self._sentences[owned].sources.append((start, start + size, useful[row_number]))


def _relate(words: Mapping[str, Word]) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """For each word, the other words with the same stem and those that share a synset."""
    by_stem: dict[str, list[str]] = {}
    by_synset: dict[int, list[str]] = {}
    for text, word in words.items():
        by_stem.setdefault(word.stem, []).append(text)
        for synset in word.synsets:
            by_synset.setdefault(synset, []).append(text)
    related = {}
    for text, word in words.items():
        same_sense = {other for synset in word.synsets for other in by_synset[synset]}
        related[text] = (frozenset(by_stem[word.stem]) - {text}, frozenset(same_sense) - {text})
    return related


def _base_forms(word: str) -> Iterator[str]:
    """Base forms WordNet's regular endings allow, in the order the program tries them."""
    for ending, replacement in (
        ("s", ""),
        ("ies", "y"),
        ("es", ""),
        ("men", "man"),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
        ("er", ""),
        ("er", "e"),
        ("est", ""),
        ("est", "e"),
    ):
        if word.endswith(ending):
            yield word[: -len(ending)] + replacement


def _spans(
    flat: npt.NDArray[np.uint64], sentence_end: npt.NDArray[np.int64]
) -> list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
    """Phrase hashes of 1 to `MAX_PHRASE` words and the place each starts at, within sentences.

    Args:
        flat: `[T]` word hashes of all sentences in a row.
        sentence_end: `[T]` where the sentence of each word ends.
    """
    spans = []
    at = np.arange(len(flat))
    values = np.zeros(len(flat), dtype=np.uint64)
    for size in range(1, MAX_PHRASE + 1):
        fits = at + size <= sentence_end[at]
        at, values = at[fits], values[fits]
        values = values * np.uint64(HASH_FACTOR) + flat[at + size - 1]
        spans.append((values, at))
    return spans


def _contains(keys: npt.NDArray[np.uint64], values: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which of `values` are among the ascending `keys`."""
    if len(keys) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    found = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.asarray(keys[found] == values)


def _useful(
    data: MeteorData, rows: npt.NDArray[np.int64], present: npt.NDArray[np.uint64]
) -> dict[int, tuple[int, ...]]:
    """Row of the table → its paraphrases among the phrases present, for the rows that have any."""
    table = data.paraphrases
    rows = rows[rows >= 0]
    starts, stops = table.offsets[rows], table.offsets[rows + 1]
    sizes = stops - starts
    place = np.arange(int(sizes.sum())) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    others = np.asarray(table.values[place], dtype=np.uint64)
    keep = _contains(present, others)
    useful: dict[int, list[int]] = {}
    for row, other in zip(np.repeat(rows, sizes)[keep].tolist(), others[keep].tolist(), strict=True):
        useful.setdefault(row, []).append(other)
    return {row: tuple(group) for row, group in useful.items()}
