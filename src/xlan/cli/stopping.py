"""Ending long commands: a TERM signal, as schedulers and `kill` send it, is taken like Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Inside, a TERM signal raises `SystemExit` with status 143, so that what is open is saved and closed.

    Only the main thread hears signals; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
