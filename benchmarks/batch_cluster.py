"""What `xlan batch caption` promises at scale, on a real Ray cluster of two nodes on this machine.

    python benchmarks/batch_cluster.py --part speed        two nodes against one
    python benchmarks/batch_cluster.py --part failures     workers, nodes and the driver die; rows are compared
    python benchmarks/batch_cluster.py --part memory       the driver's peak memory, few inputs against many

The driver is the command itself in a process of its own. Every node has one CPU; all of them talk over loopback,
without dashboard and usage statistics. `--folder DIR` takes real photos instead of drawn ones, `--model DIR` another
model (`tiny`: a small one with random weights), `--work DIR` keeps everything that was written. Linux only: processes
are found in /proc.

speed: drivers with one node and with two take turns. Nodes are pinned to a core each, since the threads of a worker
that open pictures would otherwise use the core of the node that is not there. The clock starts with the first shard
that is finished after every node has begun to caption, and stops when the last shard is handed out and one node has no
work left: start-up of Ray, loading of models and the wait for the last shard do not count. Shards in progress at either
end are counted as they finish, which evens out. Beside it stands what the machine itself gives: one process of the
local engine on one core, and two of them on a core each. Cores that share memory or power give less than twice as much.

failures: a worker and later the driver are killed (SIGKILL), a node is removed, a node is added, and the same command
is run again. Rows are compared with those of the local engine without a disturbance. Batches are cut inside a shard and
every worker has one thread, so even probabilities have to be equal bit by bit, and so have the files. Ten times a
second, all finished shards are looked at: one whose file or marker was written again was done twice.

memory: the highest resident memory (VmHWM) of the driver alone, its workers excluded. Pictures lie in folders of 500
(`--flat`: all in one folder, whose names are in memory while it is listed).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from xlan.batch.shards import done_shards, file_name
from xlan.batch.storage import Storage

GOAL = 1.7  # two nodes against one
LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by the address of a network card
MAX_WORK = 36  # characters of a folder that leave room for the names of Ray's sockets
START = 180.0  # seconds that a node may take to start
DEFAULTS = {"speed": (600, 16), "failures": (5000, 50), "memory": (0, 100)}  # pictures, pictures of a shard
PER_FOLDER = 500
SOME_BAD = 3  # exit status when some pictures could not be used
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def say(line: str) -> None:
    print(line, flush=True)


@dataclass
class Settings:
    """What all parts need."""

    work: Path
    model: Path | None
    pictures: int
    shard_size: int
    folder: Path | None = None


# Pictures and a model


def drawn(number: int, size: tuple[int, int]) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(file, "JPEG")
    return file.getvalue()


def make_pictures(given: Settings, folder: Path) -> list[Path]:
    """The pictures in a folder: drawn, or those of `--folder` under new names."""
    photos = sorted(path for path in given.folder.rglob("*.jpg") if path.is_file()) if given.folder else []
    count = min(given.pictures, len(photos)) if given.folder else given.pictures
    say(f"{count} {'photos' if given.folder else 'drawn pictures'} of {given.pictures} wanted: making {folder}")
    folder.mkdir()
    paths = []
    for number in range(count):
        path = folder / f"{number:06d}.jpg"
        if photos:
            shutil.copyfile(photos[number], path)
        else:
            path.write_bytes(drawn(number, (640, 480)))
        paths.append(path)
    return paths


def tiny_model(folder: Path) -> Path:
    """A whole model directory with random weights: 11 words, 64 pixels, 5 regions."""
    import torch

    from xlan.model.build import build_model
    from xlan.pretrained import save_pretrained
    from xlan.text.vocab import Vocabulary
    from xlan.vision import efficientnet
    from xlan.vision.grid import GridExtractor
    from xlan.vision.grid_settings import GridSettings

    folder.mkdir()
    torch.manual_seed(0)
    network = efficientnet.build("efficientnet-lite0")
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the statistics of one batch, so that different pictures look different
    network.train()(torch.randn(16, 3, 64, 64))
    GridExtractor(network, GridSettings("efficientnet-lite0", input_size=64)).save(folder / "vision.safetensors")
    words = Vocabulary.from_words(["a", "dog", "dogs", "cat", "on", "grass", "the"])
    model = build_model("xlan-tiny", vocab_size=len(words), feature_dim=1280)
    extras = {"vision.safetensors": folder / "vision.safetensors"}
    save_pretrained(folder / "model", model.spec, model.state_dict(), words, extras=extras)
    return folder / "model"


# The cluster


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes that are started meanwhile, and theirs, stay on this core."""
    before = os.sched_getaffinity(0)
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        yield
    finally:
        os.sched_setaffinity(0, before)


