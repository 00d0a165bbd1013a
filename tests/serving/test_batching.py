"""Sharing one worker between requests, with a worker made for the test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.serving.batching import Answer, Batcher, Later, QueueFullError


class Worker:
    """Doubles numbers; negative ones are refused alone, 13 breaks the whole batch."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.gate.wait(10)
        time.sleep(self.seconds)
        self.batches.append(list(items))
        self.threads.add(threading.current_thread().name)
        if 13 in items:
            raise RuntimeError("thirteen")
        return [2 * item if item >= 0 else ValueError(str(item)) for item in items]


def run(test: Callable[..., Awaitable[Any]], work: Any, **options: Any) -> Any:
    """Run `test(batcher)` in an event loop, and see that nothing is left behind."""
    sizes = {"max_batch": 4, "max_wait": 0.01, "capacity": 64, **options}

    async def whole() -> Any:
        batcher: Batcher[Any, Any] = Batcher(work, **sizes)
        try:
            result = await test(batcher)
            for _ in range(100):
                if not batcher.waiting:
                    break
                await asyncio.sleep(0.01)
            assert batcher.waiting == 0
            return result
        finally:
            if isinstance(work, Worker):
                work.gate.set()
            batcher.close()

    return asyncio.run(whole())


async def submit_all(batcher: Batcher[int, int], items: Sequence[int]) -> list[Any]:
    calls = [batcher.submit(lambda item=item: item) for item in items]  # type: ignore[misc]
    return await asyncio.gather(*calls, return_exceptions=True)


def test_requests_that_come_together_share_a_batch() -> None:
    work = Worker()
    answers = run(lambda batcher: submit_all(batcher, [1, 2, 3, 4]), work, max_wait=1.0)
    assert [answer.result for answer in answers] == [2, 4, 6, 8]
    assert [sorted(batch) for batch in work.batches] == [[1, 2, 3, 4]]
    assert {answer.batch for answer in answers} == {4}


def test_a_batch_has_no_more_than_it_may() -> None:
    work = Worker(0.005)
    answers = run(lambda batcher: submit_all(batcher, range(20, 50)), work, max_batch=7)
    assert [answer.result for answer in answers] == [2 * i for i in range(20, 50)]
    assert max(len(batch) for batch in work.batches) <= 7
    assert len(work.threads) == 1


def test_one_alone_waits_only_a_little() -> None:
    work = Worker()
    began = time.monotonic()
    (answer,) = run(lambda batcher: submit_all(batcher, [5]), work, max_wait=0.05)
    assert isinstance(answer, Answer)
    assert 0.05 <= answer.queued < 5
    assert time.monotonic() - began < 5


def test_company_gathers_while_the_worker_is_busy() -> None:
    work = Worker()

    async def test(batcher: Batcher[int, int]) -> None:
        work.gate.clear()
        first = asyncio.ensure_future(batcher.submit(lambda: 0))
        while batcher.waiting:
            await asyncio.sleep(0.001)
        others = asyncio.ensure_future(submit_all(batcher, [1, 2, 3]))
        await asyncio.sleep(0.05)
        work.gate.set()
        await asyncio.gather(first, others)

    run(test, work, max_wait=0.0)
    assert [sorted(batch) for batch in work.batches] == [[0], [1, 2, 3]]


def test_an_item_that_breaks_its_batch_hurts_nobody_else() -> None:
    work = Worker()
    answers = run(lambda batcher: submit_all(batcher, [1, 13, -2, 3]), work, max_wait=1.0)
    assert (answers[0].result, answers[3].result) == (2, 6)
    assert str(answers[1]) == "thirteen"
    assert str(answers[2]) == "-2"
    assert sorted(map(len, work.batches)) == [1, 1, 1, 1, 4]


