"""What a run reports: JSON lines for programs, TensorBoard, and a progress display for the person.

`log.jsonl` holds one object a line with a `kind`: `start`, `step`, `evaluation`, `warning`, `saved`, `end`. When a run
resumes, lines of steps that will be taken again are dropped, so every step appears once.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from xlan.errors import MissingExtraError
from xlan.files import read_json_lines, write_text


class RunLog:
    """Writers of one run; a process that is not the main one has `quiet=True` and writes nothing.

    Args:
        folder: the run's folder.
        tensorboard: also write TensorBoard events.
        quiet: write and print nothing.
        step: the step a resumed run continues from; TensorBoard hides what was written after it.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, tensorboard: bool, quiet: bool, step: int | None = None
    ) -> None:
        self.folder = Path(folder)
        self.quiet = quiet
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._tensorboard = _summary_writer(self.folder / "tensorboard", step) if tensorboard and not quiet else None

    def rewind(self, step: int, *, unevaluated: bool = False) -> None:
        """Drop what was logged after `step` (and a line that a kill cut short), because it will happen again.

        Args:
            step: the last step that is kept.
            unevaluated: the evaluation that follows `step` will happen again too.
        """
        path = self.folder / "log.jsonl"
        if self.quiet or not path.exists():
            return
        last = step - 0.5 if unevaluated else step
        kept = [
            r for r in read_json_lines(path) if r.get("step", 0) <= (last if r.get("kind") == "evaluation" else step)
        ]
        write_text(path, "".join(_line(record) for record in kept))

    def write(self, kind: str, **values: Any) -> None:
        """Append one record and pass its numbers to TensorBoard."""
        if self.quiet:
            return
        record = {"kind": kind, "time": round(time.time(), 3), **values}
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(_line(record))
        step = values.get("step")
        if self._tensorboard is not None and isinstance(step, int):
            for name, value in _numbers(values):
                self._tensorboard.add_scalar(f"{kind}/{name}", value, step)

    def say(self, text: str) -> None:
        """One line for the person."""
        self.console.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str, *, step: int) -> None:
        """A warning for the person, kept in the log."""
        self.console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
        self.write("warning", step=step, text=text)

    def epoch(self, epoch: int, epochs: int, *, done: int, total: int) -> _Display:
        """A progress display for one epoch, to be used in a `with` statement."""
        return _Display(self.console, f"epoch {epoch + 1}/{epochs}", done=done, total=total)

    def close(self) -> None:
        """Flush TensorBoard."""
        if self._tensorboard is not None:
            self._tensorboard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Display:
    """A bar on a terminal; a plain line now and then where output goes to a file."""

    seconds_between_lines = 30.0

    def __init__(self, console: Console, title: str, *, done: int, total: int) -> None:
        self._title, self._done, self._total = title, done, total
        self._console = console
        self._task: TaskID | None = None
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal and not console.quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, completed=self._done, text="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, text: str) -> None:
        """One step further; `text` tells loss, reward and speed."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, text=text)
        elif not self._console.quiet and time.monotonic() - self._last_line > self.seconds_between_lines:
            self._last_line = time.monotonic()
            self._console.print(f"{self._title}  {self._done}/{self._total}  {text}", markup=False, soft_wrap=True)


def environment() -> dict[str, Any]:
    """Versions and hardware, for the record."""
    import platform

    import numpy
    import torch

    from xlan import __version__

    return {
        "xlan": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    """NaN and infinity are not JSON: at any depth they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if name == "step" or isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, Mapping):
            yield from _numbers(value)


def _summary_writer(folder: Path, step: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("TensorBoard (logging.tensorboard)", "train") from None
    return SummaryWriter(str(folder), purge_step=None if step is None else step + 1)
