"""Clients that take their time, leave, or come in crowds do not keep others from being served."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

PATIENCE = 30.0  # seconds; without its clocks the server would wait for ever, and machines under test can be slow
HEADER = (
    b"POST /v1/captions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
)


@pytest.fixture(scope="module")
def strict(start_for_module: Callable[..., Any]) -> Any:
    """A server that loses its patience after a fraction of a second."""
    settings = {
        "header_timeout": 0.6,
        "stall_timeout": 0.6,
        "body_timeout": 1.2,
        "idle_timeout": 0.5,
        "connections": 40,
        "timeout": 10,
    }
    return start_for_module(settings=settings)


def connect(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=2 * PATIENCE)


def closed_after(connection: socket.socket) -> tuple[float, bytes]:
    """Seconds until the other side closes, and what it said before."""
    began, said = time.monotonic(), b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            said += data
    return time.monotonic() - began, said


def get(server: Any, path: str = "/v1/health") -> httpx.Response:
    return httpx.get(server.url + path, timeout=2 * PATIENCE, trust_env=False)


def test_a_client_that_says_nothing_is_let_go(strict: Any) -> None:
    with connect(strict) as connection:
        seconds, said = closed_after(connection)
    assert 0.4 < seconds < PATIENCE
    assert said == b""


def test_a_header_in_single_bytes_gains_no_time(strict: Any) -> None:
    with connect(strict) as connection:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in b"GET /v1/health HTTP/1.1\r\nX-Slow: " + b"a" * 500:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
                if time.monotonic() - began > PATIENCE:
                    break
        assert time.monotonic() - began < PATIENCE


def test_the_second_header_has_its_clock_too(strict: Any) -> None:
    with connect(strict) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(b"GET /v1")  # which stops the clock for idle connections
        seconds, _ = closed_after(connection)
    assert seconds < PATIENCE


def test_a_body_that_stops_is_answered_with_408(strict: Any) -> None:
    with connect(strict) as connection:
        connection.sendall(HEADER + b"{")
        seconds, said = closed_after(connection)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"urn:xlan:problem:too-slow" in said
    assert seconds < PATIENCE


def test_a_body_in_single_bytes_is_answered_with_408(strict: Any) -> None:
    with connect(strict) as connection:
        connection.sendall(HEADER)
        connection.settimeout(0.2)
        said, began = b"", time.monotonic()
        while not said and time.monotonic() - began < PATIENCE:
            connection.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                said = connection.recv(65536)
    assert said.startswith(b"HTTP/1.1 408 ")


def test_who_goes_on_sending_after_the_answer_is_cut_off(strict: Any) -> None:
    with connect(strict) as connection:
        connection.sendall(HEADER.replace(b"1000", b"99999999999"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < PATIENCE + 1:
                connection.sendall(bytes(1000))
                time.sleep(0.02)
        assert time.monotonic() - began < PATIENCE


def test_a_crowd_of_idle_connections_makes_room(strict: Any, picture: Callable[..., bytes]) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):  # the server keeps 40
            stack.enter_context(connect(strict))
        answer = httpx.post(
            strict.url + "/v1/captions", files={"image": picture(0)}, timeout=2 * PATIENCE, trust_env=False
        )
        assert answer.status_code == 200


def test_slow_clients_and_two_hundred_idle_ones_do_not_starve_others(
    server: Any, picture: Callable[..., bytes]
) -> None:
    with contextlib.ExitStack() as stack:
        for i in range(220):
            connection = stack.enter_context(connect(server))
            if i % 4 == 1:
                connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
            elif i % 4 == 2:
                connection.sendall(HEADER + b"{")
        began = time.monotonic()
        for i in range(5):
            answer = httpx.post(
                server.url + "/v1/captions", files={"image": picture(i)}, timeout=2 * PATIENCE, trust_env=False
            )
            assert answer.status_code == 200
        assert time.monotonic() - began < PATIENCE
        assert get(server).status_code == 200


def test_nonsense_instead_of_http_is_refused(server: Any) -> None:
    endless_header = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", endless_header):
        with connect(server) as connection:
            connection.sendall(nonsense)
            seconds, said = closed_after(connection)
        assert said.startswith(b"HTTP/1.1 400 ") or said == b""
        assert seconds < PATIENCE
    assert get(server).status_code == 200


@pytest.mark.parametrize(("size", "statuses"), [(30 << 10, {b"200"}), (33 << 10, {b"431", b"400"})])
def test_a_header_is_at_most_as_large_as_documented(server: Any, size: int, statuses: set[bytes]) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * size + b"\r\n\r\n")
        said = connection.recv(65536)
    assert said.split(b" ")[1] in statuses  # 400 where it came in two parts, the first one too long already


def test_a_client_that_leaves_is_counted_and_forgotten(server: Any, picture: Callable[..., bytes]) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + picture(0) + b"\r\n--x--\r\n"
    header = (
        "POST /v1/captions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(8):
        with connect(server) as connection:
            connection.sendall(header.encode() + body)
    for _ in range(600):
        text = get(server, "/metrics").text
        if "\nxlan_requests_in_progress 0.0\n" in text and 'xlan_dropped_total{reason="client left"}' in text:
            return
        time.sleep(0.05)
    pytest.fail(text)
