"""Clocks of single connections, around an application made for the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from uvicorn.server import ServerState

from xlan.serving.protocol import GuardedConfig, GuardedProtocol

LONG = 32 << 20  # bytes, more than the system keeps for a connection
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"


async def answer_at_length(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LONG)]})
    await send({"type": "http.response.body", "body": bytes(LONG)})


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def run(app: Any, test: Callable[[Connect, ServerState], Awaitable[None]], **limits: Any) -> None:
    """Run `test(connect, state)` beside a server; whatever it opened is closed afterwards."""

    async def whole() -> None:
        sizes = {"header_timeout": 20.0, "stall_timeout": 0.3, "connections": 100, **limits}
        config, state = GuardedConfig(app, lifespan="off", log_config=None, **sizes), ServerState()
        config.load()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: GuardedProtocol(config, state, {}), "127.0.0.1", 0)
        writers: list[asyncio.StreamWriter] = []

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.sockets[0].getsockname()[1], limit=1 << 17
            )
            writers.append(writer)
            return reader, writer

        try:
            await test(connect, state)
        finally:
            for writer in writers:
                writer.transport.abort()
            await until(lambda: not state.connections)
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
            server.close()
            await asyncio.gather(*state.tasks, return_exceptions=True)

    asyncio.run(whole())


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


def test_who_does_not_take_the_answer_is_let_go() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        _, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: len(state.connections) == 1)
        await until(lambda: not state.connections)

    run(answer_at_length, test)


@pytest.mark.slow
def test_who_takes_the_answer_slowly_gets_all_of_it() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = len(await reader.readuntil(b"\r\n\r\n")) * 0
        while data := await reader.read(1 << 20):
            received += len(data)
            if received < 8 << 20:
                await asyncio.sleep(0.1)  # more than the time for a stall, all together
        assert received == LONG

    run(answer_at_length, test, stall_timeout=2.0)


def test_the_connection_whose_body_stopped_longest_makes_room() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        opened = []
        for _ in range(3):
            reader, writer = await connect()
            writer.write(POST + b"1")
            opened.append((reader, writer))
            await until(lambda: len(state.tasks) == len(opened))
        opened[0][1].write(b"2")  # heard of again, so the second has been silent longest
        await asyncio.sleep(0.1)
        await connect()
        assert await opened[1][0].read() == b""
        assert len(state.connections) == 3

    run(read_all, test, connections=3)


def test_a_crowd_that_arrives_at_once_leaves_no_more_than_the_limit() -> None:
    async def test(connect: Connect, state: ServerState) -> None:
        await asyncio.gather(*(connect() for _ in range(30)))
        await until(lambda: len(state.connections) <= 3)

    run(read_all, test, connections=3)
