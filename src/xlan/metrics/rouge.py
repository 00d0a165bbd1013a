"""ROUGE-L as the official COCO scorer computes it: longest common subsequence, beta 1.2.

Two quirks of that scorer are kept: precision and recall are each taken from whichever reference is best for it, and
captions are split at single spaces, so that an empty caption is one empty word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from xlan.metrics.ngrams import Key, check_pairs

BETA = 1.2


def rouge_l(
    references: Mapping[Key, Sequence[str]], hypotheses: Mapping[Key, str]
) -> tuple[float, npt.NDArray[np.float64]]:
    """Mean over images, and the score `[I]` of each image in the order of `hypotheses`, from tokenised captions."""
    check_pairs(references, hypotheses)
    scores = np.array([_score(text, references[key]) for key, text in hypotheses.items()])
    return float(scores.mean()), scores


def _score(hypothesis: str, references: Sequence[str]) -> float:
    words = hypothesis.split(" ")
    masks = _masks(words)
    precision = recall = 0.0
    for reference in references:
        others = reference.split(" ")
        common = _common_subsequence(masks, len(words), others)
        precision = max(precision, common / len(words))
        recall = max(recall, common / len(others))
    if precision == 0 or recall == 0:
        return 0.0
    return ((1 + BETA**2) * precision * recall) / (recall + BETA**2 * precision)


def _masks(words: Sequence[str]) -> dict[str, int]:
    """For each word, the set of places where it stands, as bits."""
    masks: dict[str, int] = {}
    for i, word in enumerate(words):
        masks[word] = masks.get(word, 0) | 1 << i
    return masks


def _common_subsequence(masks: Mapping[str, int], length: int, others: Sequence[str]) -> int:
    """Length of the longest common subsequence, a whole row of the table at once (Hyyrö, 2004).

    A zero bit i of `row` says: the best subsequence up to word i is one longer than up to word i−1.
    """
    full = (1 << length) - 1
    row = full
    for word in others:
        match = row & masks.get(word, 0)
        if match:
            row = ((row + match) | (row - match)) & full
    return length - row.bit_count()
