"""Connections that cost too much are closed: uvicorn's HTTP/1.1 protocol with the clocks it lacks.

    waiting for a header   from the first moment, or the first byte after an idle time    `header_timeout`
    sending on after the answer   the rest of a body that was refused                     `stall_timeout`
    not taking the answer   no byte of it                                                 `stall_timeout`
    too many connections   the one between requests that has been silent longest gives way, else the one whose body
                           has stopped longest

How long a body may take is a matter of the application (`uploads.read_body`), which can still answer; idle connections
are uvicorn's own matter (`timeout_keep_alive`).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# Longest request line and headers together.
MAX_HEADER_BYTES = 32 << 10


class GuardedConfig(uvicorn.Config):
    """uvicorn's configuration, and the numbers of `GuardedProtocol`."""

    def __init__(
        self, app: Any, *, header_timeout: float, stall_timeout: float, connections: int, **options: Any
    ) -> None:
        super().__init__(
            app, http=GuardedProtocol, ws="none", h11_max_incomplete_event_size=MAX_HEADER_BYTES, **options
        )
        self.header_timeout = header_timeout
        self.stall_timeout = stall_timeout
        self.connections = connections


class GuardedProtocol(H11Protocol):
    """One connection."""

    config: GuardedConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first header; make room when there are too many connections."""
        super().connection_made(transport)
        self.heard = self.loop.time()
        self._clock: asyncio.TimerHandle | None = None
        self._clocked = ""
        self._writing: asyncio.TimerHandle | None = None
        self._watch()
        if len(self.connections) > self.config.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._clock, self._writing):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        self.heard = self.loop.time()
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The answer is written, though perhaps not taken yet."""
        super().on_response_complete()
        self._watch()
        self._watch_writing()

    def pause_writing(self) -> None:
        """The client does not take what it asked for."""
        super().pause_writing()
        self._watch_writing()

    def _state(self) -> str:
        """What the connection waits for: `header`, `rest` of a refused body, or nothing that has a clock here."""
        if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            return "header"
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            return "rest"
        return ""

    def _watch(self) -> None:
        """Keep the clock as it is while the state stays the same, so that single bytes gain a client no time."""
        state = self._state()
        if state == self._clocked:
            return
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        self._clocked = state
        if state:
            seconds = self.config.header_timeout if state == "header" else self.config.stall_timeout
            self._clock = self.loop.call_later(seconds, self.transport.abort)

    def _watch_writing(self) -> None:
        """Give up on a client that takes no byte of its answer, also while the connection is being closed."""
        if self._writing is None and self.transport.get_write_buffer_size():
            left = self.transport.get_write_buffer_size()
            self._writing = self.loop.call_later(self.config.stall_timeout, self._check_writing, left)

    def _check_writing(self, before: int) -> None:
        self._writing = None
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._watch_writing()

    def _make_room(self) -> None:
        others = [cast(GuardedProtocol, other) for other in self.connections if other is not self]
        between = [other for other in others if other.conn.their_state is h11.IDLE or other.transport.is_closing()]
        unfinished = [other for other in others if other.conn.their_state is h11.SEND_BODY]
        chosen = min(between or unfinished or [self], key=lambda other: other.heard)
        chosen.transport.abort()
