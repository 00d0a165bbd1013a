"""METEOR 1.5 for English, in-process: the score `java -jar meteor-1.5.jar - - -stdio -l en -norm` gives.

Denkowski & Lavie, "Meteor Universal" (2014): words of caption and reference are matched exactly, by stem, as WordNet
synonyms or as paraphrases; weighted precision P and recall R (function words weigh less) give
Fmean = P·R / (α·P + (1 − α)·R), lowered by a penalty γ·(chunks / matches)^β for scattered matches. A caption is
scored against its best reference; the corpus score is computed from the summed counts, not from the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics.meteor_align import EXACT, Match, Sentence, align, count_chunks, find_matches
from xlan.metrics.meteor_data import HASH_FACTOR, MAX_PHRASE, MeteorData, load_data, word_hash
from xlan.metrics.meteor_text import normalise

Id = TypeVar("Id", bound=Hashable)

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # exact, stem, synonym, paraphrase
_IMAGES_AT_ONCE = 5000

# Counts of one alignment, as the official program prints them: words, function words (caption, reference); per
# matcher content and function words matched (caption, reference); chunks, matched words (caption, reference).
_LENGTHS, _CHUNKS, _SIZE = slice(0, 4), 20, 23
Counts = list[int]


class Meteor:
    """METEOR 1.5 (English, `-norm`, default parameters) over tokenised captions.

    The first use on a machine builds an index of the resources (a minute); after that it is memory-mapped.

    Args:
        data: the resources; those of the installed `pycocoevalcap` package by default.

    Raises:
        MissingExtraError: the packages of the extra `metrics` are not installed.
        MetricError: the resources cannot be read or the index cannot be stored.
    """

    def __init__(self, data: MeteorData | None = None) -> None:
        try:
            import snowballstemmer
        except ImportError:
            raise MissingExtraError("METEOR", "metrics") from None
        self._stem: Callable[[str], str] = snowballstemmer.stemmer("english").stemWord
        self._data = data if data is not None else load_data()

    def score(
        self,
        references: Mapping[Id, Sequence[str]],
        hypotheses: Mapping[Id, str],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[float, list[float]]:
        """Score captions against their references.

        Args:
            references: image → its reference captions, PTB-tokenised and lower-case.
            hypotheses: image → its caption, tokenised the same way.
            progress: called with the number of images scored so far.

        Returns:
            The corpus score and the score of each image in the order of `hypotheses`, all between 0 and 1.

        Raises:
            MetricError: there is no caption, or an image has no reference.
        """
        if not hypotheses:
            raise MetricError("METEOR needs at least one caption, got none")
        for image in hypotheses:
            if not references.get(image):
                raise MetricError(f"image {image!r} has no reference caption; METEOR needs at least one")
        totals, scores = [0] * _SIZE, []
        todo = iter(hypotheses.items())
        while batch := list(islice(todo, _IMAGES_AT_ONCE)):
            corpus = Corpus(self._data, self._stem)
            lines = [(caption, [corpus.add(text) for text in references[image]]) for image, caption in batch]
            pairs = [(corpus.add(_as_sent(caption)), others) for caption, others in lines]
            corpus.finish()
            for caption, others in pairs:
                counts, score = _best(corpus[caption], [corpus[other] for other in others])
                scores.append(score)
                for index, value in enumerate(counts):
                    totals[index] += value
                if _is_whole(counts):
                    totals[_CHUNKS] -= counts[_CHUNKS]  # the official sums leave this chunk out
                if progress is not None:
                    progress(len(scores))
        return score_counts(totals), scores


def _as_sent(caption: str) -> str:
    """What the official wrapper does to a caption before it writes it to the program."""
    return caption.replace("|||", "").replace("  ", " ")


def score_counts(counts: Sequence[int]) -> float:
    """METEOR from counts, of one caption or summed over many."""
    precision, recall = _ratios(counts)
    if precision == 0 or recall == 0:
        return 0.0
    mean = precision * recall / (ALPHA * precision + (1 - ALPHA) * recall)
    chunks, matched, matched_reference = counts[_CHUNKS:]
    fragmentation = 0.0 if _is_whole(counts) else chunks / ((matched + matched_reference) / 2)
    return float(mean * (1 - GAMMA * fragmentation**BETA))


def _ratios(counts: Sequence[int]) -> tuple[float, float]:
    length, reference_length, functions, reference_functions = counts[_LENGTHS]
    covered = covered_reference = 0.0
    for module, weight in enumerate(WEIGHTS):
        content, content_reference, function, function_reference = counts[4 + 4 * module : 8 + 4 * module]
        covered += weight * (DELTA * content + (1 - DELTA) * function)
        covered_reference += weight * (DELTA * content_reference + (1 - DELTA) * function_reference)
    whole = DELTA * (length - functions) + (1 - DELTA) * functions
    whole_reference = DELTA * (reference_length - reference_functions) + (1 - DELTA) * reference_functions
    return (covered / whole if whole else 0.0), (covered_reference / whole_reference if whole_reference else 0.0)


def _is_whole(counts: Sequence[int]) -> bool:
    """Whether one chunk covers both sentences completely; such a pair is not fragmented at all."""
    chunks, matched, matched_reference = counts[_CHUNKS:]
    return chunks == 1 and matched == counts[0] and matched_reference == counts[1]


def _count(test: Sentence, reference: Sentence, alignment: Sequence[Match]) -> Counts:
    counts = [len(test.words), len(reference.words), test.functions, reference.functions, *[0] * 19]
    for start, stop, at, end, module in alignment:
        base = 4 + 4 * module
        content, content_reference = sum(test.content[at:end]), sum(reference.content[start:stop])
        counts[base] += content
        counts[base + 1] += content_reference
        counts[base + 2] += end - at - content
        counts[base + 3] += stop - start - content_reference
        counts[21] += end - at
        counts[22] += stop - start
    counts[_CHUNKS] = count_chunks(alignment)
    return counts


def _best(test: Sentence, references: Sequence[Sentence]) -> tuple[Counts, float]:
    """Counts and score against the best reference; the first of equals."""
    candidates = []
    for index, reference in enumerate(references):
        found = find_matches(test, reference)
        candidates.append((_bound(test, reference, found), -index, found))
    candidates.sort(key=lambda candidate: candidate[:2], reverse=True)
    best: tuple[float, int, Counts] | None = None
    for bound, index, found in candidates:
        if best is not None and bound < best[0] - 1e-9:
            break  # no alignment with this reference, or any after it, can win
        reference = references[-index]
        counts = _count(test, reference, align(found, len(test.words)))
        best = max(best or (-1.0, 0, counts), (score_counts(counts), index, counts), key=lambda entry: entry[:2])
    assert best is not None
    return best[2], best[0]


def _bound(test: Sentence, reference: Sentence, found: list[list[Match]]) -> float:
    """A score no alignment made of these matches can exceed: every word covered by its best match, in one chunk."""
    weights, reference_weights = [0.0] * len(test.words), [0.0] * len(reference.words)
    for here in found:
        for start, stop, at, end, module in here:
            weight = WEIGHTS[module]
            for index in range(start, stop):
                if weight > reference_weights[index]:
                    reference_weights[index] = weight
            for index in range(at, end):
                if weight > weights[index]:
                    weights[index] = weight
    precision, matched = _coverage(test, weights)
    recall, matched_reference = _coverage(reference, reference_weights)
    if precision == 0 or recall == 0:
        return 0.0
    mean = precision * recall / (ALPHA * precision + (1 - ALPHA) * recall)
    if matched == len(weights) and matched_reference == len(reference_weights):
        return mean
    return float(mean * (1 - GAMMA * (2 / (matched + matched_reference)) ** BETA))


def _coverage(sentence: Sentence, weights: Sequence[float]) -> tuple[float, int]:
    covered, matched = 0.0, 0
    for content, weight in zip(sentence.content, weights, strict=True):
        if weight:
            matched += 1
            covered += weight * (DELTA if content else 1 - DELTA)
    whole = DELTA * (len(weights) - sentence.functions) + (1 - DELTA) * sentence.functions
    return (covered / whole if whole else 0.0), matched


class Corpus:
    """The sentences of a batch, each analysed once, with the relations between their words and phrases.

    Looking a phrase up in the table is worth it only when one of its paraphrases occurs in the batch; finding those
    for all sentences together is a few NumPy operations.
    """

    def __init__(self, data: MeteorData, stem: Callable[[str], str]) -> None:
        self._data = data
        self._stem = stem
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
        hashes: dict[str, int] = {}
        for tokens in self._tokens:
            for word in tokens:
                if word not in hashes:
                    hashes[word] = word_hash(word)
        related = self._relate(hashes)
        function_words = self._data.function_words
        self._sentences = [Sentence(tokens, related, function_words) for tokens in self._tokens]
        self._find_phrases(hashes)

    def _relate(self, hashes: Mapping[str, int]) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
        """For each word, the other words with the same stem and those that share a synset."""
        by_stem: dict[str, list[str]] = {}
        by_synset: dict[int, list[str]] = {}
        stems, synsets = {}, {}
        for word in hashes:
            stems[word] = self._stem(word)
            by_stem.setdefault(stems[word], []).append(word)
            synsets[word] = self._synsets(word, hashes[word])
            for synset in synsets[word]:
                by_synset.setdefault(synset, []).append(word)
        related = {}
        for word in hashes:
            same_sense = {other for synset in synsets[word] for other in by_synset[synset]}
            related[word] = (frozenset(by_stem[stems[word]]) - {word}, frozenset(same_sense) - {word})
        return related

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

    def _find_phrases(self, hashes: Mapping[str, int]) -> None:
        """Fill `sources` and `phrases` of every sentence."""
        lengths = np.array([len(tokens) for tokens in self._tokens], dtype=np.int64)
        total = int(lengths.sum())
        if total == 0:
            return
        flat = np.fromiter((hashes[word] for tokens in self._tokens for word in tokens), dtype=np.uint64, count=total)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        begin = np.repeat(np.cumsum(lengths) - lengths, lengths)
        spans = _spans(flat, np.repeat(np.cumsum(lengths), lengths))
        present = np.unique(np.concatenate([values for values, _ in spans]))
        table = self._data.paraphrases
        rows = [table.rows(values) for values, _ in spans]
        useful = _useful(self._data, np.unique(np.concatenate(rows)), present)
        wanted = np.array(sorted({other for others in useful.values() for other in others}), dtype=np.uint64)
        # Sources come by start, then length; so does the program, and ties depend on it.
        found: list[tuple[int, int, int, int]] = []
        for size, ((values, at), row) in enumerate(zip(spans, rows, strict=True), start=1):
            known = np.flatnonzero(np.isin(row, np.fromiter(useful, dtype=np.int64, count=len(useful))))
            starts = at[known]
            found += zip(
                starts.tolist(), [size] * len(starts), row[known].tolist(), owner[starts].tolist(), strict=True
            )
            for index in np.flatnonzero(_contains(wanted, values)).tolist():
                place = int(at[index])
                start = place - int(begin[place])
                sentence = self._sentences[owner[place]]
                sentence.phrases.setdefault(int(values[index]), []).append((start, start + size))
        found.sort()
        for place, size, row_number, number in found:
            start = place - int(begin[place])
            self._sentences[number].sources.append((start, start + size, useful[row_number]))


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
