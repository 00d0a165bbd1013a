"""Rewards of sampled captions, computed on worker processes while the training process works on.

A scorer is any picklable callable; `xlan.metrics.ciderd.CiderD` is the one the paper uses, `WithBleu` adds a share of
BLEU-4 to it. `RewardPool` hands the scorer to its processes once; from then on only image ids and word ids travel.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from xlan.data.workers import obey_parent_only
from xlan.errors import TrainingError
from xlan.metrics.bleu import BleuParts
from xlan.metrics.ngrams import ORDERS

Rewards: TypeAlias = npt.NDArray[np.float64]


class Scorer(Protocol):
    """Scores captions against what is known of their images."""

    def __call__(self, images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
        """Reward `[C]` of each caption; `images` names the image of each, `captions` are ids with the final `eos`."""


class WithBleu:
    """A reward plus `weight` times BLEU-4 of the single caption, by the official scorer's formula.

    The end of a caption counts as a word, as in the CIDEr-D reward. References are kept as one flat array and counted
    when they are needed: a batch needs some fifty of them, a data set has half a million.

    Args:
        scorer: the other part of the reward.
        references: for each image id its captions as ids, each ending with `end`.
        weight: of BLEU-4, which lies between 0 and 1; CIDEr-D lies between 0 and 10.
        end: id of the end; what follows it in a caption is ignored.
    """

    def __init__(
        self, scorer: Scorer, references: Mapping[str, Sequence[Sequence[int]]], *, weight: float, end: int
    ) -> None:
        self.scorer, self.weight, self.end = scorer, weight, end
        captions = [caption for several in references.values() for caption in several]
        self._words = np.fromiter((word for caption in captions for word in caption), dtype=np.int32)
        self._starts = np.cumsum([0, *map(len, captions)])
        first = np.cumsum([0, *map(len, references.values())]).tolist()
        self._captions = {image: range(first[i], first[i + 1]) for i, image in enumerate(references)}

    def __call__(self, images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
        """Reward `[C]` of each caption."""
        return self.scorer(images, captions) + self.weight * self.bleu4(images, captions)

    def bleu4(self, images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
        """BLEU-4 `[C]` of each caption alone."""
        known = {image: self._references(image) for image in dict.fromkeys(images)}
        scores = [
            self._score(ids[: ids.index(self.end) + 1] if self.end in ids else ids, *known[image])
            for image, ids in zip(images, map(list, captions), strict=True)
        ]
        return np.array(scores, dtype=np.float64)

    def _references(self, image: str) -> tuple[list[int], list[Counter[tuple[int, ...]]]]:
        """Lengths of an image's references, and for each order how often its n-grams occur in one of them at most."""
        sentences = [self._words[self._starts[i] : self._starts[i + 1]].tolist() for i in self._captions[image]]
        most: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(ORDERS)]
        for sentence in sentences:
            for n, counts in enumerate(_ngrams(sentence)):
                most[n] |= counts
        return [len(sentence) for sentence in sentences], most

    @staticmethod
    def _score(words: list[int], lengths: list[int], most: list[Counter[tuple[int, ...]]]) -> float:
        matched = [(counts & most[n]).total() for n, counts in enumerate(_ngrams(words))]
        guessed = [max(0, len(words) - n) for n in range(ORDERS)]
        closest = min(lengths, key=lambda length: (abs(length - len(words)), length))
        parts = BleuParts(
            np.array(matched)[:, None], np.array(guessed)[:, None], np.array([len(words)]), np.array([closest])
        )
        return float(parts.corpus()[-1, 0])


def _ngrams(words: list[int]) -> list[Counter[tuple[int, ...]]]:
    return [Counter(zip(*(words[i:] for i in range(n + 1)), strict=False)) for n in range(ORDERS)]


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
                "a reward process died (killed, or out of memory); continue with --resume auto, perhaps with "
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
            raise TrainingError("a reward process died; continue with --resume auto") from None

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