class Nodes:
    """A cluster of nodes with one CPU each; as a context manager, it ends the processes that it started."""

    def __init__(self, count: int, *, pinned: bool = False) -> None:
        from ray.cluster_utils import Cluster

        self._cores = sorted(os.sched_getaffinity(0)) if pinned else []
        self._count = count
        self._cluster: Any = Cluster()
        self.nodes: list[Any] = []

    def __enter__(self) -> Nodes:
        try:
            while len(self.nodes) < self._count:
                self.add()
        except BaseException:
            self._cluster.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> Any:
        began = time.monotonic()
        size = {"num_cpus": 1, "object_store_memory": 80 << 20}
        with on_core(self._cores[len(self.nodes) % len(self._cores)] if self._cores else None):
            try:
                node = self._cluster.add_node(wait=False, node_ip_address=LOOPBACK, include_dashboard=False, **size)
            except Exception as error:  # Ray waits half a minute and raises nothing more special
                raise SystemExit(f"a node of Ray did not start; is the machine busy? {error}") from None
        self.nodes.append(node)
        self._cluster.wait_for_nodes(timeout=START)
        say(f"a node is there after {time.monotonic() - began:.1f} s")
        return node

    def remove(self, node: Any) -> None:
        """As if its machine had failed."""
        self._cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    def settle(self) -> None:
        """Wait until the cluster knows which nodes it has."""
        self._cluster.wait_for_nodes(timeout=START)


def captioning(node: Any) -> list[int]:
    """Processes of a node that make a shard at this moment."""
    (raylet,) = node.all_processes["raylet"]
    pid = raylet.process.pid
    with contextlib.suppress(OSError):
        found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in found if title(child).startswith("ray::Worker.run")]
    return []


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# The command


