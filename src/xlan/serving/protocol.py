"""Connections that cost too much are closed: uvicorn's HTTP/1.1 protocol with the timeouts it lacks.

    waiting for a header        from the connection, or the first byte after an idle time      `header_timeout`
    rest of a refused body      the client still sends after its answer                        `stall_timeout`
    answer that is not read     the client takes no byte of it                                 `stall_timeout`
    too many connections        the one between requests that has been silent longest is closed; when there is none,
                                the one whose body has stopped longest

How long a body may take is decided by the application (`uploads.read_body`), which can still answer; idle connections
are closed by uvicorn itself (`timeout_keep_alive`).

Apart from asyncio's own callbacks this uses two names of uvicorn's class: `conn` (the h11 connection) and
`on_response_complete`. They are not documented, so pyproject.toml caps uvicorn at the last version that was tested.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# Longest request line and headers together. h11 refuses a header that is still incomplete at this size; the guard
# refuses one that arrived whole.
MAX_HEADER_BYTES = 32 << 10


class GuardedConfig(uvicorn.Config):
    """uvicorn's configuration, and the limits of `GuardedProtocol`."""

    def __init__(
        self, app: Any, *, header_timeout: float, stall_timeout: float, connections: int, **options: Any
    ) -> None:
        super().__init__(
            app, http=GuardedProtocol, ws="none", h11_max_incomplete_event_size=MAX_HEADER_BYTES, **options
        )
        self.header_timeout = header_timeout
        self.stall_timeout = stall_timeout
        self.max_connections = connections
        self.open_connections: set[GuardedProtocol] = set()


class GuardedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, config: GuardedConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._limits = config
        self._awaiting_header = True  # rather than idle between two requests
        self._timed = ""  # the state that `_timer` belongs to
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first header; make room when there are too many connections."""
        super().connection_made(transport)
        self._wire = transport
        self._clock = asyncio.get_running_loop()
        self._heard = self._clock.time()
        self._limits.open_connections.add(self)
        self._watch()
        if len(self._limits.open_connections) > self._limits.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        super().connection_lost(exc)
        self._limits.open_connections.discard(self)
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        self._heard = self._clock.time()
        self._awaiting_header = True
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The answer is written, though perhaps not read yet."""
        self._awaiting_header = False
        super().on_response_complete()
        self._watch()
        self._watch_writing()

    def pause_writing(self) -> None:
        """The client does not read what it asked for."""
        super().pause_writing()
        self._watch_writing()

    def _state(self) -> str:
        """What the connection waits for: `header`, `rest` of a refused body, or nothing that is timed here."""
        if self.conn.their_state is h11.IDLE and self._awaiting_header:
            return "header"
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            return "rest"
        return ""

    def _watch(self) -> None:
        """Leave the timer alone while the state stays the same, so that single bytes gain a client no time."""
        state = self._state()
        if state == self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = state
        if state:
            seconds = self._limits.header_timeout if state == "header" else self._limits.stall_timeout
            self._timer = self._clock.call_later(seconds, self._wire.abort)

    def _watch_writing(self) -> None:
        """Give up on a client that reads no byte of its answer, also while the connection is being closed."""
        left = self._wire.get_write_buffer_size()
        if self._write_timer is None and left:
            self._write_timer = self._clock.call_later(self._limits.stall_timeout, self._check_writing, left)

    def _check_writing(self, before: int) -> None:
        self._write_timer = None
        if self._wire.get_write_buffer_size() >= before:
            self._wire.abort()
        else:
            self._watch_writing()

    def _make_room(self) -> None:
        others = [other for other in self._limits.open_connections if other is not self]
        between = [other for other in others if other.conn.their_state is h11.IDLE or other._wire.is_closing()]
        unfinished = [other for other in others if other.conn.their_state is h11.SEND_BODY]
        chosen = min(between or unfinished or [self], key=lambda other: other._heard)
        self._limits.open_connections.discard(chosen)  # now: a crowd must not choose the same one again and again
        chosen._wire.abort()
