"""The CIDEr-D batch as one compiled loop. Imported only where numba is installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def _find(keys: npt.NDArray[np.integer], low: int, high: int, wanted: int) -> int:
    """First place in `keys[low:high]`, ascending, that is not below `wanted`."""
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


_find_compiled = numba.njit(_find)


def _score_batch(
    rows: Ints,
    flat: Ints,
    lengths: Ints,
    vocabulary: int,
    pairs_2: Ints,
    pairs_3: Ints,
    pairs_4: Ints,
    idf_1: Floats,
    idf_2: Floats,
    idf_3: Floats,
    idf_4: Floats,
    starts: Ints,
    gram: npt.NDArray[np.int32],
    reference: npt.NDArray[np.int32],
    times: npt.NDArray[np.int32],
    norms: Floats,
    first_reference: Ints,
    bigrams: Ints,
    sigma: float,
) -> Floats:
    """Sum over orders and mean over references of the penalised clipped cosine, `[C]`.

    Arguments are the arrays of `xlan.metrics.ciderd.CiderD`, by the same names.
    """
    scores = np.zeros(rows.size)
    longest = lengths.max()
    node = np.empty(longest, np.int64)
    most = (first_reference[1:] - first_reference[:-1]).max()
    dots = np.empty(most)
    begin = 0
    for c in range(rows.size):
        words = flat[begin : begin + lengths[c]]
        begin += lengths[c]
        row = rows[c]
        first, several = first_reference[row], first_reference[row + 1] - first_reference[row]
        for order in range(4):
            pairs = pairs_2 if order == 1 else (pairs_3 if order == 2 else pairs_4)
            idf = idf_1 if order == 0 else (idf_2 if order == 1 else (idf_3 if order == 2 else idf_4))
            low, high = starts[order, row], starts[order, row + 1]
            dots[:several] = 0.0
            squares = 0.0
            grams = words.size - order
            for p in range(grams):
                if order == 0:
                    node[p] = words[p]
                elif node[p] >= 0:
                    wanted = node[p] * vocabulary + words[p + order]
                    place = _find_compiled(pairs, 0, pairs.size, wanted)
                    node[p] = place if place < pairs.size and pairs[place] == wanted else -1
            for p in range(grams):
                repeats, seen = 0, False
                for q in range(grams):
                    same = True
                    for k in range(order + 1):
                        if words[p + k] != words[q + k]:
                            same = False
                            break
                    if same:
                        if q < p:
                            seen = True
                            break
                        repeats += 1
                if seen:
                    continue
                name = node[p]
                weight = repeats * idf[name]
                squares += weight * weight
                if name < 0:
                    continue
                entry = _find_compiled(gram, low, high, name)
                while entry < high and gram[entry] == name:
                    theirs = times[entry] * idf[name]
                    dots[reference[entry] - first] += min(weight, theirs) * theirs
                    entry += 1
            norm = math.sqrt(squares)
            if norm == 0.0:
                continue
            for r in range(several):
                their_norm = norms[order, first + r]
                if their_norm > 0.0:
                    difference = max(0, words.size - 1) - bigrams[first + r]
                    penalty = math.exp(-(difference * difference) / (2.0 * sigma * sigma))
                    scores[c] += penalty * dots[r] / (norm * their_norm) / several
    return scores


def _compile() -> Callable[..., Floats]:
    try:
        compiled: Any = numba.njit(cache=True)(_score_batch)
    except RuntimeError:  # no folder to keep the compiled code in: compile once in each process
        compiled = numba.njit(_score_batch)
    return cast("Callable[..., Floats]", compiled)


score_batch = _compile()
