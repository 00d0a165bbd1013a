"""Rewards of sampled captions, computed on worker processes while the training process goes on.

A scorer is any picklable callable; `CiderReward` is the one the paper uses. `RewardPool` hands it to its processes
once, and from then on only image positions and ids travel.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from xlan.data.workers import obey_parent_only
from xlan.errors import TrainingError

Rewards: TypeAlias = npt.NDArray[np.float64]


class Scorer(Protocol):
    """Scores captions against what is known of their images."""

    def __call__(self, images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
        """Reward `[C]` of each caption; `images` names the image of each, `captions` are ids with the final `eos`."""


class Pending:
    """Rewards on their way."""

    def __init__(self, parts: Sequence[Future[Rewards]]) -> None:
        self._parts = parts

    def result(self) -> Rewards:
        """Wait for the rewards `[C]`.

        Raises:
            TrainingError: a worker process died.
        """
        try:
            return np.concatenate([part.result() for part in self._parts])
        except BrokenProcessPool:
            raise TrainingError(
                "a reward process died (killed, or out of memory); go on with --resume auto, perhaps with "
                "scst.reward_workers=0, which scores in the training process"
            ) from None


class RewardPool:
    """A scorer behind `workers` processes; with 0 workers it scores in place.

    Args:
        scorer: picklable; every process gets its own copy when it starts.
        workers: number of processes.
    """

    def __init__(self, scorer: Scorer, *, workers: int) -> None:
        self._scorer = scorer
        self._workers = workers
        # `spawn`: a forked copy of a process that holds threads, locks or a GPU can hang.
        self._pool = (
            ProcessPoolExecutor(
                workers, mp_context=multiprocessing.get_context("spawn"), initializer=_become_worker, initargs=(scorer,)
            )
            if workers
            else None
        )

    def submit(self, images: Sequence[str], captions: Sequence[Sequence[int]]) -> Pending:
        """Begin scoring; returns at once when there are workers."""
        if self._pool is None:
            done: Future[Rewards] = Future()
            done.set_result(self._scorer(images, captions))
            return Pending([done])
        size = -(-len(captions) // self._workers)
        try:
            return Pending(
                [
                    self._pool.submit(_score, images[i : i + size], captions[i : i + size])
                    for i in range(0, len(captions), size)
                ]
            )
        except BrokenProcessPool:
            raise TrainingError("a reward process died; go on with --resume auto") from None

    def close(self) -> None:
        """Stop the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


_worker_scorer: Scorer | None = None


def _become_worker(scorer: Scorer) -> None:
    global _worker_scorer
    _worker_scorer = scorer
    obey_parent_only()


def _score(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
    assert _worker_scorer is not None
    return _worker_scorer(images, captions)
