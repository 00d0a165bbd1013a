"""Threads that work ahead: results in the order of the items, a bounded number of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(work: Callable[[T], R], items: Iterable[T], *, threads: int, ahead: int) -> Iterator[R]:
    """`work(item)` for every item, in order, computed by `threads` threads while the caller uses earlier results.

    Args:
        work: may run in several threads at once; what it raises is raised where its result would have come.
        items: read in the caller's thread, never more than `ahead` further than what was given out.
        threads: at least 1.
        ahead: how many results may wait.
    """
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="xlan-ahead")
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
