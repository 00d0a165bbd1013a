"""Requests that arrive close together share one call of the model.

    submit ─▶ prepare (a few threads) ─▶ queue ─▶ work on up to `max_batch` at once (one thread) ─▶ answers

A request that finds the worker idle waits at most `max_wait` for company; while the worker is busy, company gathers by
itself. Everything here runs in the event loop's thread except `prepare` and `work`, so there are no locks.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger("xlan.serving")


class QueueFullError(Exception):
    """As many requests are waiting as may wait."""


class TimeIsUpError(Exception):
    """The answer was not there in time."""


@dataclass(frozen=True)
class Answer(Generic[Result]):
    """A result and where the time went.

    Attributes:
        result: what `work` returned for the item.
        queued: seconds from `submit` until the batch began, preparation included.
        worked: seconds the batch took.
        batch: how many items it had.
    """

    result: Result
    queued: float
    worked: float
    batch: int


@dataclass(eq=False)
class _Job(Generic[Item, Result]):
    """A request on its way; `answer` being done (also cancelled) means that nobody waits for more."""

    answer: asyncio.Future[Answer[Result]]
    began: float = field(default_factory=time.monotonic)
    ready: float = 0.0
    items: list[Item] = field(default_factory=list)  # the one item, once it is prepared


class Batcher(Generic[Item, Result]):
    """Gathers items into batches for a function that is cheaper per item the more it gets.

    Args:
        work: a batch of items → their results in order, an exception in place of a result being raised to whoever
            submitted that item. Runs in one thread. When it raises, its items are tried once more, one by one, so that
            an item that breaks a batch does not hurt its neighbours.
        max_batch: most items in a batch.
        max_wait: seconds an item waits for company while the worker is idle.
        capacity: most items that are accepted and not yet in a batch.
        preparers: threads for `prepare`.
        on_batch: told the size and the seconds of every batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        max_wait: float,
        capacity: int,
        preparers: int = 2,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> None:
        self._work = work
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._capacity = capacity
        self._on_batch = on_batch
        self._preparers = ThreadPoolExecutor(preparers, thread_name_prefix="xlan-open")
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="xlan-model")
        self._queue: collections.deque[_Job[Item, Result]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self.waiting = 0

    async def submit(self, prepare: Callable[[], Item], *, timeout: float) -> Answer[Result]:
        """The answer for one item; `prepare` makes it, in a thread. Cancelling this drops the item.

        Raises:
            QueueFullError: at once, when `capacity` items are waiting.
            TimeIsUpError: after `timeout` seconds; the item is dropped when its batch has not begun.
            Exception: whatever `prepare` or `work` raised for this item.
        """
        if self.full:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        job: _Job[Item, Result] = _Job(loop.create_future())
        self.waiting += 1
        preparing = self._preparers.submit(prepare)
        preparing.add_done_callback(lambda done: loop.call_soon_threadsafe(self._prepared, job, done))
        try:
            await asyncio.wait({job.answer}, timeout=timeout)
            if not job.answer.done():
                raise TimeIsUpError
            return job.answer.result()
        finally:
            self._drop(job, preparing)

    @property
    def full(self) -> bool:
        """Whether `submit` would refuse."""
        return self.waiting >= self._capacity

    def close(self) -> None:
        """End the threads; nothing may be waiting any more."""
        self._preparers.shutdown()
        self._worker.shutdown()

    def _drop(self, job: _Job[Item, Result], preparing: Future[Item]) -> None:
        """Nobody waits for a job any more: take it out, wherever it is."""
        if not job.answer.cancel() and not job.answer.cancelled():
            job.answer.exception()  # seen, so that asyncio does not report an error nobody fetched
        preparing.cancel()  # a thread that has begun goes on, and the place stays taken until it ends
        if job in self._queue:
            self._queue.remove(job)
            self.waiting -= 1

    def _prepared(self, job: _Job[Item, Result], done: Future[Item]) -> None:
        if done.cancelled() or job.answer.done():
            self.waiting -= 1
            return
        error = done.exception()
        if error is not None:
            self.waiting -= 1
            job.answer.set_exception(error)
            return
        job.items.append(done.result())
        job.ready = time.monotonic()
        self._queue.append(job)
        self._consider()

    def _consider(self) -> None:
        """Begin a batch now, or set the clock for it."""
        if self._busy or not self._queue:
            return
        wait = self._queue[0].ready + self._max_wait - time.monotonic()
        if wait <= 0 or len(self._queue) >= self._max_batch:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._time_to_begin)

    def _time_to_begin(self) -> None:
        self._timer = None
        if self._queue and not self._busy:
            self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
        self.waiting -= len(jobs)
        self._busy = True
        loop, began = asyncio.get_running_loop(), time.monotonic()
        working = self._worker.submit(self._run, [job.items[0] for job in jobs])
        working.add_done_callback(lambda done: loop.call_soon_threadsafe(self._finished, jobs, began, done))

    def _run(self, items: list[Item]) -> Sequence[Result | Exception]:
        """In the worker's thread: the batch, or its items one by one when it fails as a whole."""
        try:
            return self._work(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
            _log.exception("a batch of %d failed; trying its pictures one by one", len(items))
            return [result for item in items for result in self._run([item])]

    def _finished(
        self, jobs: list[_Job[Item, Result]], began: float, done: Future[Sequence[Result | Exception]]
    ) -> None:
        seconds = time.monotonic() - began
        self._busy = False
        if self._on_batch is not None:
            self._on_batch(len(jobs), seconds)
        for job, result in zip(jobs, done.result(), strict=True):
            if job.answer.done():
                continue
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(Answer(result, began - job.began, seconds, len(jobs)))
        self._consider()
