"""Full or stopping: what a server does to those who wait."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest


def post(server: Any, image: bytes, **options: Any) -> httpx.Response:
    return httpx.post(server.url + "/v1/captions", files={"image": image}, data=options, timeout=60, trust_env=False)


@pytest.mark.slow
def test_a_full_queue_is_503_with_retry_after(start_server: Callable[..., Any], picture: Callable[..., bytes]) -> None:
    server = start_server("--queue", "2", "--max-batch", "1", "--timeout", "20")
    heavy = {"samples": 10, "max_length": 50, "explain": True}
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda i: post(server, picture(i), **heavy), range(24)))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 503}
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.json()["type"] == "urn:xlan:problem:busy"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert post(server, picture(0)).status_code == 200


def test_stopping_says_so_refuses_new_captions_and_finishes_old_ones(
    start_server: Callable[..., Any], picture: Callable[..., bytes]
) -> None:
    server = start_server(settings={"max_wait": 1.5})  # a request alone takes at least that long
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(post, server, picture(0))
        while "\nxlan_queue_length 1.0\n" not in httpx.get(server.url + "/metrics", timeout=60, trust_env=False).text:
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        health = ""
        while health != "stopping":
            health = httpx.get(server.url + "/v1/health", timeout=60, trust_env=False).json()["status"]
        refused = post(server, picture(1))
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:xlan:problem:stopping"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
        assert accepted.result().status_code == 200
    assert server.process.wait(timeout=60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/v1/health", timeout=60, trust_env=False)


@pytest.mark.slow
def test_an_idle_server_ends_at_once_on_ctrl_c(start_server: Callable[..., Any]) -> None:
    server = start_server()
    began = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=60) == 0
    assert time.monotonic() - began < 30
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_stopping_under_load_loses_nobody_who_was_let_in(
    start_server: Callable[..., Any], picture: Callable[..., bytes]
) -> None:
    server = start_server("--max-batch", "4")
    images = [picture(i) for i in range(8)]
    told = threading.Event()
    results: list[tuple[bool, int | str]] = []  # asked before the signal?, status or what went wrong

    def ask(seed: int) -> None:
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            for i in range(10_000):
                before = not told.is_set()
                try:
                    answer = client.post("/v1/captions", files={"image": images[(seed + i) % 8]})
                    results.append((before, answer.status_code))
                    if answer.status_code == 503:
                        time.sleep(0.02)
                except httpx.TransportError as error:
                    results.append((before, type(error).__name__))
                    if isinstance(error, httpx.ConnectError):
                        return

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for seed in range(16):
            pool.submit(ask, seed)
        while len(results) < 50:
            time.sleep(0.02)
        told.set()  # first, so that a request counts as asked before the signal only when it certainly was
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
    assert {outcome for before, outcome in results if before} <= {200, 503}
    assert sum(outcome == 200 for _, outcome in results) >= 50
    after = {outcome for before, outcome in results if not before}
    assert after <= {200, 503, "ConnectError", "RemoteProtocolError", "ReadError", "WriteError"}
    assert "ConnectError" in after
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_second_signal_does_not_wait(start_server: Callable[..., Any], picture: Callable[..., bytes]) -> None:
    server = start_server(settings={"max_wait": 60.0})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(post, server, picture(0))
        while "\nxlan_queue_length 1.0\n" not in httpx.get(server.url + "/metrics", timeout=60, trust_env=False).text:
            time.sleep(0.02)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=60)
        assert time.monotonic() - began < 45
