"""Confidence on made-up captions whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.confidence.calibration import Calibration, reliability
from xlan.confidence.evidence import WORD_FEATURES, Evidence, WholeCaption
from xlan.confidence.measure import rank_correlation
from xlan.errors import DataError, ModelError


def made_up(count: int, seed: int) -> tuple[list[Evidence], list[list[bool]]]:
    """Captions of 1 to 5 content words, each used by people with a chance that its evidence tells, but not plainly."""
    random = np.random.default_rng(seed)
    evidence, used = [], []
    for _ in range(count):
        words = int(random.integers(1, 6))
        rows = random.normal(size=(words, len(WORD_FEATURES)))
        rows[:, 0] = 1.0
        chance = 1 / (1 + np.exp(-1.5 * np.tanh(rows[:, 1]) - rows[:, 6] + 0.3 * rows[:, 6] ** 2))
        whole = WholeCaption(float(rows[:, 3].mean()), *random.normal(size=5).tolist())
        evidence.append(Evidence(tuple(range(words)), rows, whole))
        used.append((random.random(words) < chance).tolist())
    return evidence, used


@pytest.fixture(scope="module")
def fitted() -> Calibration:
    return Calibration.fit(*made_up(3000, seed=1))


def test_what_is_said_comes_true_on_captions_that_were_not_fitted(fitted: Calibration) -> None:
    evidence, used = made_up(3000, seed=2)
    words = reliability(
        np.concatenate([fitted.words(known) for known in evidence]).tolist(), [float(x) for u in used for x in u]
    )
    captions = reliability([fitted.share(known) for known in evidence], [float(np.mean(u)) for u in used])
    assert words.error < 0.03
    assert captions.error < 0.03
    assert words.true[-1] > words.true[0] + 0.4  # it tells words apart, which a constant would not


@settings(max_examples=30)
@given(st.lists(st.floats(-50, 50), min_size=len(WORD_FEATURES), max_size=len(WORD_FEATURES)))
def test_any_evidence_gives_a_chance(fitted_once: Calibration, row: list[float]) -> None:
    known = Evidence((0,), np.array([row]), WholeCaption(*row[1:7]))
    assert 0 <= fitted_once.words(known)[0] <= 1
    assert 0 <= fitted_once.share(known) <= 1


@pytest.fixture(scope="module")
def fitted_once(fitted: Calibration) -> Calibration:
    return fitted


def test_a_caption_without_content_words_is_doubtful(fitted: Calibration) -> None:
    nothing = Evidence((), np.zeros((0, len(WORD_FEATURES))), WholeCaption(-1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert fitted.share(nothing) < 0.5


def test_it_comes_back_from_its_file(tmp_path: Path, fitted: Calibration) -> None:
    fitted.save(tmp_path / "confidence.json")
    assert Calibration.load(tmp_path / "confidence.json") == fitted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.update(format=2), "format 1, got 2"),
        (lambda value: value["features"].update(word=["x"]), "other evidence"),
        (lambda value: value["word"].update(weights=[1.0]), "needs 10 weights"),
        (lambda value: value["word"].update(true=list(reversed(value["word"]["true"]))), "never falls"),
        (lambda value: value["caption"].update(raw=[]), "lists of numbers"),
        (lambda value: value["caption"]["true"].__setitem__(-1, 1.5), "outside 0 to 1"),
        (lambda value: value["caption"]["weights"].__setitem__(0, None), "not a usable number"),
        (lambda value: value.update(fitted_on="many"), "'many'"),
    ],
)
def test_a_bad_file_is_told(tmp_path: Path, fitted: Calibration, change, message: str) -> None:
    path = tmp_path / "confidence.json"
    fitted.save(path)
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(ModelError, match=message):
        Calibration.load(path)


def test_too_few_captions_are_refused() -> None:
    with pytest.raises(DataError, match="at least 200 captions with content words to fit on, got 20"):
        Calibration.fit(*made_up(20, seed=1))


def test_with_scores_the_order_follows_them_too_and_what_is_said_stays_true() -> None:
    """Scores that follow the third number about a caption, of which the share of right words knows nothing."""
    evidence, used = made_up(3000, seed=1)
    by_score = Calibration.fit(evidence, used, [known.caption[2] for known in evidence])
    fresh, truth = made_up(3000, seed=2)
    said = [by_score.share(known) for known in fresh]
    assert reliability(said, [float(np.mean(u)) for u in truth]).error < 0.03
    scores = [known.caption[2] for known in fresh]
    without = Calibration.fit(evidence, used)
    plain = [without.share(known) for known in fresh]
    assert rank_correlation(said, scores) > rank_correlation(plain, scores) + 0.3


def test_as_many_scores_as_captions_are_wanted() -> None:
    with pytest.raises(DataError, match="one score for every caption, 300, got 2"):
        Calibration.fit(*made_up(300, seed=1), [1.0, 2.0])


def test_the_error_is_the_mean_distance_of_said_and_true() -> None:
    found = reliability([0.2] * 10 + [0.8] * 10, [0.0] * 10 + [1.0] * 10, bins=2)
    assert found.error == pytest.approx(0.2)
    assert found.count == (10, 10)
