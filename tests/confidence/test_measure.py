"""Measuring confidences: what people said, ranks, and judging captions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from xlan.confidence.evidence import Sight
from xlan.confidence.judge import Judge
from xlan.confidence.measure import Answer, measure, rank_correlation, used_by_people
from xlan.errors import DataError
from xlan.types import Caption, Word


def caption(text: str, chance: float = 0.5, others: tuple[Caption, ...] = ()) -> Caption:
    words = tuple(Word(word, chance) for word in text.split())
    return Caption(text, (len(words) + 1) * math.log(chance), chance, words, others)


def test_people_use_a_word_in_singular_or_plural() -> None:
    references = ["Two dogs run.", "A brown dog, near a kite!"]
    assert used_by_people(caption("a dog and cats with kites"), references) == (True, False, True)


FEW = st.lists(st.integers(0, 5).map(float), min_size=2, max_size=20)


@given(FEW, st.randoms())
def test_ranks_correlate_as_scipy_says(first: list[float], random) -> None:
    second = [random.choice(first) for _ in first]
    expected = stats.spearmanr(first, second).statistic if len({*first}) > 1 and len({*second}) > 1 else 0.0
    assert rank_correlation(first, second) == pytest.approx(expected, abs=1e-9)


def test_without_calibration_confidence_is_the_mean_probability_of_the_words() -> None:
    judged = Judge().judge(caption("a dog", 0.5, (caption("a cat", 0.25),)), Sight(1.0, {}))
    assert judged.confidence == pytest.approx(0.5)
    assert judged.others[0].confidence == pytest.approx(0.25)
    assert judged.words[1].confidence is None


def test_a_model_that_is_not_calibrated_cannot_be_measured() -> None:
    judge = Judge()
    judged = judge.judge(caption("a dog"), Sight(1.0, {}))
    answer = Answer(judged, judge.evidence(judged, Sight(1.0, {})), (True,))
    with pytest.raises(DataError, match="not calibrated"):
        measure([answer] * 20, [1.0] * 20)
