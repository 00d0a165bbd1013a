from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics.meteor import MeteorParts
from xlan.metrics.report import METRICS, evaluate

RESULTS = {1: "A dog runs.", 2: "Two cats (asleep)"}
REFERENCES = {1: ["A dog is running.", "The dog runs!"], 2: ["Two sleeping cats", "cats"], 3: ["not asked for"]}
# METEOR's counts of a caption of three words that is its reference, and of one without words.
WHOLE, NOTHING = [3, 3, 0, 0, 3, 3, *[0] * 15, 3, 3], [0] * 23
PURE = ("bleu", "rouge", "cider")


class Fake:
    """A metric that remembers what it was given."""

    label = "parser 1.0"
    seen: Any = None

    def __init__(self, **options: Any) -> None:
        Fake.options = options

    def score(
        self, references: Mapping[Any, Sequence[str]], hypotheses: Mapping[Any, str]
    ) -> tuple[float, list[float]]:
        Fake.seen = (references, hypotheses)
        return 0.5, [0.25] * len(hypotheses)

    def parts(self, references: Mapping[Any, Sequence[str]], hypotheses: Mapping[Any, str]) -> MeteorParts:
        Fake.seen = (references, hypotheses)
        return MeteorParts(np.array([WHOLE, NOTHING]), np.array([1.0, 0.0]))


class Broken(Fake):
    def __init__(self, **options: Any) -> None:
        raise MissingExtraError("METEOR", "metrics")


def install(monkeypatch: pytest.MonkeyPatch, module: str, **names: Any) -> None:
    fake = ModuleType(module)
    for name, value in names.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, module, fake)


def test_scores_are_numbers_by_name() -> None:
    report = evaluate(RESULTS, REFERENCES, metrics=PURE)
    assert list(report.as_json()) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"]
    assert all(isinstance(value, float) for value in report.as_json().values())
    assert report.images == [1, 2]
    assert report.captions == ["a dog runs", "two cats -lrb- asleep -rrb-"]


def test_meteor_is_given_tokens_and_spice_raw_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "xlan.metrics.meteor", Meteor=Fake)
    assert evaluate(RESULTS, REFERENCES, metrics=["meteor"]).scores["METEOR"].value == 1.0
    assert Fake.seen == (
        {1: ["a dog is running", "the dog runs"], 2: ["two sleeping cats", "cats"]},
        {1: "a dog runs", 2: "two cats -lrb- asleep -rrb-"},
    )
    install(monkeypatch, "xlan.metrics.spice", Spice=Fake)
    evaluate(RESULTS, REFERENCES, metrics=["spice"])
    assert Fake.seen == ({1: REFERENCES[1], 2: REFERENCES[2]}, RESULTS)
    assert Fake.options == {"corenlp": None}


def test_a_metric_that_cannot_run_gives_a_reason_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "xlan.metrics.meteor", Meteor=Broken)
    report = evaluate(RESULTS, REFERENCES, metrics=["meteor", "rouge"])
    score = report.scores["METEOR"]
    assert score.value is None
    assert score.images is None
    assert 'pip install "xlan[metrics]"' in score.reason
    assert report.as_json()["METEOR"] is None
    assert "METEOR" not in next(iter(report.per_image()))


def test_a_required_metric_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "xlan.metrics.meteor", Meteor=Broken)
    with pytest.raises(MetricError, match=r"METEOR is required but cannot be computed: METEOR needs packages"):
        evaluate(RESULTS, REFERENCES, metrics=["rouge"], require=["meteor"])


def test_spice_over_spacy_has_its_own_name_and_says_its_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "xlan.metrics.spice_spacy", SpiceSpacy=Fake)
    report = evaluate(RESULTS, REFERENCES, metrics=["spice-spacy"], spacy_model="en_x")
    assert list(report.scores) == ["SPICE-spaCy"]
    assert report.scores["SPICE-spaCy"].label == "parser 1.0"
    assert report.as_json() == {"SPICE-spaCy": 0.5, "SPICE-spaCy parser": "parser 1.0"}
    assert Fake.options == {"model": "en_x"}


def test_steps_are_told_in_order() -> None:
    steps: list[tuple[str, int, int]] = []
    evaluate(RESULTS, REFERENCES, metrics=PURE, progress=lambda *step: steps.append(step))
    assert steps == [("tokenizing", 0, 4), ("BLEU", 1, 4), ("ROUGE-L", 2, 4), ("CIDEr", 3, 4), ("done", 4, 4)]


