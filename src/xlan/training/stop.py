"""Ending a run cleanly on request.

The first SIGTERM or Ctrl-C is a request: the step is finished, a checkpoint is written, the run ends with status 143
(or 130). A second Ctrl-C ends it at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from xlan.training.distributed import World


class Stopped(Exception):  # noqa: N818
    """Raised where a request to stop is noticed and there is nothing to save."""


class StopRequest:
    """Whether this process was asked to stop, and by what."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def reason(self) -> str:
        """What asked, in words."""
        return f"stopped by {self.signal.name}" if self.signal else "stopped together with another process"

    @property
    def status(self) -> int:
        """Exit status by convention: 128 + the signal's number."""
        return 128 + int(self.signal or signal.SIGTERM)

    def wanted_anywhere(self, world: World) -> bool:
        """Whether any process was asked to stop; every process must call this together."""
        return world.sum([float(self.signal is not None)])[0] > 0

    def check(self) -> None:
        """Leave right here when this process was asked to stop (for places that have nothing to save)."""
        if self.signal is not None:
            raise Stopped(self.reason)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as requests inside; only the main thread may, elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
