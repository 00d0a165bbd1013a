"""A real Ray cluster of two nodes on this machine: a worker killed, a node removed, the driver killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.batch.conftest import PATIENCE, PictureServer, Start, children, rows_of, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc"),
]
COUNT, HELD, SHARD = 24, 8, 2


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes with one CPU each."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'xlan[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    try:
        made.add_node(num_cpus=1, object_store_memory=80 << 20)
        yield made
    finally:
        made.shutdown()


def workers_of(node: Any) -> list[int]:
    """Processes of our actors on a node."""
    (raylet,) = node.all_processes["raylet"]
    return [pid for pid in children(raylet.process.pid) if "ray::Worker" in title(pid)]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def done(output: Path) -> set[int]:
    return {int(path.name.split("_")[0]) for path in (output / "_job" / "done").glob("*.json")}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lost_workers_nodes_and_drivers_lose_only_unfinished_shards(
    cluster: Any, model_directory: Path, start: Start, tmp_path: Path, server: PictureServer
) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "list.txt").write_text("".join(f"{server.address(i)}\n" for i in range(COUNT)))
    typed = ["batch", "caption", str(tmp_path / "list.txt"), "--model", str(model_directory)]
    command = [*typed, "--shard-size", str(SHARD), "--batch-size", str(SHARD)]
    out, whole = tmp_path / "out", tmp_path / "whole"
    server.held = HELD
    driver = start(*command, "-o", str(out), "--ray", cluster.address)
    # Both actors are blocked, each with two readers that wait for a picture.
    wait_until(lambda: len(done(out)) == HELD // SHARD and server.waiting >= 4, driver)
    first, second = sorted(cluster.list_all_nodes(), key=lambda node: not node.head)
    (worker,) = workers_of(first)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: server.waiting >= 6, driver)  # another actor has the pictures of the lost one
    (replaced,) = workers_of(first)
    assert replaced != worker
    assert workers_of(second)
    cluster.remove_node(second, allow_graceful=False)
    before = dict(server.asked)
    server.held = COUNT - 2  # all but the last shard may be finished now, by one node
    server.gate.set()
    server.gate.clear()
    # The node that is left makes all shards but the last one and, until it is known to be lost, that of the other node.
    wait_until(lambda: len(done(out)) >= COUNT // SHARD - 2, driver)
    os.kill(driver.pid, signal.SIGKILL)
    output, _ = driver.communicate(timeout=PATIENCE)
    assert "a worker was lost" in output
    kept = len(done(out))
    assert {i: server.asked[i] for i in range(HELD)} == {i: before[i] for i in range(HELD)}
    server.gate.set()
    again = start(*command, "-o", str(out), "--ray", cluster.address)
    output, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 3, output  # two pictures cannot be used
    (before_again,) = re.findall(r"(\d+) shards already done", output)
    assert kept <= int(before_again)  # a worker may finish the shard it had after the driver is gone
    undisturbed = start(*command, "-o", str(whole), "--workers", "1")
    assert undisturbed.communicate(timeout=PATIENCE)
    assert rows_of(out) == rows_of(whole)
    assert [row["image"] for row in rows_of(out)] == [server.address(i) for i in range(COUNT)]


def test_a_cluster_that_is_not_there_is_one_line(
    pictures: Path, model_directory: Path, start: Start, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'xlan[ray]'")
    failed = start(
        *("batch", "caption", str(pictures), "-o", str(tmp_path / "out"), "--model", str(model_directory)),
        *("--ray", "127.0.0.1:1"),
    )
    output, _ = failed.communicate(timeout=PATIENCE)
    assert failed.returncode == 1, output
    assert "error: --ray 127.0.0.1:1: cannot connect: " in output
    assert "Traceback" not in output