def test_what_cannot_be_prepared_never_reaches_a_batch() -> None:
    work = Worker()

    def bad() -> int:
        raise KeyError("bad")

    async def test(batcher: Batcher[int, int]) -> list[Any]:
        calls = [batcher.submit(bad), batcher.submit(lambda: 4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    bad_answer, good_answer = run(test, work)
    assert isinstance(bad_answer, KeyError)
    assert good_answer.result == 8
    assert work.batches == [[4]]


def test_a_full_queue_refuses_at_once_and_recovers() -> None:
    work = Worker()

    async def test(batcher: Batcher[int, int]) -> tuple[list[Any], list[Any]]:
        return await submit_all(batcher, range(12)), await submit_all(batcher, [1])

    during, after = run(test, work, capacity=8, max_batch=2, max_wait=0.0)
    assert [isinstance(answer, QueueFullError) for answer in during] == [False] * 8 + [True] * 4
    assert after[0].result == 2


def test_a_client_that_left_costs_no_work() -> None:
    work = Worker()

    async def test(batcher: Batcher[int, int]) -> None:
        work.gate.clear()
        first = asyncio.ensure_future(batcher.submit(lambda: 0))
        await asyncio.sleep(0.05)
        leaving = asyncio.ensure_future(batcher.submit(lambda: 7))
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert batcher.waiting == 0
        work.gate.set()
        await first

    run(test, work, max_wait=0.0)
    assert work.batches == [[0]]


def test_ordinary_items_pass_heavy_ones_that_are_being_worked_on() -> None:
    done: list[str] = []
    heavy_may_end = threading.Event()

    def work(items: Sequence[str]) -> list[str]:
        if items[0].startswith("heavy"):
            heavy_may_end.wait(10)
        done.append("+".join(items))
        return list(items)

    async def test(batcher: Batcher[str, str]) -> None:
        heavy = [asyncio.ensure_future(batcher.submit(lambda i=i: f"heavy{i}", heavy=True)) for i in range(3)]  # type: ignore[misc]
        while batcher.waiting > 2:  # until one of them is with its worker
            await asyncio.sleep(0.001)
        for i in range(5):
            assert (await batcher.submit(lambda i=i: f"ordinary{i}")).result == f"ordinary{i}"  # type: ignore[misc]
        assert not any(task.done() for task in heavy)
        heavy_may_end.set()
        await asyncio.gather(*heavy)

    run(test, work, heavy_capacity=3, max_wait=0.0)
    assert done == [*[f"ordinary{i}" for i in range(5)], "heavy0", "heavy1", "heavy2"]  # one at a time


def test_a_full_heavy_line_refuses_heavy_items_alone() -> None:
    work = Worker()

    async def test(batcher: Batcher[int, int]) -> list[Any]:
        work.gate.clear()
        heavy = [asyncio.ensure_future(batcher.submit(lambda: 0, heavy=True)) for _ in range(4)]
        await asyncio.sleep(0)
        assert (batcher.room(heavy=True), batcher.room()) == (0, 64)
        ordinary = asyncio.ensure_future(batcher.submit(lambda: 7))
        await asyncio.sleep(0)
        work.gate.set()
        return await asyncio.gather(*heavy, ordinary, return_exceptions=True)

    *heavy, ordinary = run(test, work, heavy_capacity=2, max_wait=0.0)
    assert [isinstance(answer, QueueFullError) for answer in heavy] == [False, False, True, True]
    assert ordinary.result == 14


def test_batches_are_reported() -> None:
    told: list[tuple[int, float]] = []
    run(lambda b: submit_all(b, [1, 2, 3]), Worker(0.01), max_wait=0.5, on_batch=lambda n, s: told.append((n, s)))
    assert sum(size for size, _ in told) == 3
    assert all(seconds >= 0.01 for _, seconds in told)


@dataclass(frozen=True)
class Call:
    """One request of a random schedule."""

    item: int
    delay: float
    leaves: float | None
    slow: float


CALLS = st.builds(
    Call,
    item=st.sampled_from([0, 1, 2, 3, 5, 13, -1, -2]),
    delay=st.sampled_from([0.0, 0.0, 0.001, 0.004]),
    leaves=st.sampled_from([None, None, None, 0.0, 0.002]),
    slow=st.sampled_from([0.0, 0.0, 0.003]),
)


@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(CALLS, min_size=1, max_size=12),
    max_batch=st.integers(1, 5),
    max_wait=st.sampled_from([0.0, 0.002]),
    work_seconds=st.sampled_from([0.0, 0.002]),
)
def test_any_schedule_gives_everybody_their_own_answer(
    calls: list[Call], max_batch: int, max_wait: float, work_seconds: float
) -> None:
    work = Worker(work_seconds)

    async def one(batcher: Batcher[int, int], call: Call) -> Any:
        def prepare() -> int:
            time.sleep(call.slow)
            return call.item

        await asyncio.sleep(call.delay)
        task = asyncio.ensure_future(batcher.submit(prepare))
        if call.leaves is not None:
            await asyncio.sleep(call.leaves)
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    async def test(batcher: Batcher[int, int]) -> list[Any]:
        return await asyncio.gather(*(one(batcher, call) for call in calls))

    answers = run(test, work, max_batch=max_batch, max_wait=max_wait)
    assert all(len(batch) <= max_batch for batch in work.batches)
    for call, answer in zip(calls, answers, strict=True):
        if call.leaves is not None and isinstance(answer, asyncio.CancelledError):
            continue
        if call.item == 13:
            assert isinstance(answer, RuntimeError)
        elif call.item < 0:
            assert isinstance(answer, ValueError)
        else:
            assert answer.result == 2 * call.item


def test_an_error_nobody_waits_for_is_not_reported_as_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def test(batcher: Batcher[int, int]) -> None:
        task = asyncio.ensure_future(batcher.submit(lambda: -1))
        while not task.done():
            await asyncio.sleep(0)
            task.cancel()

    run(test, Worker(), max_wait=0.0)
    assert "never retrieved" not in caplog.text


def test_items_that_take_long_to_prepare_keep_nobody_waiting() -> None:
    """They are prepared one at a time, in a thread of their own, and dropped ones not at all."""
    gate, prepared = threading.Event(), []

    def long(item: int) -> int:
        prepared.append((item, threading.current_thread().name))
        gate.wait(10)
        return item

    async def test(batcher: Batcher[int, int]) -> list[Any]:
        calls = [asyncio.ensure_future(batcher.submit(lambda i=i: Later(lambda: long(i)))) for i in range(4)]  # type: ignore[misc]
        ordinary = await asyncio.wait_for(submit_all(batcher, list(range(10, 20))), 10)
        assert len(prepared) == 1
        calls[-1].cancel()
        await asyncio.gather(calls[-1], return_exceptions=True)
        gate.set()
        return [*ordinary, *await asyncio.gather(*calls[:-1])]

    answers = run(test, lambda items: [2 * item for item in items], preparers=1)
    assert [answer.result for answer in answers] == [*range(20, 40, 2), 0, 2, 4]
    assert [item for item, _ in prepared] == [0, 1, 2]
    assert len({thread for _, thread in prepared}) == 1
