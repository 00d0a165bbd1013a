"""Commands of ours that another one starts: they end when it dies, however it dies.

The parent process holds one end of the child's standard input and never writes to it. The system closes it with the
process, even one that was killed, and the child takes that for a TERM signal: it saves and ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

_VARIABLE = "XLAN_END_WITH_STDIN"


def start_child(command: Sequence[str], environment: Mapping[str, str], output: IO[str]) -> subprocess.Popen[bytes]:
    """Start a command of ours that ends with this process; what it prints and reports goes to `output`."""
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=output, stderr=output, env={**environment, _VARIABLE: "1"}
    )


def end_with_parent() -> None:
    """What such a command does first; does nothing in a command that a user started."""
    if os.environ.pop(_VARIABLE, ""):
        threading.Thread(target=_end_with_stdin, name="end with parent", daemon=True).start()


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
