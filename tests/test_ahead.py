"""Threads that work ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.ahead import map_ahead


@settings(deadline=None, max_examples=30)
@given(items=st.lists(st.integers(), max_size=30), threads=st.integers(1, 4), ahead=st.integers(0, 8))
def test_results_come_in_the_order_of_the_items(items: list[int], threads: int, ahead: int) -> None:
    assert list(map_ahead(lambda x: x * 2, items, threads=threads, ahead=ahead)) == [x * 2 for x in items]


def test_no_more_items_are_read_than_allowed() -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    results = map_ahead(lambda x: x, endless(), threads=2, ahead=5)
    for expected in range(1, 51):
        assert next(results) == expected
        assert read <= expected + 5
    results.close()


def test_work_goes_on_while_the_caller_is_busy() -> None:
    begun = threading.Event()

    def work(x: int) -> int:
        if x == 1:
            begun.set()
        return x

    results = map_ahead(work, range(3), threads=1, ahead=2)
    assert next(results) == 0
    assert begun.wait(10)
    results.close()


def test_an_error_comes_where_its_result_would_have() -> None:
    results = map_ahead(lambda x: 1 // x, [1, 0, 1], threads=2, ahead=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_closing_early_leaves_no_threads() -> None:
    results = map_ahead(lambda x: x, iter(range(1000)), threads=3, ahead=4)
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xlan-ahead")]
