from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import TrainingError
from xlan.metrics.report import evaluate
from xlan.training.rewards import RewardPool, Rewards, WithBleu


def lengths(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
    return np.array([len(caption) for caption in captions], dtype=np.float64)


def suicidal(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
    os.kill(os.getpid(), signal.SIGKILL)
    return lengths(images, captions)


CAPTIONS = [[1] * n for n in (3, 1, 4, 1, 5)]


def test_without_workers_it_scores_in_place() -> None:
    with RewardPool(lengths, workers=0) as pool:
        assert pool.submit(["a"] * 5, CAPTIONS).result().tolist() == [3, 1, 4, 1, 5]


@pytest.mark.slow
def test_workers_keep_the_order() -> None:
    with RewardPool(lengths, workers=2) as pool:
        pending = [pool.submit(["a"] * 5, CAPTIONS) for _ in range(3)]
        assert [some.result().tolist() for some in pending] == [[3, 1, 4, 1, 5]] * 3


@pytest.mark.slow
def test_a_killed_worker_is_told_in_one_line() -> None:
    with RewardPool(suicidal, workers=1) as pool, pytest.raises(TrainingError, match=r"reward process died.*--resume"):
        pool.submit(["a"] * 5, CAPTIONS).result()


SENTENCES = st.lists(st.integers(4, 9), min_size=1, max_size=9)


@settings(deadline=None, max_examples=60)
@given(SENTENCES, st.lists(SENTENCES, min_size=1, max_size=4))
def test_bleu_is_that_of_the_official_scorer(caption: list[int], references: list[list[int]]) -> None:
    """The end is a word for the reward; as text it is one too."""
    reward = WithBleu(lengths, {"x": [(*words, 2) for words in references], "y": [(5, 2)]}, weight=0.5, end=2)

    def text(ids: Sequence[int]) -> str:
        return " ".join(f"w{word}" for word in (*ids, 2))

    official = evaluate({"x": text(caption)}, {"x": [text(words) for words in references]}, metrics=["bleu"])
    ours = reward.bleu4(["x"], [[*caption, 2, 7, 7]])
    assert ours[0] == pytest.approx(official.scores["BLEU-4"].value, abs=1e-12)
    assert reward(["x"], [[*caption, 2]])[0] == pytest.approx(len(caption) + 1 + 0.5 * ours[0])


def test_a_caption_cut_off_before_its_end_is_scored_without_one() -> None:
    reward = WithBleu(lengths, {"x": [(4, 5, 6, 7, 8, 2)]}, weight=1.0, end=2)
    assert reward.bleu4(["x", "x"], [[4, 5, 6, 7, 8, 2], [4, 5, 6, 7, 8]]).tolist() == pytest.approx(
        [1.0, np.exp(-0.2)]
    )
