"""Finding Java and running it so that it cannot hang, fill the memory or outlive this process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xlan.errors import MetricError

OLDEST_JAVA = 8
TAIL_BYTES = 64 << 10
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOW_TO_INSTALL = "install Java 8 to 21 (Debian/Ubuntu: apt install default-jre-headless) or set JAVA_HOME"


@dataclass(frozen=True)
class Java:
    """A Java executable and its major version (8, 11, 17, …)."""

    executable: Path
    version: int


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit status (negative: killed by that signal) and the end of what it wrote to stderr."""

    status: int
    errors: str


def find_java() -> Java:
    """The Java of JAVA_HOME, else the first on the PATH.

    Raises:
        MetricError: there is none, it does not start or it is older than Java 8.
    """
    executable = _java_executable()
    if executable is None:
        raise MetricError(f"SPICE needs Java and none was found: {_HOW_TO_INSTALL}")
    try:
        answer = subprocess.run(
            [str(executable), "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MetricError(f"{executable} does not start ({type(error).__name__}): {_HOW_TO_INSTALL}") from None
    found = _VERSION.search((answer.stderr + answer.stdout).decode(errors="replace"))
    if answer.returncode != 0 or found is None:
        raise MetricError(f"{executable} -version gives no version number: {_HOW_TO_INSTALL}")
    version = int(found.group(1))
    if version < OLDEST_JAVA:
        raise MetricError(f"SPICE needs Java 8 or later, {executable} is Java {version}: {_HOW_TO_INSTALL}")
    return Java(executable, version)


def _java_executable() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    places = ([str(Path(home) / "bin")] if home else []) + [os.environ.get("PATH", os.defpath)]
    for place in places:
        found = shutil.which("java", path=place)
        if found:
            return Path(found)
    return None


def run_to_end(command: Sequence[str], *, folder: Path, timeout: float) -> Outcome:
    """Run `command` in `folder` as a process group of its own; whatever happens, nothing of the group is left behind.

    Standard output is dropped and standard error read to the end, so the child never blocks on a full pipe; only its
    last 64 KiB are kept.

    Raises:
        MetricError: the command cannot be started or takes more than `timeout` seconds.
    """
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # ignored on Windows, where only the child itself can be killed
        )
    except OSError as error:
        raise MetricError(f"{command[0]} does not start: {error.strerror or error}") from None
    assert child.stderr is not None
    tail = bytearray()
    reader = threading.Thread(target=_drain, args=(child.stderr, tail), daemon=True)
    reader.start()
    try:
        status = child.wait(timeout)
    except subprocess.TimeoutExpired:
        raise MetricError(
            f"SPICE took more than the time limit of {timeout:g} s and was stopped; set a longer limit"
        ) from None
    finally:
        # Also after an orderly end: children of the child would keep the pipe open and the processor busy.
        _kill_group(child)
        child.wait()
        reader.join(timeout=10)
        # Closing waits for a read under way; a reader still blocked after all that keeps its pipe.
        if not reader.is_alive():
            child.stderr.close()
    return Outcome(status, bytes(tail).decode(errors="replace"))


def _drain(pipe: IO[bytes], tail: bytearray) -> None:
    while block := os.read(pipe.fileno(), 1 << 16):
        tail += block
        del tail[:-TAIL_BYTES]


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            # The group's number is the child's id, which stays taken while any member of the group is alive.
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