@contextlib.contextmanager
def driver(given: Settings, pictures: Path, output: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, running; what it says goes to a file beside its output."""
    typed = [sys.executable, "-m", "xlan", "batch", "caption", str(pictures), "-o", str(output), *options]
    typed += ["--shard-size", str(given.shard_size), "--threads", "1"]
    if given.model is not None:
        typed += ["--model", str(given.model)]
    with log(output).open("ab") as file:
        process = subprocess.Popen(typed, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def log(output: Path) -> Path:
    return output.with_name(f"{output.name}.log")


def said(output: Path) -> str:
    """The last lines of the command, without the state that Ray prints when a node dies."""
    lines = log(output).read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if line.strip() and "[state-dump]" not in line][-20:])


def check(process: subprocess.Popen[bytes], output: Path, expected: int) -> None:
    if process.wait() != expected:
        raise SystemExit(
            f"{output}: the command ended with status {process.returncode}, not {expected}:\n{said(output)}"
        )


class Watch:
    """Looks at the finished shards of an output: when they came, and whether one was written again."""

    def __init__(self, name: str, output: Path, shards: int) -> None:
        self.name, self.output, self.shards = name, output, shards
        self.again: set[int] = set()
        self.ends: dict[int, float] = {}  # seconds since 1970, by the clock of the file system
        self.rows: dict[int, int] = {}
        self._written: dict[int, tuple[int, ...]] = {}
        self._said = time.monotonic()

    def look(self) -> int:
        """How many shards are finished; says so now and then."""
        done = done_shards(Storage(str(self.output)), "caption")
        for number, shard in done.items():
            file, marker = (self.output / file_name("caption", number)).stat(), (self.output / shard.marker).stat()
            written = (file.st_ino, file.st_mtime_ns, marker.st_ino, marker.st_mtime_ns)
            if self._written.setdefault(number, written) != written:
                self._written[number] = written
                self.again.add(number)
            self.ends.setdefault(number, marker.st_mtime)
            self.rows[number] = shard.rows
        if time.monotonic() - self._said > 15:
            self._said = time.monotonic()
            say(f"  {self.name}: {len(done)} of {self.shards} shards")
        return len(done)

    def until(self, process: subprocess.Popen[bytes], true: Callable[[], object], pause: float = 0.1) -> None:
        """Look until something is true or, if it never is, the command has ended."""
        while self.look() >= 0 and not true():
            if process.poll() is not None:
                raise SystemExit(f"{self.name}: was over too early; take more --pictures:\n{said(self.output)}")
            time.sleep(pause)

    def to_end(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            self.look()
            time.sleep(0.1)
        self.look()


def shards_of(given: Settings, pictures: int) -> int:
    return -(-pictures // given.shard_size)


# Part 1: speed


def rate(ends: Sequence[tuple[float, int]], name: str) -> tuple[int, float]:
    """Pictures and seconds between the first and the last of these ends of shards."""
    if len(ends) < 3:
        raise SystemExit(f"{name}: only {len(ends)} shards while all were at work; take more --pictures")
    return sum(rows for _, rows in ends[1:]), ends[-1][0] - ends[0][0]


def speed(given: Settings, turns: int) -> bool:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        say("warning: this machine has one core; two nodes cannot be faster than one")
    folder = given.work / "pictures"
    count = len(make_pictures(given, folder))
    total: Counter[str] = Counter()
    spent: dict[str, float] = dict.fromkeys(("1 node", "2 nodes", "1 process", "2 processes"), 0.0)

    def add(name: str, turn: int, pictures: float, seconds: float) -> None:
        total[name] += round(pictures)
        spent[name] += seconds
        say(f"turn {turn}, {name}: {pictures / seconds:.2f} pictures/s ({round(pictures)} in {seconds:.1f} s)")

    with Nodes(1, pinned=True) as cluster:
        for turn in range(1, turns + 1):
            for nodes in (1, 2):
                if nodes == 2:
                    cluster.add()
                name = "1 node" if nodes == 1 else "2 nodes"
                output = given.work / f"nodes-{nodes}-turn-{turn}"
                add(name, turn, *on_nodes(given, cluster, folder, output, count, f"turn {turn}, {name}"))
            cluster.remove(cluster.nodes[-1])
            cluster.settle()
            for processes in (1, 2):
                name = "1 process" if processes == 1 else "2 processes"
                outputs = [given.work / f"processes-{processes}-turn-{turn}-{part}" for part in range(processes)]
                add(name, turn, *in_processes(given, folder, outputs, cores, f"turn {turn}, {name}"))
    each = {name: total[name] / spent[name] for name in spent}
    say("; ".join(f"{name} {value:.2f} pictures/s" for name, value in each.items()))
    machine, ratio = each["2 processes"] / each["1 process"], each["2 nodes"] / each["1 node"]
    say(f"the machine itself: two processes against one: {machine:.2f}x")
    say(f"one node of Ray against one process without it: {each['1 node'] / each['1 process']:.2f}x")
    say(f"two nodes against one: {ratio:.2f}x (goal {GOAL}: {'reached' if ratio >= GOAL else 'missed'})")
    return True


def on_nodes(given: Settings, cluster: Nodes, folder: Path, output: Path, count: int, name: str) -> tuple[int, float]:
    watch = Watch(name, output, shards_of(given, count))
    with driver(given, folder, output, "--ray", cluster.address) as process:
        watch.until(process, lambda: all(captioning(node) for node in cluster.nodes), pause=0.02)
        began = time.time()
        watch.to_end(process)
        check(process, output, 0)
    ends = sorted((end, watch.rows[number]) for number, end in watch.ends.items())
    ends = ends[: len(ends) - (len(cluster.nodes) - 1)]  # afterwards one of two has nothing to do
    pictures, seconds = rate([end for end in ends if end[0] >= began], name)
    if pictures < count / 2:
        say(f"warning: {name}: a node began late, only {pictures} of {count} pictures count; take more --pictures")
    return pictures, seconds


def in_processes(
    given: Settings, folder: Path, outputs: Sequence[Path], cores: Sequence[int], name: str
) -> tuple[float, float]:
    """All pictures by each of them, without Ray; counted while all are at work."""
    with contextlib.ExitStack() as stack:
        running = []
        for part, output in enumerate(outputs):
            with on_core(cores[part % len(cores)]):
                running.append(stack.enter_context(driver(given, folder, output, "--workers", "1")))
        for process, output in zip(running, outputs, strict=True):
            check(process, output, 0)
    return together(outputs, name)


def together(outputs: Sequence[Path], name: str) -> tuple[float, float]:
    """Pictures and seconds while all of these outputs were being written; the sum of their rates."""
    ends = []
    for output in outputs:
        watch = Watch(name, output, 0)
        watch.look()
        ends.append(sorted((end, watch.rows[number]) for number, end in watch.ends.items()))
    first, last = max(each[0][0] for each in ends), min(each[-1][0] for each in ends)
    rates = [rate([end for end in each if first <= end[0] <= last], name) for each in ends]
    return sum(pictures / seconds for pictures, seconds in rates) * (last - first), last - first


# Part 2: failures


def spoil(paths: Sequence[Path]) -> set[str]:
    """Make some of the pictures unusable; returns which."""
    spoiled = set()
    for number, path in enumerate(paths):
        if number % 97 == 5:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # cut short
        elif number % 97 == 50:
            path.write_text("this is no picture\n")
        else:
            continue
        spoiled.add(str(path))
    return spoiled


def failures(given: Settings) -> bool:
    folder, plain, output = (given.work / name for name in ("pictures", "undisturbed", "disturbed"))
    paths = make_pictures(given, folder)
    broken = spoil(paths)
    shards = shards_of(given, len(paths))
    say(f"{len(paths)} pictures in {shards} shards, {len(broken)} of them broken")
    watch = Watch("disturbed", output, shards)
    with Nodes(2) as cluster:
        began = time.monotonic()
        with driver(given, folder, plain, "--workers", "2") as process:
            Watch("undisturbed, without Ray", plain, shards).to_end(process)
            check(process, plain, SOME_BAD)
        say(f"undisturbed, without Ray: {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        with driver(given, folder, output, "--ray", cluster.address) as process:
            disturb(watch, cluster, process)
            kept = watch.look()
            process.kill()
            process.wait()
        say(f"{kept} shards done: driver {process.pid} killed; the same command again")
        with driver(given, folder, output, "--ray", cluster.address) as process:
            watch.to_end(process)
            check(process, output, SOME_BAD)
        say(f"disturbed: {time.monotonic() - began:.0f} s")
    for line in log(output).read_text(errors="replace").splitlines():
        if "worker was lost" in line or "already done before" in line:
            say(f"  the command said: {line}")
    good = compare(plain, output, sorted(map(str, paths)), broken)
    say(
        f"finished shards done twice: {len(watch.again)} (must be 0){f': {sorted(watch.again)}' if watch.again else ''}"
    )
    return good and not watch.again


def disturb(watch: Watch, cluster: Nodes, process: subprocess.Popen[bytes]) -> None:
    """Everything but the end of the driver, from a tenth to half of the work."""
    head, second = cluster.nodes

    def reached(share: float, *nodes: Any) -> None:
        watch.until(process, lambda: watch.look() >= share * watch.shards and all(map(captioning, nodes)))

    reached(0.1, head, second)
    (worker,) = captioning(head)[:1]
    os.kill(worker, signal.SIGKILL)
    say(f"{watch.look()} shards done: worker {worker} killed")
    reached(0.2, head, second)
    (worker,) = captioning(second)[:1]
    cluster.remove(second)
    say(f"{watch.look()} shards done: node 2 removed with worker {worker}")
    reached(0.3, head)
    third = cluster.add()
    say(f"{watch.look()} shards done: a node added")
    reached(0.5, head, third)
    say(f"{watch.look()} shards done: the new node is at work")


def compare(plain: Path, output: Path, paths: Sequence[str], broken: set[str]) -> bool:
    from pyarrow import parquet

    def read(folder: Path) -> list[dict[str, Any]]:
        parts = sorted(folder.glob("part-*.parquet"))
        return [row for part in parts for row in parquet.read_table(part).to_pylist()]

    wanted, found = read(plain), read(output)
    times = Counter(row["image"] for row in found)
    missing, twice = sum(not times[path] for path in paths), sum(count - 1 for count in times.values())
    foreign = sum(image not in set(paths) for image in times)
    say(f"rows: {len(found)} of {len(paths)} pictures; missing {missing}, duplicates {twice}, others {foreign}")
    equal = sum(a == b for a, b in zip(wanted, found, strict=False))
    in_order = [row["image"] for row in found] == list(paths) == [row["image"] for row in wanted]
    say(
        f"rows equal to those of the undisturbed run, numbers bit by bit: {equal} of {len(wanted)}; "
        f"same order: {in_order}"
    )
    captions = sum(a["caption"] == b["caption"] for a, b in zip(wanted, found, strict=False))
    scores = [
        abs(a["score"] - b["score"])
        for a, b in zip(wanted, found, strict=False)
        if a["score"] is not None and b["score"] is not None
    ]
    say(f"equal captions: {captions}; largest difference of a score: {max(scores, default=0.0):.3g}")
    files = [(part, output / part.name) for part in sorted(plain.glob("part-*.parquet"))]
    same = sum(b.is_file() and a.read_bytes() == b.read_bytes() for a, b in files)
    say(f"files equal byte by byte: {same} of {len(files)}")
    errors = {row["image"] for row in found if row["error"] is not None}
    say(
        f"broken pictures that are rows with an error: {len(errors & broken)} of {len(broken)}; "
        f"others: {len(errors - broken)}"
    )
    whole = len(found) == len(wanted) == len(paths) and not missing + twice + foreign
    return whole and equal == len(wanted) and in_order and errors == broken


# Part 3: memory


def memory(given: Settings, few: int, many: int, flat: bool) -> bool:
    shared = drawn(0, (16, 16))
    folders = {count: given.work / f"pictures-{count}" for count in (few, many)}
    for count, folder in folders.items():
        say(f"{count} pictures: making {folder}")
        for number in range(count):
            path = folder / ("0" if flat else f"{number // PER_FOLDER:04d}") / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(shared)
    peaks: dict[tuple[str, int], float] = {}
    with Nodes(2) as cluster:
        for name, options in (("local engine", ["--workers", "2"]), ("Ray", ["--ray", cluster.address])):
            for count, folder in folders.items():
                output = given.work / f"{'ray' if name == 'Ray' else 'local'}-{count}"
                began = time.monotonic()
                peak = peak_of(given, folder, output, count, f"{name}, {count} inputs", *options)
                peaks[name, count] = peak
                say(f"{name}, {count} inputs: the driver's peak is {peak:.1f} MB ({time.monotonic() - began:.0f} s)")
    for name in ("local engine", "Ray"):
        small, large = peaks[name, few], peaks[name, many]
        per = 1e6 * (large - small) / max(1, many - few)
        say(f"{name}: {many} inputs against {few}: {large / small:.2f}x, {per:.0f} bytes per further input")
    return True


def peak_of(given: Settings, folder: Path, output: Path, count: int, name: str, *options: str) -> float:
    """Megabytes."""
    watch = Watch(name, output, shards_of(given, count))
    peak, looked = 0, time.monotonic()
    with driver(given, folder, output, *options) as process:
        while process.poll() is None:
            peak = max(peak, high_water(process.pid))
            if time.monotonic() - looked > 5:
                watch.look()
                looked = time.monotonic()
            time.sleep(0.01)
        check(process, output, 0)
    return peak / 1e3 * 1.024


def high_water(pid: int) -> int:
    """KiB; 0 when the process is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(DEFAULTS), default="speed")
    parser.add_argument("--pictures", type=int, help="600 for speed, 5000 for failures")
    parser.add_argument("--inputs", type=int, nargs=2, default=(1000, 20000), metavar=("FEW", "MANY"), help="of memory")
    parser.add_argument("--folder", type=Path, help="real photos (.jpg) instead of drawn ones; they are copied")
    parser.add_argument(
        "--model", help="directory; or 'tiny', the default of memory; else the model that comes with xlan"
    )
    parser.add_argument("--shard-size", type=int, help="16 for speed, 50 for failures, 100 for memory")
    parser.add_argument("--turns", type=int, default=3, help="of speed")
    parser.add_argument("--flat", action="store_true", help="of memory: all pictures in one folder")
    parser.add_argument(
        "--work", type=Path, help="new folder for all files; default: a temporary one, removed at the end"
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        if asked.work is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xlan-")))
        else:
            work = asked.work.absolute()
            if work.exists() and any(work.iterdir()):
                parser.error(f"--work: {work} is not empty")
            work.mkdir(parents=True, exist_ok=True)
        if len(str(work)) > MAX_WORK:
            parser.error(f"--work: {work} is longer than {MAX_WORK} characters; Ray's sockets could not be named")
        os.environ.update(RAY, RAY_TMPDIR=str(work))
        pictures, shard_size = DEFAULTS[asked.part]
        chosen = asked.model or ("tiny" if asked.part == "memory" else None)
        model = tiny_model(work / "tiny") if chosen == "tiny" else chosen and Path(chosen).absolute()
        given = Settings(work, model, asked.pictures or pictures, asked.shard_size or shard_size, asked.folder)
        if asked.part == "speed":
            good = speed(given, asked.turns)
        elif asked.part == "failures":
            good = failures(given)
        else:
            good = memory(given, *asked.inputs, asked.flat)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
