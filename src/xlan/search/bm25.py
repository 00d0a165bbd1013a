"""BM25: the usual way to search sentences by words, here over captions.

It is what `xlan search` would be without likelihoods: caption every picture once, then search the captions.
`benchmarks/search_recall.py` compares with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class Bm25:
    """Scores of documents for a query (Robertson and Zaragoza's form, with idf that is never negative).

    Args:
        documents: the words of each document.
        k1: how soon repeating a word stops raising the score.
        b: how strongly long documents are penalised.
    """

    def __init__(self, documents: Iterable[Sequence[str]], *, k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(words) for words in documents]
        self._count = len(counts)
        lengths = np.array([sum(one.values()) for one in counts], np.float64)
        mean = lengths.mean() if len(lengths) and lengths.sum() else 1.0
        self._norm = k1 * (1 - b + b * lengths / mean)
        self._k1 = k1
        self._places: dict[str, tuple[list[int], list[int]]] = {}
        for place, one in enumerate(counts):
            for word, times in one.items():
                rows, numbers = self._places.setdefault(word, ([], []))
                rows.append(place)
                numbers.append(times)

    def scores(self, query: Iterable[str]) -> npt.NDArray[np.float64]:
        """`[documents]`, higher for those that fit better, 0 for those without any of the words."""
        total = np.zeros(self._count)
        for word in set(query):
            if word in self._places:
                rows, times = (np.array(one) for one in self._places[word])
                idf = math.log(1 + (self._count - len(rows) + 0.5) / (len(rows) + 0.5))
                total[rows] += idf * times * (self._k1 + 1) / (times + self._norm[rows])
        return total
