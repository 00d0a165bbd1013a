"""Real processes: workers and drivers killed with -9, a full disk, Ctrl-C. The same command completes the job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.batch.conftest import PATIENCE, PictureServer, Start, children, rows_of, wait_until

from xlan.batch.executors import MAX_LOST, Lost
from xlan.batch.job import Job
from xlan.batch.shards import DoneShard, commit
from xlan.batch.storage import Storage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc"),
]
COUNT, HELD, SHARD = 18, 8, 2


@pytest.fixture
def command(model_directory: Path, tmp_path: Path, server: PictureServer) -> list[str]:
    """Captions pictures of the server in nine shards with two workers."""
    pytest.importorskip("aiohttp")
    (tmp_path / "list.txt").write_text("".join(f"{server.address(i)}\n" for i in range(COUNT)))
    typed = ["batch", "caption", str(tmp_path / "list.txt"), "--model", str(model_directory), "--workers", "2"]
    return [*typed, "--shard-size", str(SHARD)]


def done(output: Path) -> set[int]:
    return {int(path.name.split("_")[0]) for path in (output / "_job" / "done").glob("*.json")}


def test_killed_workers_and_drivers_lose_only_unfinished_shards(
    command: list[str], start: Start, tmp_path: Path, server: PictureServer
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    server.held = HELD
    driver = start(*command, "-o", str(out))
    wait_until(lambda: len(done(out)) == HELD // SHARD and server.waiting >= 4, driver)  # two workers with two readers
    workers = children(driver.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: server.waiting >= 6, driver)  # a new worker asks for the pictures of the lost one
    others = children(driver.pid)
    assert len(set(others) - set(workers)) == 1
    os.kill(driver.pid, signal.SIGKILL)
    output, _ = driver.communicate(timeout=PATIENCE)
    assert "a worker was lost (killed by signal 9); shard" in output
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in others))  # workers end with their driver
    assert done(out) == set(range(HELD // SHARD))
    before = dict(server.asked)
    server.gate.set()
    again = start(*command, "-o", str(out))
    output, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 3, output  # two pictures cannot be used
    assert "4 shards already done" in output
    assert {i: server.asked[i] for i in range(HELD)} == {i: before[i] for i in range(HELD)}
    undisturbed = start(*command, "-o", str(whole))
    assert undisturbed.communicate(timeout=PATIENCE)
    assert rows_of(out) == rows_of(whole)
    assert [row["image"] for row in rows_of(out)] == [server.address(i) for i in range(COUNT)]
    assert not list(out.rglob("*.tmp"))


def test_ctrl_c_says_how_to_continue(command: list[str], start: Start, tmp_path: Path, server: PictureServer) -> None:
    server.held = HELD
    driver = start(*command, "-o", str(tmp_path / "out"))
    wait_until(lambda: server.waiting >= 4, driver)  # two workers with two readers
    workers = children(driver.pid)
    os.killpg(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130, output
    assert output.splitlines()[-1] == "interrupted: finished shards are kept; the same command continues"
    assert "Traceback" not in output
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in workers))


def test_a_full_disk_is_one_line_and_loses_nothing(
    pictures: Path, model_directory: Path, start: Start, tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk: the features of three pictures do not fit."""
    resource = pytest.importorskip("resource")
    (pictures / "a" / "00.png").write_bytes(b"no picture")  # the first shard needs no room
    for path in (pictures / "a").glob("0[1-4].png"):
        path.write_bytes(b"no picture")
    command = ["batch", "features", str(pictures), "--model", str(model_directory), "--workers", "1"]
    command += ["--shard-size", "5"]
    limit = 30_000
    full = start(
        *command,
        "-o",
        str(tmp_path / "store"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    output, _ = full.communicate(timeout=PATIENCE)
    assert full.returncode == 1, output
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "cannot be written: File too large" in errors[0]
    assert errors[0].endswith("(1 of 2 shards are done and kept)")
    assert "Traceback" not in output
    for store in ("store", "whole"):
        again = start(*command, "-o", str(tmp_path / store))
        output, _ = again.communicate(timeout=PATIENCE)
        assert again.returncode == 3, output
    names = [path.name for path in (tmp_path / "whole").glob("features-*")]
    assert names == ["features-s00001.safetensors"]
    assert (tmp_path / "store" / names[0]).read_bytes() == (tmp_path / "whole" / names[0]).read_bytes()
    assert (tmp_path / "store" / "index.json").read_bytes() == (tmp_path / "whole" / "index.json").read_bytes()


def test_a_shard_that_kills_its_workers_is_given_up() -> None:
    said: list[str] = []
    shards = Lost([7, 8], said.append)
    assert shards.next() == 7
    for _ in range(MAX_LOST - 1):
        assert shards.lost(7, "killed by signal 9") is None
        assert shards.next() == 7  # before the next one, so that it is known soon
    answer = shards.lost(7, "killed by signal 9")
    assert answer is not None
    assert answer["error"].startswith("shard 7: 3 workers died on it (the last: killed by signal 9)")
    assert (shards.next(), shards.next()) == (8, None)
    assert len(said) == MAX_LOST - 1


def test_a_shard_whose_worker_died_after_the_marker_is_not_made_again(tmp_path: Path) -> None:
    said: list[str] = []
    storage = Storage(str(tmp_path))
    storage.write("part-00007.parquet", b"rows")
    shards = Lost([7, 8], said.append, Job("caption", str(tmp_path)))
    assert (shards.next(), shards.next()) == (7, 8)
    assert shards.lost(7, "killed by signal 9") is None  # its file is whole, but nothing says so
    assert shards.next() == 7
    commit(storage, DoneShard(7, rows=5, errors=1, bytes=4), {})
    assert shards.lost(7, "killed by signal 9") == {"number": 7, "rows": 5, "errors": 1, "bytes": 4}
    assert shards.next() is None
    assert said[-1] == "a worker was lost (killed by signal 9); it had finished shard 7"


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_a_model_that_cannot_be_loaded_is_one_line(pictures: Path, start: Start, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    failed = start("batch", "caption", str(pictures), "-o", str(tmp_path / "out"), "--model", str(tmp_path / "model"))
    output, _ = failed.communicate(timeout=PATIENCE)
    assert failed.returncode == 1
    assert len(output.splitlines()) == 1
    assert output.startswith(f"error: {tmp_path / 'model'}: ")
