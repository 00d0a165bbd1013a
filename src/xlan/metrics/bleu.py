"""BLEU-1 to BLEU-4 as the official COCO scorer computes them, for a corpus and for every image.

Papineni et al., 2002: clipped n-gram precision, geometric mean over orders, brevity penalty with the closest reference
length (the shorter one of two that are equally close). The two small constants are the official scorer's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xlan.metrics.ngrams import ORDERS, CorpusNgrams, Ints, add_up, find

# Added to the matches and to the guesses, so that a caption without any n-gram scores about 0 and nothing divides by 0.
TINY, SMALL = 1e-15, 1e-9

Floats = npt.NDArray[np.float64]


class Bleu(NamedTuple):
    """BLEU of orders 1 to 4.

    Attributes:
        corpus: `[4]` scores of the whole corpus; not the means of the scores of the images.
        images: `[4, I]` scores of each image alone.
    """

    corpus: Floats
    images: Floats


class BleuParts(NamedTuple):
    """What BLEU adds up over a corpus.

    Attributes:
        matched: `[4, I]` clipped matches.
        guessed: `[4, I]` n-grams in the hypotheses.
        lengths: `[I]` words of the hypotheses.
        closest: `[I]` closest reference lengths.
    """

    matched: Ints
    guessed: Ints
    lengths: Ints
    closest: Ints

    def corpus(self, weights: Ints | None = None) -> Floats:
        """`[4, S]` corpus scores of S samples; sample s counts image i `weights[i, s]` times (None: once, S = 1)."""
        times = np.ones((self.lengths.size, 1), dtype=np.int64) if weights is None else weights
        return _combine(self.matched @ times, self.guessed @ times, self.lengths @ times, self.closest @ times)

    def order(self, order: int, weights: Ints) -> Floats:
        """`[S]` corpus scores of one order, 1 to 4, of the samples that `corpus` describes."""
        upto = BleuParts(self.matched[:order], self.guessed[:order], self.lengths, self.closest)
        scores: Floats = upto.corpus(weights)[-1]
        return scores

    def scores(self) -> Bleu:
        """The scores of the corpus and of each image."""
        return Bleu(self.corpus()[:, 0], _combine(self.matched, self.guessed, self.lengths, self.closest))


def bleu(ngrams: CorpusNgrams) -> Bleu:
    """Score a corpus."""
    return bleu_parts(ngrams).scores()


def bleu_parts(ngrams: CorpusNgrams) -> BleuParts:
    """The sums that BLEU is made of, for each image."""
    matched = np.stack([_matches(ngrams, order) for order in range(ORDERS)])
    guessed = np.maximum(0, ngrams.hypothesis_lengths[None, :] - np.arange(ORDERS)[:, None])
    return BleuParts(matched, guessed, ngrams.hypothesis_lengths, _closest_lengths(ngrams))


def _matches(ngrams: CorpusNgrams, order: int) -> Ints:
    """`[I]` n-grams of each hypothesis found in its references, each at most as often as in one of them."""
    ours, theirs, size = ngrams.hypotheses[order], ngrams.references[order], ngrams.gram_counts[order]
    place, there = find(ours.caption * size + ours.gram, ngrams.reference_image[theirs.caption] * size + theirs.gram)
    most = np.zeros(ours.gram.size, dtype=np.int64)
    np.maximum.at(most, place[there], theirs.times[there])
    clipped = np.minimum(ours.times, most)
    return add_up(ours.caption, clipped, ngrams.images).astype(np.int64)


def _closest_lengths(ngrams: CorpusNgrams) -> Ints:
    """`[I]` length of the reference closest in length to the hypothesis; of two, the shorter."""
    image, lengths = ngrams.reference_image, ngrams.reference_lengths
    distance = np.abs(lengths - ngrams.hypothesis_lengths[image])
    best = np.lexsort((lengths, distance, image))
    first = np.searchsorted(image, np.arange(ngrams.images))
    return lengths[best][first]


def _combine(matched: Ints, guessed: Ints, lengths: Ints, closest: Ints) -> Floats:
    precision = (matched + TINY) / (guessed + SMALL)
    roots = 1.0 / np.arange(1, len(matched) + 1)
    scores: Floats = np.cumprod(precision, axis=0) ** roots[:, None]
    ratio = (lengths + TINY) / (closest + SMALL)
    with np.errstate(over="ignore"):
        penalty = np.where(ratio < 1, np.exp(1 - 1 / ratio), 1.0)
    return scores * penalty
