"""Counting n-grams of a whole corpus at once, with exact integer names for them.

An n-gram is named by the pair (name of its first n−1 words, last word); the pairs that occur are sorted and numbered.
Nothing is hashed, so two n-grams never share a name. BLEU and CIDEr read the same counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from xlan.errors import MetricError

ORDERS = 4

Ints = npt.NDArray[np.int64]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Counts:
    """How often each n-gram of one order occurs in each caption; sorted by caption, then n-gram.

    Attributes:
        caption: `[M]` index of the caption.
        gram: `[M]` name of the n-gram.
        times: `[M]` occurrences, at least 1.
    """

    caption: Ints
    gram: Ints
    times: Ints


@dataclass(frozen=True)
class CorpusNgrams:
    """N-gram counts of I hypotheses and their R references.

    Attributes:
        hypotheses: counts for order 1 to 4; the caption index is the image index.
        references: the same for the references.
        gram_counts: number of different n-grams of each order in both.
        hypothesis_lengths: `[I]` words.
        reference_lengths: `[R]` words.
        reference_image: `[R]` image index of each reference, ascending.
    """

    hypotheses: tuple[Counts, ...]
    references: tuple[Counts, ...]
    gram_counts: tuple[int, ...]
    hypothesis_lengths: Ints
    reference_lengths: Ints
    reference_image: Ints

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.hypothesis_lengths.size)

    @classmethod
    def from_texts(cls, references: Mapping[Key, Sequence[str]], hypotheses: Mapping[Key, str]) -> CorpusNgrams:
        """Count tokenised captions; images are numbered in the order of `hypotheses`."""
        check_pairs(references, hypotheses)
        several = [references[key] for key in hypotheses]
        split = [text.split() for texts in several for text in texts]
        first_hypothesis = len(split)
        split += [text.split() for text in hypotheses.values()]
        ids: dict[str, int] = {}
        flat = np.array([ids.setdefault(word, len(ids)) for words in split for word in words], dtype=np.int64)
        lengths = np.array([len(words) for words in split], dtype=np.int64)
        in_references: list[Counts] = []
        in_hypotheses: list[Counts] = []
        sizes: list[int] = []
        for occurrences in iterate_orders(flat, lengths, max(1, len(ids))):
            counts = count(occurrences.caption, occurrences.gram, occurrences.size)
            cut = int(np.searchsorted(counts.caption, first_hypothesis))
            in_references.append(Counts(counts.caption[:cut], counts.gram[:cut], counts.times[:cut]))
            in_hypotheses.append(Counts(counts.caption[cut:] - first_hypothesis, counts.gram[cut:], counts.times[cut:]))
            sizes.append(occurrences.size)
        return cls(
            hypotheses=tuple(in_hypotheses),
            references=tuple(in_references),
            gram_counts=tuple(sizes),
            hypothesis_lengths=lengths[first_hypothesis:],
            reference_lengths=lengths[:first_hypothesis],
            reference_image=np.repeat(np.arange(len(several)), [len(texts) for texts in several]),
        )


def check_pairs(references: Mapping[Key, Sequence[str]], hypotheses: Mapping[Key, str]) -> None:
    """Every hypothesis has at least one reference, and there is at least one hypothesis.

    Raises:
        MetricError: otherwise.
    """
    if not hypotheses:
        raise MetricError("there is nothing to score: got no captions")
    for key in hypotheses:
        if not references.get(key):
            raise MetricError(f"image {key!r} has a caption to score but no reference captions")


class Occurrences(NamedTuple):
    """Every occurrence of an n-gram of one order.

    Attributes:
        caption: `[M]` index of the caption.
        gram: `[M]` name of the n-gram, below `size`.
        pairs: `[size]` ascending: (name of the first n−1 words) · vocabulary + last word; None for order 1, where the
            name is the word.
        size: number of names.
    """

    caption: Ints
    gram: Ints
    pairs: Ints | None
    size: int


def iterate_orders(flat: Ints, lengths: Ints, vocabulary: int) -> Iterator[Occurrences]:
    """The n-grams of order 1 to 4 in all captions.

    Args:
        flat: `[W]` word ids of all captions, one caption after the other.
        lengths: `[C]` words of each caption.
        vocabulary: word ids are below this.
    """
    owner = np.repeat(np.arange(lengths.size), lengths)
    starts = np.arange(flat.size)
    names = flat
    yield Occurrences(owner, names, None, vocabulary)
    for order in range(2, ORDERS + 1):
        last = starts + order - 1
        inside = last < flat.size
        inside[inside] = owner[starts[inside]] == owner[last[inside]]
        starts, names = starts[inside], names[inside]
        pairs = names * vocabulary + flat[starts + order - 1]
        known, names = np.unique(pairs, return_inverse=True)
        yield Occurrences(owner[starts], names.astype(np.int64, copy=False), known, max(1, known.size))


def count(caption: Ints, gram: Ints, size: int) -> Counts:
    """Add up equal (caption, n-gram) pairs; `size` bounds the n-gram names."""
    pairs, times = np.unique(caption * size + gram, return_counts=True)
    return Counts(caption=pairs // size, gram=pairs % size, times=times.astype(np.int64, copy=False))


def find(sorted_keys: Ints, keys: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Place of each of `keys` in `sorted_keys`, and whether it is there (the place means nothing otherwise)."""
    if sorted_keys.size == 0:
        return np.zeros(keys.size, dtype=np.int64), np.zeros(keys.size, dtype=np.bool_)
    place = np.minimum(np.searchsorted(sorted_keys, keys), sorted_keys.size - 1)
    return place, sorted_keys[place] == keys


def add_up(index: Ints, values: npt.NDArray[np.generic], size: int) -> npt.NDArray[np.float64]:
    """`[size]` sums of `values` by `index`, as float64 even when there are none."""
    return np.bincount(index, weights=values, minlength=size).astype(np.float64, copy=False)


def different(values: Ints) -> Ints:
    """The different values, ascending. Sorting beats the hashing of `np.unique` several times over on this data."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if ordered.size else ordered
