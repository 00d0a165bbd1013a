from __future__ import annotations

import json

import pytest

from xlan.training.collapse import CollapseWatch

HEALTHY = {"reward": 1.0, "length": 9.0, "bad_endings": 0.01, "entropy": 2.0, "distinct": 0.9}


def feed(watch: CollapseWatch, steps: int, **changes: float) -> list[str]:
    return [text for _ in range(steps) for text in watch.update({**HEALTHY, **changes})]


def test_a_healthy_run_is_left_in_peace() -> None:
    assert feed(CollapseWatch(10), 100) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"reward": 0.5}, "the reward fell from 1.000 to"),
        ({"length": 3.0}, "captions went from 9.0 to"),
        ({"length": 17.0}, "captions went from 9.0 to"),
        ({"bad_endings": 0.6}, "of the captions end on a word like 'a' or 'of'"),
        ({"entropy": 0.01}, "the entropy per word fell from 2.00 to"),
        ({"distinct": 0.05}, "of the sampled captions of a step differ"),
    ],
)
def test_each_sign_of_collapse_is_told_once(changes: dict[str, float], complaint: str) -> None:
    watch = CollapseWatch(10)
    feed(watch, 20)
    warnings = feed(watch, 30, **changes)
    assert len(warnings) == 1
    assert complaint in warnings[0]


def test_nothing_is_said_before_the_window_is_full() -> None:
    watch = CollapseWatch(50)
    assert feed(watch, 20) + feed(watch, 29, reward=0.0) == []


def test_a_warning_comes_again_after_recovery() -> None:
    watch = CollapseWatch(10)
    feed(watch, 20)
    assert len(feed(watch, 20, reward=0.5)) == 1
    feed(watch, 30)
    assert len(feed(watch, 20, reward=0.5)) == 1


def test_state_survives_json() -> None:
    watch, other = CollapseWatch(10), CollapseWatch(10)
    feed(watch, 25)
    other.restore(json.loads(json.dumps(watch.state())))
    assert feed(other, 20, reward=0.5) == feed(watch, 20, reward=0.5)
