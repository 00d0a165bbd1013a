from __future__ import annotations

import numpy as np
import pytest

from xlan.errors import MetricError
from xlan.metrics.bootstrap import compare, compare_groups, largest_differences
from xlan.metrics.report import Report, evaluate

WORDS = "a man dog cat rides runs sits on the red big bench street grass".split()  # noqa: SIM905


def corpus(seed: int, spoil: float) -> Report:
    random = np.random.default_rng(seed)
    results, references = {}, {}
    for image in range(60):
        truth = random.choice(WORDS, size=9)
        spoiled = np.where(random.random(9) < spoil, random.choice(WORDS, size=9), truth)
        results[image] = " ".join(spoiled)
        references[image] = [" ".join(truth), " ".join(random.permutation(truth))]
    return evaluate(results, references, metrics=["bleu", "rouge", "cider"])


@pytest.fixture(scope="module")
def bad() -> Report:
    return corpus(1, 0.7)


@pytest.fixture(scope="module")
def good() -> Report:
    return corpus(1, 0.1)


def test_a_clearly_better_model_is_found_better(bad: Report, good: Report) -> None:
    for item in compare(bad, good, samples=400, seed=3):
        assert item.difference is not None
        assert item.low <= item.difference <= item.high
        assert item.low > 0
        assert item.p_value == pytest.approx(2 / 401)


def test_the_same_captions_do_not_differ(good: Report) -> None:
    for item in compare(good, good, samples=50):
        assert (item.difference, item.low, item.high, item.p_value) == (0, 0, 0, 1)


def test_the_other_way_round_is_the_same_with_other_signs(bad: Report, good: Report) -> None:
    for there, back in zip(compare(bad, good, samples=100), compare(good, bad, samples=100), strict=True):
        assert there.low == pytest.approx(-back.high)
        assert there.p_value == pytest.approx(back.p_value)


def test_the_same_seed_gives_the_same_answer(bad: Report, good: Report) -> None:
    assert compare(bad, good, samples=100, seed=7) == compare(bad, good, samples=100, seed=7)
    assert compare(bad, good, samples=100, seed=7) != compare(bad, good, samples=100, seed=8)


def test_groups_are_compared_by_their_means(bad: Report, good: Report) -> None:
    alone = {item.name: item for item in compare(bad, good, samples=100)}
    halfway = {item.name: item for item in compare_groups([bad], [bad, good], samples=100)}
    for name, item in alone.items():
        assert item.difference is not None
        assert halfway[name].difference == pytest.approx(item.difference / 2)
        assert halfway[name].low == pytest.approx(item.low / 2)
    with pytest.raises(MetricError, match="at least one set"):
        compare_groups([], [good])


def test_bleu_of_a_draw_is_bleu_of_the_drawn_images(good: Report) -> None:
    """Drawing each image twice gives the corpus score again; drawing one image gives that image's score."""
    once = np.zeros((60, 1), dtype=np.int64)
    once[5] = 1
    for name in ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"):
        score = good.scores[name]
        assert score.images is not None
        assert score.resample is not None
        assert score.resample(np.full((60, 1), 2))[0] == pytest.approx(score.value, abs=1e-8)
        assert score.resample(once)[0] == pytest.approx(score.images[5])


def test_the_interval_of_meteor_holds_its_difference() -> None:
    """The corpus score comes from summed counts, far from the mean of the scores when sentences differ in length."""
    pytest.importorskip("snowballstemmer", reason="METEOR needs the extra `metrics`")
    long = " ".join(WORDS)
    references = {i: ["a man"] if i < 36 else [f"{long} {i}"] for i in range(40)}
    first = {i: "a man" if i < 36 else "a" for i in range(40)}
    second = {i: "a man" if i < 35 else references[i][0] for i in range(40)}
    reports = [evaluate(captions, references, metrics=["meteor"]) for captions in (first, second)]
    if reports[0].scores["METEOR"].value is None:
        pytest.skip(reports[0].scores["METEOR"].reason)
    (alone,) = compare(*reports, samples=400)
    assert alone.difference is not None
    assert alone.low <= alone.difference <= alone.high
    (halfway,) = compare_groups(reports[:1], reports, samples=400)
    assert halfway.difference == pytest.approx(alone.difference / 2)
    assert halfway.high == pytest.approx(alone.high / 2)
    score = reports[1].scores["METEOR"]
    assert score.resample is not None
    assert score.resample(np.full((40, 1), 3))[0] == pytest.approx(score.value)


def test_images_that_differ_most_come_first(bad: Report, good: Report) -> None:
    found = largest_differences(bad, good, metric="CIDEr", count=5)
    sizes = [abs(item.second - item.first) for item in found]
    assert len(found) == 5
    assert sizes == sorted(sizes, reverse=True)
    assert largest_differences(good, good, metric="CIDEr", count=5) == []


def test_different_images_cannot_be_compared(good: Report) -> None:
    other = evaluate({1: "a dog"}, {1: ["a dog"]}, metrics=["rouge"])
    with pytest.raises(MetricError, match="caption the same images"):
        compare(good, other)


@pytest.mark.parametrize(("samples", "confidence"), [(5, 0.95), (100, 1.0)])
def test_numbers_out_of_range_are_refused(good: Report, samples: int, confidence: float) -> None:
    with pytest.raises(MetricError, match="at least 10 samples and a confidence between 0 and 1"):
        compare(good, good, samples=samples, confidence=confidence)
