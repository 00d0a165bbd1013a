"""A server under load: 32 clients on this machine, pictures in batches against pictures one by one.

    python benchmarks/serve_load.py                  the model that comes with xlan
    python benchmarks/serve_load.py --model DIR      another one

Two servers run, the same program with the same options except `--max-batch` (16 and 1). The load goes to one and then
to the other, in turns within the same run, so that a machine that changes its speed treats both alike; who has no load
sleeps. Clients send the next picture as soon as they have an answer, over connections that stay open: one small process
of plain sockets, since what it takes from the processor is missing to the server. The first seconds of every turn do
not count: everybody arrives at once then.

A batch is shared by the cores picture by picture; a picture alone has one core. The ratio is that of both together:
cheaper products in batches, and no core without work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caption_speed import make_photos
from xlan.pretrained import SHIPPED

RATIO = 3.0  # what we want to stay above
TURNS = 4  # of each server
LEAD = 2.0  # seconds at the start of a turn that do not count


@dataclass
class Tally:
    """What happened to the requests to one server."""

    name: str
    port: int
    process: subprocess.Popen[str]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)  # MB, once a second while it has load
    processor: float = 0.0  # seconds of processor time
    others: Counter[str] = field(default_factory=Counter)  # statuses of further clients beside them

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies) or [float("nan")]
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def throughput(self) -> float:
        return self.statuses["200"] / self.seconds

    def line(self) -> str:
        errors = {status: count for status, count in sorted(self.statuses.items()) if status != "200"}
        effort = 1000 * self.processor / max(1, self.statuses["200"])
        thirds = [self.memory[int(i * (len(self.memory) - 1) / 3)] for i in range(4)] if self.memory else []
        return (
            f"  {self.name:<12}{self.throughput:6.1f} captions/s   p50 {self.percentile(0.5):6.0f}   "
            f"p95 {self.percentile(0.95):6.0f}   p99 {self.percentile(0.99):6.0f} ms   "
            f"{self.statuses['200']} answers, errors {errors or 'none'}   {effort:.0f} ms of processor each   "
            f"memory {' → '.join(f'{value:.0f}' for value in thirds)} MB"
        )


@contextlib.contextmanager
def server(name: str, model: Path, *options: str) -> Iterator[Tally]:
    command = [sys.executable, "-m", "xlan", "serve", "--quiet", "--model", str(model), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        yield Tally(name, int(line.rpartition(":")[2]), process)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def request_of(photo: bytes, options: Mapping[str, str | Sequence[str]] | None = None) -> bytes:
    """A whole multipart request, ready to send."""
    head = "--load\r\nContent-Disposition: form-data; name="
    fields = [(name, [value] if isinstance(value, str) else value) for name, value in (options or {}).items()]
    lines = "".join(f'{head}"{name}"\r\n\r\n{value}\r\n' for name, values in fields for value in values)
    body = f'{lines}{head}"image"; filename="a.jpg"\r\n\r\n'.encode() + photo + b"\r\n--load--\r\n"
    header = (
        "POST /v1/captions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: multipart/form-data; boundary=load\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return header.encode() + body


async def client(tally: Tally, requests: Sequence[bytes], number: int, begin: float, end: float) -> None:
    """Ask until `end`; answers count when they arrive between `begin` and `end`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", tally.port)
    turn = number
    while (asked := time.perf_counter()) < end:
        writer.write(requests[turn % len(requests)])
        turn += 1
        try:
            status, _ = await read_head(reader)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            status = type(error).__name__
        now = time.perf_counter()
        if begin <= now <= end:
            tally.statuses[status] += 1
            if status == "200":
                tally.latencies.append(now - asked)
        if not status.isdecimal():
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", tally.port)
        elif status == "503":
            await asyncio.sleep(0.1)
    writer.close()
    await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Status and headers of an answer; its body is read and left aside."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    await reader.readexactly(int(headers["content-length"]))
    return first.split()[1], headers


async def watch(tally: Tally, begin: float, end: float) -> None:
    """The server's memory once a second, and the processor time it takes."""
    await asyncio.sleep(begin - time.perf_counter())
    before = processor_seconds(tally.process.pid)
    while time.perf_counter() < end:
        tally.memory.append(int(proc(tally.process.pid, "status").split("VmRSS:")[1].split()[0]) / 1024)
        await asyncio.sleep(min(1.0, max(0.0, end - time.perf_counter())))
    tally.processor += processor_seconds(tally.process.pid) - before


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def processor_seconds(pid: int) -> float:
    user, system = proc(pid, "stat").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def load(tally: Tally, requests: Sequence[bytes], *, clients: int, seconds: float) -> None:
    """One turn."""
    begin = time.perf_counter() + LEAD
    end = begin + seconds
    tasks = [client(tally, requests, number, begin, end) for number in range(clients)]
    await asyncio.gather(watch(tally, begin, end), *tasks)
    tally.seconds += seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a server under load, with and without batches.")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="model directory; without it, that of the package")
    parser.add_argument("--seconds", type=float, default=60, help="of load for each of the two servers")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--max-batch", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        photos = [path.read_bytes() for path in make_photos(Path(name) / "photos", 8)]
        requests = [request_of(photo) for photo in photos]
        model = arguments.model
        print(f"{arguments.clients} clients, {arguments.seconds:g} s each, {os.cpu_count()} cores, {model.name}")
        with (
            server("in batches", model, "--max-batch", str(arguments.max_batch)) as batched,
            server("one by one", model, "--max-batch", "1") as single,
        ):
            both = (batched, single)
            for _ in range(TURNS):
                for tally in both:
                    asyncio.run(load(tally, requests, clients=arguments.clients, seconds=arguments.seconds / TURNS))
            for tally in both:
                print(tally.line())
            ratio = batched.throughput / max(single.throughput, 1e-9)
            print(f"  in batches / one by one: {ratio:.2f} (at least {RATIO:g}: {'yes' if ratio >= RATIO else 'NO'})")


if __name__ == "__main__":
    main()
