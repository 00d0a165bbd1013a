"""Real processes: killed, terminated, and working together under torchrun."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from xlan.config import parse_config
from xlan.files import read_json_lines
from xlan.training.run import run_training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX signals and gloo over sockets"),
]

Settings = Callable[..., dict[str, Any]]
PATIENCE = 240  # seconds; a busy machine takes long to import torch
NO_DROPOUT = dict.fromkeys(
    ("region_dropout", "block_dropout", "dropout", "update_dropout", "word_dropout", "logit_dropout"), 0.0
)


@pytest.fixture
def settings(run_settings: Settings, trained: Path, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Writes the settings of a run; returns its folder and the file."""

    def make(name: str, stage: str, **changes: Any) -> tuple[Path, Path]:
        value = run_settings(stage, tmp_path / name, **changes)
        if stage == "scst":
            options = value["model"]["options"]
            value["model"] = {"init": str(trained), "options": {k: v for k, v in options.items() if "dropout" in k}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(value))
        return tmp_path / name, tmp_path / f"{name}.yaml"

    return make


@pytest.fixture
def start(start_program: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Starts programs that compute with one thread."""
    return functools.partial(start_program, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (folder / "log.jsonl").exists():
            done = [record.get("step", 0) for record in read_json_lines(folder / "log.jsonl")]
            if done and max(done) >= step:
                return
        assert process.poll() is None, f"ended early: {process.communicate()[0]}"
        time.sleep(0.02)
    pytest.fail(f"step {step} not reached in {PATIENCE} s")


def run_here(file: Path, resume: str | None = None, threads: int | None = None) -> int:
    before = torch.get_num_threads()
    try:
        return run_training(parse_config(yaml.safe_load(file.read_text())), resume_from=resume, threads=threads)
    finally:
        torch.set_num_threads(before)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "last" / "model.safetensors")


@pytest.mark.parametrize("stage", ["xe", "scst"])
def test_killed_at_random_points_it_ends_with_the_same_bits(
    stage: str, settings: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads, as on most machines; the resumed run takes their number from the checkpoint."""
    whole, whole_file = settings("whole", stage)
    run_here(whole_file, threads=2)
    folder, file = settings("killed", stage)
    process = start("xlan", "train", str(file), "--threads", "2")
    wait_for_step(folder, random.randint(2, 12), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run_here(file, resume="auto") == 0
    assert json.loads((folder / "environment.json").read_text())["threads"] == 2
    ours, theirs = weights(folder), weights(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_sigterm_to_the_whole_group_saves_and_leaves_with_143(settings: Any, start: Any) -> None:
    """With loader and reward workers, which get the signal too."""
    folder, file = settings(
        "stopped", "scst", data={"workers": 1}, scst={"reward_workers": 1}, train={"epochs": 1000}, checkpoint={}
    )
    process = start("xlan", "train", str(file))
    wait_for_step(folder, 3, process)
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, output
    assert "Traceback" not in output
    assert "stopped by SIGTERM after step" in " ".join(output.split())
    records = list(read_json_lines(folder / "log.jsonl"))
    steps = max(record["step"] for record in records if record["kind"] == "step")
    assert records[-2]["kind"] == "saved"
    assert records[-2]["step"] == steps


def torchrun(*arguments: str, script: tuple[str, ...] = ("-m", "xlan")) -> tuple[str, ...]:
    return ("torch.distributed.run", "--nproc-per-node", "2", "--standalone", *script, "train", *arguments)


def without_chance(stage: str) -> dict[str, Any]:
    """Settings under which one and two processes can be compared: no dropout, which differs from process to process."""
    # Some gradients are zero but for rounding (a bias before a softmax); without a sizeable epsilon Adam would blow the
    # rounding up to full steps and no two orders of summation would agree.
    changes: dict[str, Any] = {
        "train": {"max_steps": 20, "optimizer": {"lr": 0.01, "eps": 1e-3}},
        "evaluation": {"every": 2, "beams": 1, "metrics": ["CIDEr"]},
    }
    if stage == "xe":
        options = {"dim": 16, "heads": 2, "hidden_dim": 4, "depth": 1, **NO_DROPOUT}
        changes["model"] = {"name": "xlan-tiny", "options": options}
    else:
        changes["scst"] = {"dropout": False}
    return changes


def assert_equal_runs(first: Path, second: Path) -> None:
    ours, theirs = weights(first), weights(second)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5
    losses = [
        [r["loss"] for r in read_json_lines(path / "log.jsonl") if r["kind"] == "step"] for path in (first, second)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert len(losses[0]) == 20
    scores = [
        [r["scores"] for r in read_json_lines(path / "log.jsonl") if r["kind"] == "evaluation"]
        for path in (first, second)
    ]
    assert [score.get("loss") for score in scores[0]] == pytest.approx(
        [score.get("loss") for score in scores[1]], abs=1e-4
    )


@pytest.mark.parametrize("stage", ["xe", "scst"])
def test_two_processes_equal_one_on_the_same_batches(stage: str, settings: Any, start: Any) -> None:
    alone, alone_file = settings("alone", stage, **without_chance(stage))
    run_here(alone_file)
    both, both_file = settings("both", stage, **without_chance(stage))
    process = start(*torchrun(str(both_file)))
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert_equal_runs(both, alone)


def test_a_sharded_model_resumes_and_equals_one_process(settings: Any, start: Any) -> None:
    alone, alone_file = settings("alone", "scst", **without_chance("scst"))
    run_here(alone_file)
    sharded, file = settings("sharded", "scst", **without_chance("scst"))
    script = (str(Path(__file__).with_name("sharded_train.py")),)
    for limit in ("9", "20"):
        process = start(*torchrun(str(file), f"train.max_steps={limit}", "--resume", "auto", script=script))
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
    assert_equal_runs(sharded, alone)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the processes of torchrun in /proc")
def test_a_killed_rank_ends_the_other_with_a_clear_message(settings: Any, start: Any) -> None:
    folder, file = settings("broken", "xe", train={"epochs": 1000}, evaluation={"every": 1000, "metrics": ["CIDEr"]})
    process = start(*torchrun(str(file)))
    wait_for_step(folder, 3, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {
        pid: dict(item.split("=", 1) for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in item)
        for pid in children
    }
    victim = next(int(pid) for pid, environment in ranks.items() if environment.get("RANK") == "1")
    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "process 0 of 2 lost contact with another process of the run" in " ".join(output.split())
