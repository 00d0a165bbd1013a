"""CIDEr as the official COCO scorer computes it, for a corpus of tokenised captions.

Vedantam et al., 2015. What that scorer calls CIDEr is CIDEr-D: tf-idf vectors of n-grams (n = 1…4), a clipped cosine, a
Gaussian penalty (σ = 6) on the difference in length, mean over n and over references, times 10. Document frequencies
come from the references that are scored against; the length is the number of bigrams, as in the official code.
`xlan.metrics.cider_reference` is the same in plain loops.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xlan.metrics.ngrams import ORDERS, CorpusNgrams, Counts, Ints, add_up, different, find

SIGMA = 6.0
SCALE = 10.0

Floats = npt.NDArray[np.float64]


def cider(ngrams: CorpusNgrams) -> tuple[float, Floats]:
    """Mean over images, and the score `[I]` of each image."""
    image = ngrams.reference_image
    similarity = np.zeros(image.size)
    for order in range(ORDERS):
        similarity += _similarity(ngrams, order)
    bigrams = np.maximum(0, ngrams.reference_lengths - 1)
    difference = np.maximum(0, ngrams.hypothesis_lengths - 1)[image] - bigrams
    similarity *= np.exp(-(difference**2) / (2 * SIGMA**2))
    per_image = add_up(image, similarity, ngrams.images)
    several = np.bincount(image, minlength=ngrams.images)
    scores = per_image / ORDERS / several * SCALE
    return float(scores.mean()), scores


def _similarity(ngrams: CorpusNgrams, order: int) -> Floats:
    """`[R]` clipped cosine of each reference and the hypothesis of its image, for n-grams of one order."""
    ours, theirs, size = ngrams.hypotheses[order], ngrams.references[order], ngrams.gram_counts[order]
    idf = _inverse_document_frequency(theirs, ngrams.reference_image, size, ngrams.images)
    our_weight, their_weight = ours.times * idf[ours.gram], theirs.times * idf[theirs.gram]
    image_of = ngrams.reference_image[theirs.caption]
    place, there = find(ours.caption * size + ours.gram, image_of * size + theirs.gram)
    clipped = np.where(there, np.minimum(our_weight[place] if our_weight.size else 0.0, their_weight), 0.0)
    dots = add_up(theirs.caption, clipped * their_weight, ngrams.reference_image.size)
    our_norm = _norms(ours.caption, our_weight, ngrams.images)[ngrams.reference_image]
    norms = our_norm * _norms(theirs.caption, their_weight, ngrams.reference_image.size)
    return np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)


def _inverse_document_frequency(references: Counts, image: Ints, size: int, images: int) -> Floats:
    """`[G]` log(images) − log(images whose references have the n-gram)."""
    documents = different(image[references.caption] * size + references.gram) % size
    frequency = np.bincount(documents, minlength=size)
    return np.asarray(np.log(float(images)) - np.log(np.maximum(1.0, frequency)), dtype=np.float64)


def _norms(caption: Ints, weight: Floats, captions: int) -> Floats:
    return np.sqrt(add_up(caption, weight**2, captions))
