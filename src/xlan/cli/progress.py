"""Progress of long commands on standard error: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

LINE_SECONDS = 30.0  # between the lines of a log

Move = Callable[[int, int], None]


@contextlib.contextmanager
def bytes_progress(what: str) -> Iterator[Move]:
    """Show progress in bytes; yields a function to call with bytes done and bytes in total."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    def amount(done: int, total: int) -> str:
        return f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"

    with _progress(what, [DownloadColumn(), TransferSpeedColumn()], amount) as move:
        yield move


@contextlib.contextmanager
def count_progress(what: str) -> Iterator[Move]:
    """Show progress as a count; yields a function to call with the number done and the total."""
    from rich.progress import MofNCompleteColumn

    with _progress(what, [MofNCompleteColumn()], lambda done, total: f"{done:,} of {total:,}") as move:
        yield move


@contextlib.contextmanager
def _progress(what: str, columns: list[ProgressColumn], amount: Callable[[int, int], str]) -> Iterator[Move]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(what, amount).move
        return
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, BarColumn(), *columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """Says how far the work is, every half minute."""

    def __init__(self, what: str, amount: Callable[[int, int], str]) -> None:
        self._what, self._amount = what, amount
        self._began = self._said = time.monotonic()
        self._first: int | None = None

    def move(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:  # what an earlier run did says nothing about the speed of this one
            self._first, self._began, self._said = done, now, now
        elif now - self._said >= LINE_SECONDS and done > self._first and total > 0:
            self._said = now
            left = (total - done) * (now - self._began) / (done - self._first)
            share = f"{done / total:.0%}"
            typer.echo(f"{self._what}: {self._amount(done, total)} ({share}), about {duration(left)} left", err=True)


def duration(seconds: float) -> str:
    """Seconds in words: "40 s", "12 min", "3 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
