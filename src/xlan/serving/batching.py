"""Requests that arrive close together share one call of the model; costly ones wait in a queue of their own.

    submit ─▶ prepare (a few threads) ─┬▶ ordinary queue ─▶ work on up to `max_batch` at once (one thread) ─▶ answers
                                       └▶ heavy queue    ─▶ work on one at a time (another thread)         ─▶ answers

An item that finds its worker idle waits at most `max_wait` for others to join its batch; while the worker is busy, a
batch forms by itself. Ordinary items never wait behind heavy ones: the two workers share the processor, not a queue.
Nor do they wait behind items that take long to prepare: those are prepared one at a time, in a thread of their own.
Everything here runs in the event loop's thread except `prepare` and `work`, so there are no locks.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger("xlan.serving")


class QueueFullError(Exception):
    """The queue is full."""


@dataclass(frozen=True)
class Later(Generic[Item]):
    """What `prepare` returns for an item that takes long: how to make it, one at a time, in a thread of its own."""

    prepare: Callable[[], Item]


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
    """An item on its way; `answer` being done (also cancelled) means that nobody waits for it any more."""

    queue: _Queue[Item, Result]
    answer: asyncio.Future[Answer[Result]]
    preparing: Future[Item | Later[Item]] | None = None
    began: float = field(default_factory=time.monotonic)
    ready: float = 0.0
    items: list[Item] = field(default_factory=list)  # the one item, once it is prepared


@dataclass(eq=False)
class _Queue(Generic[Item, Result]):
    """Items that wait for one worker.

    Attributes:
        max_batch: most items in a batch.
        max_wait: seconds an item waits for others while the worker is idle.
        capacity: most items that are accepted and not yet in a batch.
        worker: the thread that works on the batches.
        jobs: those that are prepared, oldest first.
        waiting: how many are accepted and not yet in a batch, those in preparation included.
        busy: whether the worker has a batch.
        seconds: how long the last batch took.
    """

    max_batch: int
    max_wait: float
    capacity: int
    worker: ThreadPoolExecutor
    jobs: collections.deque[_Job[Item, Result]] = field(default_factory=collections.deque)
    timer: asyncio.TimerHandle | None = None
    waiting: int = 0
    busy: bool = False
    seconds: float = 0.0


class Batcher(Generic[Item, Result]):
    """Gathers items into batches for a function that is cheaper per item the more it gets.

    Args:
        work: a batch of items → their results in order; an exception in place of a result is raised to whoever
            submitted that item. Runs in two threads at most, one per queue. When it raises, its items are tried once
            more, one by one, so that an item that breaks a batch does not hurt its neighbours.
        max_batch: most ordinary items in a batch.
        max_wait: seconds an ordinary item waits for others while its worker is idle.
        capacity: most ordinary items that are accepted and not yet in a batch.
        heavy_capacity: the same of heavy items, which are worked on one at a time.
        preparers: threads for `prepare`.
        on_batch: called with the size and the seconds of every batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        max_wait: float,
        capacity: int,
        heavy_capacity: int = 1,
        preparers: int = 2,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> None:
        self._work = work
        self._on_batch = on_batch
        self._preparers = ThreadPoolExecutor(preparers, thread_name_prefix="xlan-open")
        self._one_by_one = _one_thread("xlan-large")
        self._ordinary: _Queue[Item, Result] = _Queue(max_batch, max_wait, capacity, _one_thread("xlan-model"))
        self._heavy: _Queue[Item, Result] = _Queue(1, 0.0, heavy_capacity, _one_thread("xlan-heavy"))

    async def submit(self, prepare: Callable[[], Item | Later[Item]], *, heavy: bool = False) -> Answer[Result]:
        """The answer for one item; `prepare` makes it, in a thread. Cancelling this drops the item before its batch.

        Raises:
            QueueFullError: at once, when the queue has no room.
            Exception: whatever `prepare` or `work` raised for this item.
        """
        if not self.room(heavy=heavy):
            raise QueueFullError
        queue = self._queue_of(heavy)
        job: _Job[Item, Result] = _Job(queue, asyncio.get_running_loop().create_future())
        queue.waiting += 1
        self._prepare(job, self._preparers, prepare)
        try:
            return await job.answer
        finally:
            self._drop(job)

    @property
    def waiting(self) -> int:
        """Items that are accepted and not yet in a batch."""
        return self._ordinary.waiting + self._heavy.waiting

    def room(self, *, heavy: bool = False) -> int:
        """How many more items would be accepted."""
        queue = self._queue_of(heavy)
        return queue.capacity - queue.waiting

    def seconds_to_wait(self, *, heavy: bool = False) -> float:
        """Seconds until the items that wait now are served, estimated from the last batch."""
        queue = self._queue_of(heavy)
        return math.ceil(queue.waiting / queue.max_batch) * queue.seconds

    def close(self) -> None:
        """End the threads; nothing may be waiting by then."""
        for threads in (self._preparers, self._one_by_one, self._ordinary.worker, self._heavy.worker):
            threads.shutdown()

    def _queue_of(self, heavy: bool) -> _Queue[Item, Result]:
        return self._heavy if heavy else self._ordinary

    def _prepare(
        self, job: _Job[Item, Result], threads: ThreadPoolExecutor, prepare: Callable[[], Item | Later[Item]]
    ) -> None:
        loop = asyncio.get_running_loop()
        job.preparing = threads.submit(prepare)
        job.preparing.add_done_callback(lambda done: loop.call_soon_threadsafe(self._prepared, job, done))

    def _drop(self, job: _Job[Item, Result]) -> None:
        """Nobody waits for a job any more: remove it, wherever it is."""
        if not job.answer.cancel() and not job.answer.cancelled():
            job.answer.exception()  # retrieved, so that asyncio does not report an unhandled error
        if job.preparing is not None:
            job.preparing.cancel()  # a thread that has begun continues, and the place stays taken until it ends
        if job in job.queue.jobs:
            job.queue.jobs.remove(job)
            job.queue.waiting -= 1

    def _prepared(self, job: _Job[Item, Result], done: Future[Item | Later[Item]]) -> None:
        if done.cancelled() or job.answer.done():
            job.queue.waiting -= 1
            return
        error = done.exception()
        if error is not None:
            job.queue.waiting -= 1
            job.answer.set_exception(error)
            return
        found = done.result()
        if isinstance(found, Later):
            self._prepare(job, self._one_by_one, found.prepare)
            return
        job.items.append(found)
        job.ready = time.monotonic()
        job.queue.jobs.append(job)
        self._consider(job.queue)

    def _consider(self, queue: _Queue[Item, Result]) -> None:
        """Begin a batch now, or set the timer for it."""
        if queue.busy or not queue.jobs:
            return
        wait = queue.jobs[0].ready + queue.max_wait - time.monotonic()
        if wait <= 0 or len(queue.jobs) >= queue.max_batch:
            self._begin(queue)
        elif queue.timer is None:
            queue.timer = asyncio.get_running_loop().call_later(wait, self._time_to_begin, queue)

    def _time_to_begin(self, queue: _Queue[Item, Result]) -> None:
        queue.timer = None
        if queue.jobs and not queue.busy:
            self._begin(queue)

    def _begin(self, queue: _Queue[Item, Result]) -> None:
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        jobs = [queue.jobs.popleft() for _ in range(min(queue.max_batch, len(queue.jobs)))]
        queue.waiting -= len(jobs)
        queue.busy = True
        loop, began = asyncio.get_running_loop(), time.monotonic()
        working = queue.worker.submit(self._run, [job.items[0] for job in jobs])
        working.add_done_callback(lambda done: loop.call_soon_threadsafe(self._finished, jobs, began, done))

    def _run(self, items: list[Item]) -> Sequence[Result | Exception]:
        """In a worker's thread: the batch, or its items one by one when it fails as a whole."""
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
        queue = jobs[0].queue
        queue.seconds = time.monotonic() - began
        queue.busy = False
        if self._on_batch is not None:
            self._on_batch(len(jobs), queue.seconds)
        for job, result in zip(jobs, done.result(), strict=True):
            if job.answer.done():
                continue
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(Answer(result, began - job.began, queue.seconds, len(jobs)))
        self._consider(queue)


def _one_thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=name)
