"""Real servers: `xlan serve` as a process of its own, on a free port of this machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@dataclass(frozen=True)
class Server:
    """A server that runs: its address, its process and the file with what it wrote to standard error."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


# A server with settings that have no option, for clocks that would be too slow to test.
WITH_SETTINGS = """
import json, sys
from xlan import Captioner
from xlan.serving.server import listen, serve
from xlan.serving.settings import ServeSettings
listener = listen("127.0.0.1", 0)
address = "xlan listens on http://127.0.0.1:%d" % listener.getsockname()[1]
settings = ServeSettings(**json.loads(sys.argv[2]))
serve(Captioner.from_pretrained(sys.argv[1]), settings, listener, lambda: print(address, flush=True))
"""


@contextlib.contextmanager
def run_server(
    model: Path,
    log: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    settings: dict[str, object] | None = None,
) -> Iterator[Server]:
    command = [sys.executable, "-m", "xlan", "serve", "--model", str(model), "--port", "0", *arguments]
    if settings is not None:
        command = [sys.executable, "-c", WITH_SETTINGS, str(model), json.dumps(settings)]
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=whole)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("xlan listens on http://"), f"it did not start: {line}{log.read_text()}"
        yield Server(line.split()[-1], process, log)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def server(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with small limits that lives as long as the tests; `server.url` is its address."""
    log = tmp_path_factory.mktemp("server") / "log"
    limits = ("--max-bytes", "1000000", "--max-pixels", "4000000", "--threads", "2")
    with run_server(model_directory, log, *limits) as running:
        yield running


@pytest.fixture(scope="module")
def naming_server(start_for_module: Callable[..., Server], detector_directory: Path) -> Server:
    """A server with a detector beside its model."""
    return start_for_module("--detector", str(detector_directory))


@contextlib.contextmanager
def starter(model: Path, folder: Path) -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **options: Any) -> Server:
            log = folder / f"log{time.monotonic_ns()}"
            return stack.enter_context(run_server(model, log, *arguments, **options))

        yield start


@pytest.fixture
def start_server(model_directory: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """`start_server("--queue", "1", environment={…})`, or `start_server(settings={…})`: a server of its own."""
    with starter(model_directory, tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_for_module(
    model_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Server]]:
    """The same, for servers that several tests of a file share."""
    with starter(model_directory, tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture(scope="session")
def picture() -> Callable[..., bytes]:
    """`picture(3)`: the bytes of a PNG of noise; `kind` and `size` for others."""

    def make(seed: int = 0, *, kind: str = "PNG", size: tuple[int, int] = (60, 40)) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        return file.getvalue()

    return make
