"""Two torchrun agents on loopback stand for two machines: they train together, and continue after the loss of one."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_processes import (
    PATIENCE,
    run_here,
    settings,  # noqa: F401 - a fixture
    start,  # noqa: F401 - a fixture
    wait_for_step,
    weights,
    without_chance,
)

from xlan.files import read_json_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the processes of torchrun in /proc"),
]

STEPS = 60


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_after_a_lost_machine_the_same_commands_continue_from_the_last_checkpoint(
    settings: Any,  # noqa: F811
    start: Any,  # noqa: F811
) -> None:
    changes = without_chance("xe")
    changes["train"] = {**changes["train"], "epochs": 20, "max_steps": STEPS}
    alone, alone_file = settings("alone", "xe", **changes)
    run_here(alone_file)
    both, both_file = settings("both", "xe", **changes)

    def machines() -> list[Any]:
        agent = (
            *("torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "run"),
            *("-m", "xlan", "train", str(both_file), "--resume", "auto"),
        )
        return [start(*agent), start(*agent)]

    first, second = machines()
    wait_for_step(both, 5, first)
    trained = Path(f"/proc/{second.pid}/task/{second.pid}/children").read_text().split()
    for pid in (second.pid, *map(int, trained)):
        os.kill(pid, signal.SIGKILL)
    output, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode != 0
    assert len(steps_of(both)) < STEPS
    for process in machines():
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
    ours, theirs = weights(both), weights(alone)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-4
    assert steps_of(both) == list(range(1, STEPS + 1))


def steps_of(run: Path) -> list[int]:
    return [record["step"] for record in read_json_lines(run / "log.jsonl") if record["kind"] == "step"]
