"""Training a vision network from the command line: what is said at its beginning, on the way and at its end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from xlan.errors import TrainingError
from xlan.files import open_locked

if TYPE_CHECKING:
    from xlan.training.single import SingleRun


@contextlib.contextmanager
def claimed(folder: Path, option: str) -> Iterator[None]:
    """Inside, the folder of a run exists and is closed to other runs; `option` is how a user chooses another.

    Raises:
        TrainingError: it cannot be written, or another run is using it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_locked(folder / ".lock")
    except BlockingIOError:
        raise TrainingError(f"{folder}: another run is using this folder; choose another ({option})") from None
    except OSError as error:
        reason = error.strerror or error
        raise TrainingError(f"{folder}: cannot be written: {reason}; choose another folder ({option})") from None
    try:
        yield
    finally:
        os.close(lock)


def run_to_end(run: SingleRun[Any, Any], about: str, *, checkpoint_minutes: float) -> None:
    """Train until done or until a signal asks to stop, which ends the command with the status of that signal."""
    from xlan.training.stop import StopRequest

    begun = f"continuing after step {run.step}" if run.resumed else "starting"
    typer.echo(f"{begun}: {about}", err=True)
    stop = StopRequest()
    with stop.listening():
        done = run.run(checkpoint_minutes=checkpoint_minutes, on_log=_show, stop=stop)
    if not done:
        typer.echo(f"{stop.reason} after step {run.step}; saved. The same command continues from here.", err=True)
        raise typer.Exit(stop.status)


def _show(record: dict[str, Any]) -> None:
    values = " · ".join(f"{key} {value}" for key, value in record.items() if key not in ("step", "of"))
    typer.echo(f"step {record['step']}/{record['of']} · {values}", err=True)
