"""Ordinary clients beside costly ones: do requests with costly options hold up the others?

    python benchmarks/serve_fairness.py                  the model that comes with xlan
    python benchmarks/serve_fairness.py --model DIR      another one

One server, 32 ordinary clients (one photo, default options) that each send the next picture as soon as they have an
answer. In turns within the same run they are alone, and beside 10 clients that send the costliest requests the server
takes: 10 beams, 50 words, as many required words as `--max-cost` allows. Costly clients that get 503 come back after
the seconds it names. The figure is the ordinary clients' 95th percentile beside the costly ones over that alone; no
ordinary request may get 504.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from caption_speed import make_photos
from serve_load import LEAD, Tally, client, read_head, request_of, server
from xlan import Captioner, CaptionOptions
from xlan.pretrained import SHIPPED

RATIO = 3.0  # what we want to stay below
TURNS = 3  # of each kind
WORDS = ("dog", "man", "street", "table", "grass", "car", "tree")


async def costly_client(port: int, request: bytes, statuses: Counter[str], end: float) -> None:
    """Send costly requests, one after the other, until `end`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while time.perf_counter() < end:
            writer.write(request)
            status, headers = await read_head(reader)
            statuses[status] += 1
            if status == "503":
                await asyncio.sleep(min(float(headers.get("retry-after", "1")), max(0.0, end - time.perf_counter())))
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        statuses[type(error).__name__] += 1
    finally:
        writer.close()


async def until_idle(port: int, request: bytes) -> None:
    """Wait for costly work that was left behind: such requests are answered one after the other."""
    statuses: Counter[str] = Counter()
    while not statuses["200"]:
        await costly_client(port, request, statuses, time.perf_counter() + 0.001)


async def turn(tally: Tally, requests: Sequence[bytes], *, clients: int, seconds: float, costly: list[bytes]) -> None:
    """Ordinary load for `seconds`, with one costly client for each request of `costly`."""
    begin = time.perf_counter() + LEAD
    end = begin + seconds
    beside = [asyncio.create_task(costly_client(tally.port, request, tally.others, end)) for request in costly]
    await asyncio.gather(*(client(tally, requests, number, begin, end) for number in range(clients)))
    await asyncio.gather(*beside)
    if costly:
        await until_idle(tally.port, costly[0])
    tally.seconds += seconds


def costliest(model: Path, limit: int) -> tuple[dict[str, str | list[str]], int]:
    """Options as costly as the limit allows, and their cost."""
    captioner = Captioner.from_pretrained(model)
    known = [word for word in WORDS if word in captioner.vocabulary]
    for count in range(len(known), -1, -1):
        options = CaptionOptions(beams=10, max_length=50, must=tuple(known[:count]))
        if captioner.cost(options) <= limit:
            return {"beams": "10", "max_length": "50", "must": known[:count]}, captioner.cost(options)
    raise SystemExit(f"the model knows none of {', '.join(WORDS)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure ordinary clients alone and beside costly ones.")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="model directory; without it, that of the package")
    parser.add_argument("--seconds", type=float, default=60, help="of load, alone and beside the costly ones each")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--costly", type=int, default=10, help="clients that send costly requests")
    parser.add_argument("--max-cost", type=int, default=20_000)
    arguments = parser.parse_args()
    options, cost = costliest(arguments.model, arguments.max_cost)
    print(f"{arguments.clients} ordinary clients, {arguments.costly} of {cost:,} steps each, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        photos = [path.read_bytes() for path in make_photos(Path(name) / "photos", 8)]
    requests = [request_of(photo) for photo in photos]
    costly = [request_of(photos[i % len(photos)], options) for i in range(arguments.costly)]
    with server("alone", arguments.model, "--max-cost", str(arguments.max_cost)) as alone:
        beside = Tally("beside costly", alone.port, alone.process)
        for _ in range(TURNS):
            for tally, company in ((alone, []), (beside, costly)):
                seconds = arguments.seconds / TURNS
                asyncio.run(turn(tally, requests, clients=arguments.clients, seconds=seconds, costly=company))
    for tally in (alone, beside):
        print(
            f"  {tally.name:<14}{tally.throughput:6.1f} captions/s   p50 {tally.percentile(0.5):6.0f}   "
            f"p95 {tally.percentile(0.95):6.0f} ms   {dict(sorted(tally.statuses.items()))}"
        )
    print(f"  costly requests: {dict(sorted(beside.others.items()))}")
    ratio = beside.percentile(0.95) / alone.percentile(0.95)
    good = ratio < RATIO and not beside.statuses["504"]
    wanted = f"below {RATIO:g}, and no ordinary request with 504"
    print(f"  p95 beside / alone: {ratio:.2f} ({wanted}: {'yes' if good else 'NO'})")


if __name__ == "__main__":
    main()
