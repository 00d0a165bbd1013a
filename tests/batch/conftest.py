"""Drawn pictures, a server whose pictures can be held back, and rows of an output."""

from __future__ import annotations

import functools
import http.server
import io
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'xlan[batch]'")
pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'xlan[batch]'")

PATIENCE = 240  # seconds; a busy machine takes long to start processes


def drawn(number: int) -> bytes:
    """A small picture that differs from the others."""
    pixels = np.random.default_rng(number).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((64, 48)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with ten pictures in two folders; the fourth one is broken."""
    folder = tmp_path / "pictures"
    for number in range(10):
        path = folder / ("a" if number < 5 else "b") / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no picture" if number == 3 else drawn(number))
    return folder


def rows_of(output: str | Path) -> list[dict[str, Any]]:
    """All rows of the Parquet files in a folder, in the order of their shards."""
    from pyarrow import parquet

    return [row for part in sorted(Path(output).glob("part-*.parquet")) for row in parquet.read_table(part).to_pylist()]


class PictureServer(http.server.ThreadingHTTPServer):
    """Serves drawn pictures `/0.png`, `/1.png`, …; those from `held` on only after `gate` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pictures)
        self.held = 1 << 30
        self.gate = threading.Event()
        self.asked: Counter[int] = Counter()
        self.waiting = 0

    def address(self, number: int) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{number}.png"


class _Pictures(http.server.BaseHTTPRequestHandler):
    server: PictureServer

    def do_GET(self) -> None:
        number = int(self.path.strip("/").removesuffix(".png"))
        self.server.asked[number] += 1
        if number >= self.server.held:
            self.server.waiting += 1
            self.server.gate.wait()
        content = b"no picture" if number == 3 else drawn(number)
        self.send_response(404 if number == 5 else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.send_error(405)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # the worker that asked was killed
            self.close_connection = True


@pytest.fixture
def server() -> Iterator[PictureServer]:
    with PictureServer() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.gate.set()
        made.shutdown()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(start_program: Start) -> Start:
    """Starts `xlan` commands."""
    return functools.partial(start_program, "xlan")


def wait_until(true: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended early: {process.communicate()[0]}")
        if time.monotonic() > deadline:
            if process is not None:
                process.kill()
            pytest.fail(f"waited too long: {process.communicate()[0] if process is not None else ''}")
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
