from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import DataError, TrainingError
from xlan.training.checkpoint import CheckpointFolder, load_checkpoint, random_state, restore_random_state


def save(folder: Path, step: int, *, keep: int = 2, size: int = 3) -> Path:
    tensors = {
        "model": {"w": torch.full((size,), float(step))},
        "optimizer": {"w/exp_avg": torch.ones(size)},
        "rng": {"0/x": torch.ones(1)},
    }
    return CheckpointFolder(folder, keep=keep).save(step=step, tensors=tensors, state={"a": step})


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(save(tmp_path, 7))
    assert torch.equal(checkpoint.model["w"], torch.full((3,), 7.0))
    assert torch.equal(checkpoint.optimizer["w/exp_avg"], torch.ones(3))
    assert checkpoint.state["step"] == 7
    assert checkpoint.state["a"] == 7


def test_the_last_n_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 2, 3):
        save(tmp_path, step)
    steps = [load_checkpoint(path).state["step"] for path in CheckpointFolder(tmp_path, keep=2).names()]
    assert steps == [3, 2]


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_is_the_one_written_last_after_going_back_to_an_earlier_step(tmp_path: Path, keep: int) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    made = save(tmp_path, 12, keep=keep)
    assert CheckpointFolder(tmp_path, keep=keep).newest() == made


def test_a_name_is_never_written_twice(tmp_path: Path) -> None:
    assert save(tmp_path, 5) != save(tmp_path, 5)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_newest_skips_what_is_damaged(tmp_path: Path, file: str, damage: str) -> None:
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    if damage == "missing":
        (bad / file).unlink()
    else:
        (bad / file).write_bytes((bad / file).read_bytes()[:-2])
    assert CheckpointFolder(tmp_path, keep=2).newest() == good


def test_changed_bytes_are_noticed_on_loading(tmp_path: Path) -> None:
    path = save(tmp_path, 1) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="does not match its recorded hash"):
        load_checkpoint(path.parent)


def test_the_folder_of_a_run_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a checkpoint; expected a folder such as RUN/checkpoints/step-"):
        load_checkpoint(save(tmp_path, 7).parent)


def test_no_folder_means_no_checkpoint(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "nowhere", keep=1).newest() is None


def killed_while_saving(folder: Path, step: int, kill_at: int) -> bool:
    """Save in a child process that dies, without any cleaning up, at its `kill_at`-th file operation.

    Returns whether it lived to the end.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            watched = event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "shutil.rmtree")
            if watched and any(str(folder) in str(argument) for argument in arguments):
                count += 1
                if count == kill_at:
                    os._exit(9)

        sys.addaudithook(hook)
        try:
            save(folder, step)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_killed_at_any_point_an_earlier_or_the_new_checkpoint_is_whole(kill_points: list[int]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        checkpoints = CheckpointFolder(folder, keep=2)
        save(folder, 1)
        last = 1
        for step, kill_at in enumerate(kill_points, start=2):
            lived = killed_while_saving(folder, step, kill_at)
            newest = checkpoints.newest()
            assert newest is not None
            found = load_checkpoint(newest)
            assert found.state["step"] in ((step,) if lived else (last, step))
            assert torch.equal(found.model["w"], torch.full((3,), float(found.state["step"])))
            last = found.state["step"]
        save(folder, 100)
        assert [path.name for path in folder.glob(".*")] == []
        assert len(checkpoints.names()) == 2
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files the POSIX way")
def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path: Path) -> None:
    import resource
    import signal

    before = save(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(TrainingError, match=f"could not be written.*{before.name} is complete"):
            save(tmp_path, 2, size=1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert CheckpointFolder(tmp_path, keep=2).newest() == before
    assert list(tmp_path.iterdir()) == [before]


def test_an_unwritable_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TrainingError, match="could not be written") as caught:
        save(tmp_path / "file", 1)
    assert "\n" not in str(caught.value)


def test_random_states_come_back() -> None:
    random.gauss(0, 1)  # leaves half of a pair behind, which is part of the state
    np.random.standard_normal()
    state = {name: value.clone() for name, value in random_state().items()}

    def draw() -> tuple[float, ...]:
        return random.random(), random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(1))

    first = draw()
    restore_random_state(state)
    assert draw() == first
