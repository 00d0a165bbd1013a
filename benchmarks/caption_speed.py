"""How fast photographs become sentences: model load, one photo split by stage, a folder of them, and memory.

    python benchmarks/caption_speed.py                  the model that comes with xlan
    python benchmarks/caption_speed.py --model DIR      another one

The photos are made here: 640×480 JPEGs as large as photographs of that size are (about 90 KB).

    decode    file → RGB → 224×224 (in threads when there are many)
    vision    pixels → regions
    encoder   regions → encoded
    beam      encoded → word ids
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from PIL import Image

from xlan import Captioner, CaptionOptions
from xlan.engines.torch_engine import TorchEngine
from xlan.pretrained import SHIPPED
from xlan.threads import leave_a_core
from xlan.wording import request_of

STAGES = ("decode", "vision", "encoder", "beam")
LOAD_SECONDS, PHOTO_SECONDS, PHOTOS_PER_SECOND = 2.0, 0.5, 8.0  # what we want to stay below, below and above
T = TypeVar("T")


def make_photos(folder: Path, count: int) -> list[Path]:
    """Clouds of colour with some grain; a few different ones, under as many names as asked for."""
    folder.mkdir()
    random = np.random.default_rng(0)
    data = []
    for _ in range(min(count, 8)):
        clouds = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((640, 480), 3)
        grain = random.normal(0, 12, (480, 640, 1))
        pixels = np.clip(np.asarray(clouds) + grain, 0, 255).astype(np.uint8)
        path = folder / "made.jpg"
        Image.fromarray(pixels).save(path, quality=85)
        data.append(path.read_bytes())
        path.unlink()
    paths = [folder / f"{i:05}.jpg" for i in range(count)]
    for i, path in enumerate(paths):
        path.write_bytes(data[i % len(data)])
    return paths


class Clock:
    """Adds up seconds by stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def __call__(self, stage: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = work()
        self.seconds[stage] += time.perf_counter() - began
        return result


def split(captioner: Captioner, photos: Sequence[Path], options: CaptionOptions) -> dict[str, float]:
    """Seconds by stage for one batch, everything in one thread after another."""
    clock, extractor, engine = Clock(), captioner.extractor, captioner.engine
    assert extractor is not None
    assert isinstance(engine, TorchEngine)
    with torch.inference_mode():
        prepared = clock("decode", lambda: [captioner.prepare(photo) for photo in photos])
        regions = clock("vision", lambda: extractor.extract(prepared))
        inputs = engine._inputs(regions)
        encoded = clock("encoder", lambda: engine.model.encode(*inputs))
        clock("beam", lambda: engine._search(encoded, request_of(options, captioner.vocabulary)))
    return clock.seconds


def splits(captioner: Captioner, photos: Sequence[Path], options: CaptionOptions, *, batch: int, runs: int) -> str:
    found = [split(captioner, photos[:batch], options) for _ in range(runs + 1)][1:]
    times = {stage: 1000 * median(run[stage] for run in found) / batch for stage in STAGES}
    parts = "   ".join(f"{stage} {value:5.1f}" for stage, value in times.items())
    return f"{parts}   = {sum(times.values()):6.1f} ms"


def memory() -> float:
    """Peak of this process in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def folder_speed(
    captioner: Captioner, photos: Sequence[Path], options: CaptionOptions, batch: int
) -> tuple[float, ...]:
    """Photos per second, and peak memory after a quarter and at the end."""
    named: Iterator[tuple[str, Path]] = ((path.name, path) for path in photos)
    early, began = 0.0, time.perf_counter()
    for i, (_, result) in enumerate(captioner.caption_many(named, options, batch_size=batch)):
        assert not isinstance(result, Exception), result
        if i == len(photos) // 4:
            early = memory()
    return len(photos) / (time.perf_counter() - began), early, memory()


def verdict(good: bool, wanted: str) -> str:
    return f"({wanted}: {'yes' if good else 'NO'})"


def measure(directory: Path, photos: Sequence[Path], *, batch: int, runs: int) -> None:
    options = CaptionOptions()
    loads = []
    for _ in range(3):
        began = time.perf_counter()
        captioner = Captioner.from_pretrained(directory, engine="torch")
        loads.append(time.perf_counter() - began)
    megabytes = sum(file.stat().st_size for file in directory.iterdir()) / 1e6
    print(f"  model load   {loads[0]:.2f} s first, {median(loads):.2f} s median, {megabytes:.0f} MB on disk", end=" ")
    print(verdict(loads[0] < LOAD_SECONDS, f"below {LOAD_SECONDS} s"))
    times = []
    for photo in list(photos[: runs + 1]):
        began = time.perf_counter()
        captioner.caption(photo, options)
        times.append(time.perf_counter() - began)
    print(f"  one photo    {1000 * median(times[1:]):.0f} ms median, {1000 * times[0]:.0f} ms the first", end=" ")
    print(verdict(median(times[1:]) < PHOTO_SECONDS, f"below {PHOTO_SECONDS} s"))
    print(f"    alone      {splits(captioner, photos, options, batch=1, runs=runs)}")
    print(f"    by {batch:<8}{splits(captioner, photos, options, batch=batch, runs=max(1, runs // 4))} per photo")
    speed, early, late = folder_speed(captioner, photos, options, batch)
    print(f"  a folder     {speed:.1f} photos/s over {len(photos)} photos", end=" ")
    print(verdict(speed >= PHOTOS_PER_SECOND, f"at least {PHOTOS_PER_SECOND:.0f}"))
    print(f"  memory       peak {early:.0f} MB after a quarter of the folder, {late:.0f} MB at its end")


def command_seconds(directory: Path, photo: Path) -> float:
    """The whole command for one photo: Python, imports, model, caption."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "xlan", "caption", "--model", str(directory), str(photo)]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure captioning, from files to sentences.")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="model directory; without it, that of the package")
    parser.add_argument("--photos", type=int, default=200, help="photos in the folder")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=8, help="repetitions of the one-photo measurements")
    parser.add_argument("--threads", type=int, help="threads of torch; as many as the command takes without it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads or leave_a_core())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.photos} photos of 640×480")
    with tempfile.TemporaryDirectory() as name:
        photos = make_photos(Path(name) / "photos", arguments.photos)
        measure(arguments.model, photos, batch=arguments.batch, runs=arguments.runs)
        print(f"  the command  {command_seconds(arguments.model, photos[0]):.1f} s for one photo, imports included")


if __name__ == "__main__":
    main()
