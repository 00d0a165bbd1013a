"""CIDEr-D in plain loops: slow, obvious, and what the fast versions are tested against."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

Gram = tuple[Hashable, ...]


def ngram_counts(words: Sequence[Hashable], orders: int = 4) -> Counter[Gram]:
    """How often each n-gram of order 1 to `orders` occurs."""
    return Counter(tuple(words[i : i + order]) for order in range(1, orders + 1) for i in range(len(words) - order + 1))


def document_frequencies(corpus: Iterable[Sequence[Sequence[Hashable]]]) -> Counter[Gram]:
    """In how many images each n-gram occurs; `corpus` gives the references of each image."""
    frequencies: Counter[Gram] = Counter()
    for references in corpus:
        frequencies.update({gram for reference in references for gram in ngram_counts(reference)})
    return frequencies


def cider_d(
    hypothesis: Sequence[Hashable],
    references: Sequence[Sequence[Hashable]],
    *,
    frequencies: Mapping[Gram, float],
    log_documents: float,
    orders: int = 4,
    sigma: float = 6.0,
) -> float:
    """CIDEr-D of one hypothesis.

    Args:
        hypothesis: words or ids.
        references: the references of the same image.
        frequencies: in how many documents each n-gram occurs; missing ones count as 1.
        log_documents: natural logarithm of the number of documents.
        orders: longest n-gram.
        sigma: width of the length penalty, in bigrams.
    """
    total = 0.0
    for reference in references:
        ours = ngram_counts(hypothesis, orders)
        theirs = ngram_counts(reference, orders)
        difference = max(0, len(hypothesis) - 1) - max(0, len(reference) - 1)
        penalty = math.exp(-(difference**2) / (2 * sigma**2))
        for order in range(1, orders + 1):
            weights = [
                {
                    gram: times * (log_documents - math.log(max(1.0, frequencies.get(gram, 0.0))))
                    for gram, times in counts.items()
                    if len(gram) == order
                }
                for counts in (ours, theirs)
            ]
            our_weights, their_weights = weights
            dot = sum(min(w, their_weights.get(g, 0.0)) * their_weights.get(g, 0.0) for g, w in our_weights.items())
            norms = math.hypot(*our_weights.values()) * math.hypot(*their_weights.values())
            total += penalty * (dot / norms if norms else dot)
    return 10.0 * total / orders / len(references)
