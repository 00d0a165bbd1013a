from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.search.bm25 import Bm25

SENTENCES = st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=8)


def slow(documents: list[list[str]], query: list[str]) -> list[float]:
    """The formula as it is printed."""
    mean = sum(map(len, documents)) / len(documents) or 1.0
    scores = []
    for document in documents:
        score = 0.0
        for word in set(query):
            having = sum(word in one for one in documents)
            idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            times = document.count(word)
            score += idf * times * 2.2 / (times + 1.2 * (1 - 0.75 + 0.75 * len(document) / mean))
        scores.append(score)
    return scores


@settings(deadline=None)
@given(SENTENCES, st.lists(st.sampled_from("abcdef"), max_size=5))
def test_scores_are_those_of_the_formula(documents: list[list[str]], query: list[str]) -> None:
    np.testing.assert_allclose(Bm25(documents).scores(query), slow(documents, query), atol=1e-9)


def test_rare_words_count_more_and_long_documents_less() -> None:
    scores = Bm25([["a", "dog"], ["a", "cat"], ["a", "dog", "a", "dog", "on", "the", "grass"], ["a"]]).scores(["dog"])
    assert scores[0] > scores[2] > scores[1] == scores[3] == 0
    assert Bm25([]).scores(["dog"]).shape == (0,)
