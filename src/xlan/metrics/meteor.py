"""METEOR 1.5 for English, in-process: the score `java -jar meteor-1.5.jar - - -stdio -l en -norm` gives.

Denkowski & Lavie, "Meteor Universal" (2014): words of caption and reference are matched exactly, by stem, as WordNet
synonyms or as paraphrases; weighted precision P and recall R (function words weigh less) give
Fmean = P·R / (α·P + (1 − α)·R), lowered by a penalty γ·(chunks / matches)^β for scattered matches. A caption is
scored against its best reference; the corpus score is computed from the summed counts, not from the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics.meteor_align import Match, Sentence, align, count_chunks, find_matches
from xlan.metrics.meteor_corpus import Corpus, Word
from xlan.metrics.meteor_data import MeteorData, load_data

Id = TypeVar("Id", bound=Hashable)

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = (1.0, 0.6, 0.8, 0.6)  # exact, stem, synonym, paraphrase
_IMAGES_AT_ONCE = 2000
_MAX_KNOWN_WORDS = 200_000

# Counts of one alignment, as the official program prints them: words, function words (caption, reference); per
# matcher content and function words matched (caption, reference); chunks, matched words (caption, reference).
_LENGTHS, _CHUNKS, _SIZE = slice(0, 4), 20, 23
Counts = list[int]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class MeteorParts(NamedTuple):
    """What METEOR adds up over a corpus.

    Attributes:
        counts: `[I, 23]` counts of each image against its best reference, as the corpus sums take them.
        images: `[I]` score of each image.
    """

    counts: Ints
    images: Floats

    def corpus(self, weights: Ints | None = None) -> Floats:
        """`[S]` corpus scores of S samples; sample s counts image i `weights[i, s]` times (None: once, S = 1)."""
        sums = self.counts.sum(axis=0, keepdims=True) if weights is None else weights.T @ self.counts
        return np.array([score_counts(row) for row in sums.tolist()])


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
        self._known: dict[str, Word] = {}

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
        parts = self.parts(references, hypotheses, progress=progress)
        return float(parts.corpus()[0]), parts.images.tolist()

    def parts(
        self,
        references: Mapping[Id, Sequence[str]],
        hypotheses: Mapping[Id, str],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> MeteorParts:
        """The counts and the score of each image, in the order of `hypotheses`; arguments and errors as in `score`."""
        if not hypotheses:
            raise MetricError("METEOR needs at least one caption, got none")
        for image in hypotheses:
            if not references.get(image):
                raise MetricError(f"image {image!r} has no reference caption; METEOR needs at least one")
        rows: list[Counts] = []
        scores: list[float] = []
        todo = iter(hypotheses.items())
        while batch := list(islice(todo, _IMAGES_AT_ONCE)):
            if len(self._known) > _MAX_KNOWN_WORDS:
                self._known.clear()
            corpus = Corpus(self._data, self._stem, self._known)
            lines = [(caption, [corpus.add(text) for text in references[image]]) for image, caption in batch]
            pairs = [(corpus.add(_as_sent(caption)), others) for caption, others in lines]
            corpus.finish()
            for caption, others in pairs:
                counts, score = _best(corpus[caption], [corpus[other] for other in others])
                scores.append(score)
                if _is_whole(counts):
                    counts[_CHUNKS] = 0  # the official sums leave this chunk out
                rows.append(counts)
                if progress is not None:
                    progress(len(scores))
        return MeteorParts(np.array(rows, dtype=np.int64), np.array(scores))


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
