from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import numpy as np
import pytest

from xlan.errors import TrainingError
from xlan.training.rewards import RewardPool, Rewards


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
