"""Listening for requests, and stopping without losing those that were accepted.

On SIGTERM or Ctrl-C the server says `stopping` and refuses new captions with 503, finishes what it has accepted, closes
its socket and ends with status 0. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from xlan.errors import ConfigError
from xlan.pipeline import Captioner
from xlan.search import PhotoSearch
from xlan.serving.app import create_app
from xlan.serving.protocol import GuardedConfig
from xlan.serving.service import Service
from xlan.serving.settings import ServeSettings

# What has arrived when the signal comes is still read: requests on their way are answered rather than cut off.
LINGER_SECONDS = 0.3

_log = logging.getLogger("xlan.serving")


class Server(uvicorn.Server):
    """uvicorn, stopping in two steps: first refuse, then close.

    Args:
        config: what to run.
        service: whose requests are waited for.
        on_ready: called once requests are accepted.
    """

    def __init__(self, config: GuardedConfig, service: Service, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._on_ready = on_ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        """First signal: stop accepting. Second: stop waiting. Nothing is logged: this may interrupt anything."""
        if self._service.stopping:
            self.force_exit = self.should_exit = True
        else:
            self._service.stopping = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call `on_ready`."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def main_loop(self) -> None:
        """Serve until told to stop, then until all that was accepted is answered."""
        serving = asyncio.ensure_future(super().main_loop())
        while not self._service.stopping and not serving.done():
            await asyncio.sleep(0.05)
        _log.warning("stopping: finishing %d requests", self._service.in_progress)
        refusing = time.monotonic()
        while self._service.in_progress or time.monotonic() < refusing + LINGER_SECONDS:
            if self.should_exit:
                break
            await asyncio.sleep(0.02)
        self.should_exit = True
        await serving


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the address is taken, or is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"--host: cannot find {host!r}; expected an address or name of this machine") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} of {host} is taken; choose another with --port, or 0 for any") from None
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def serve(
    captioner: Captioner,
    settings: ServeSettings,
    listener: socket.socket,
    on_ready: Callable[[], None] = lambda: None,
    *,
    photos: PhotoSearch | None = None,
) -> None:
    """Run a server on a listening socket until a signal ends it; with `photos`, these can be searched."""
    app = create_app(captioner, settings, photos)
    config = GuardedConfig(
        app,
        header_timeout=settings.header_timeout,
        stall_timeout=settings.stall_timeout,
        connections=settings.connections,
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.idle_timeout,
        timeout_graceful_shutdown=math.ceil(2 * settings.stall_timeout),
    )
    server = Server(config, app.state.service, on_ready)
    server.run(sockets=[listener])