def test_records_of_images_have_scores_and_facts() -> None:
    first = next(iter(evaluate(RESULTS, REFERENCES, metrics=["rouge"], known={"a dog runs"}).per_image()))
    assert first["image_id"] == 1
    assert first["caption"] == "a dog runs"
    assert 0 < first["ROUGE-L"] <= 1
    assert first["length"] == 3
    assert first["novel"] is False


def test_empty_captions_are_pointed_out() -> None:
    report = evaluate({1: " . ", 2: "cats"}, REFERENCES, metrics=["rouge"])
    assert report.warnings == ["1 of 2 captions are empty and are scored as empty: 1"]
    assert report.statistics.empty == 1


def test_cider_of_one_image_is_pointed_out() -> None:
    report = evaluate({1: "a dog"}, REFERENCES, metrics=["cider"])
    assert report.scores["CIDEr"].value == 0
    assert "CIDEr of a single image is always 0" in report.warnings[0]


@pytest.mark.parametrize(
    ("metrics", "message"), [(["blue"], "no metric 'blue'; choose from: bleu, meteor"), ([], "no metric was requested")]
)
def test_unknown_metrics_are_named(metrics: list[str], message: str) -> None:
    with pytest.raises(MetricError, match=message):
        evaluate(RESULTS, REFERENCES, metrics=metrics)


def test_each_metric_is_printed_under_one_name() -> None:
    names = [name for names in METRICS.values() for name in names]
    assert len(names) == len(set(names))


def test_metrics_without_extras_import_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def guarded(name: str, *rest: Any, **named: Any) -> Any:
        assert name.split(".")[0] not in ("pycocoevalcap", "spacy", "torch", "snowballstemmer"), name
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", guarded)
    evaluate(RESULTS, REFERENCES, metrics=PURE)


class Length:
    """A scorer of the test's own: letters of the caption over bytes of the picture."""

    name = "letters per byte"

    def score(self, pictures: Mapping[Any, Path], captions: Mapping[Any, str]) -> list[float]:
        assert list(pictures) == list(captions)
        return [len(text) / len(pictures[image].read_bytes()) for image, text in captions.items()]


@pytest.fixture
def pictures(tmp_path: Path) -> dict[int | str, Path]:
    for i, size in ((1, 10), (2, 5)):
        (tmp_path / f"{i}.jpg").write_bytes(b"x" * size)
    return {i: tmp_path / f"{i}.jpg" for i in (1, 2)}


CAPTIONS = {2: "a cat", 1: "dog"}


def test_a_scorer_of_ones_own_sees_pictures_and_raw_captions(pictures: dict[int | str, Path]) -> None:
    report = evaluate(CAPTIONS, REFERENCES, metrics=["rouge"], scorers=[Length()], pictures=pictures)
    score = report.scores["letters per byte"]
    assert score.images is not None
    assert score.images.tolist() == [1.0, 0.3]
    assert score.value == pytest.approx(0.65)
    assert [record["letters per byte"] for record in report.per_image()] == [1.0, 0.3]


def test_a_scorer_needs_every_picture(pictures: dict[int | str, Path]) -> None:
    del pictures[2]
    with pytest.raises(
        MetricError, match="letters per byte needs the picture of every image; there is none for image 2"
    ):
        evaluate(CAPTIONS, REFERENCES, metrics=["rouge"], scorers=[Length()], pictures=pictures)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0], r"expected a finite number for each of 2 captions, got 1$"),
        ([1.0, float("nan")], r"got 2, some of them not finite"),
        (ZeroDivisionError("no weights"), "letters per byte failed: ZeroDivisionError: no weights"),
    ],
)
def test_what_a_scorer_answers_is_checked(pictures: dict[int | str, Path], answer: Any, message: str) -> None:
    class Odd(Length):
        def score(self, pictures: Mapping[Any, Path], captions: Mapping[Any, str]) -> list[float]:
            if isinstance(answer, Exception):
                raise answer
            return list(answer)

    with pytest.raises(MetricError, match=message):
        evaluate(CAPTIONS, REFERENCES, metrics=["rouge"], scorers=[Odd()], pictures=pictures)


def test_two_scores_of_one_name_are_refused(pictures: dict[int | str, Path]) -> None:
    with pytest.raises(MetricError, match="two scores are called 'letters per byte'"):
        evaluate(CAPTIONS, REFERENCES, metrics=["rouge"], scorers=[Length(), Length()], pictures=pictures)
