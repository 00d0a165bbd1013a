"""The engines side by side: load, one photo, a folder, and what the captions cost in bits.

    python benchmarks/engines.py                        the model that comes with xlan
    python benchmarks/engines.py --model DIR --photos 100 --rounds 7
    python benchmarks/engines.py --words xtransformer   decoding alone, a published size with random weights

Every engine takes its turn in every round, so that what else the computer does meets all of them alike; medians and, in
brackets, the ratio to torch in float32. Loading happens in a process of its own, imports included. int8 is the onnx
engine's, made at load from the same directory.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from caption_speed import make_photos
from xlan import Captioner
from xlan.pretrained import SHIPPED

LOAD = """
import sys, time
began = time.perf_counter()
from xlan import Captioner
captioner = Captioner.from_pretrained(sys.argv[1], engine=sys.argv[2], precision=sys.argv[3])
loaded = time.perf_counter()
captioner.caption(sys.argv[4])
captioned = time.perf_counter()
with open("/proc/self/status") as file:  # what getrusage says starts with the memory of the parent
    peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
print(loaded - began, captioned - began, peak / 1024)
"""


@dataclass(frozen=True)
class Way:
    """One engine in one precision."""

    engine: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.engine} {self.precision}"


WAYS = [Way("torch", "float32"), Way("torch", "bf16"), Way("onnx", "float32"), Way("onnx", "int8")]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(work: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Medians of several rounds in which each takes its turn; the first round does not count."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + 1):
        for name, one in work.items():
            value = one()
            if turn:
                taken[name].append(value)
    return {name: median(values) for name, values in taken.items()}


def show(title: str, found: dict[str, float], unit: float, what: str) -> None:
    base = next(iter(found.values()))
    print(title)
    for name, value in found.items():
        print(f"  {name:<15} {value * unit:8.1f} {what}  (×{base / value:.2f})")


def measure_pictures(model: Path, *, photos: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = make_photos(Path(name) / "photos", photos)

        def start(way: Way) -> list[float]:
            command = [sys.executable, "-c", LOAD, str(model), way.engine, way.precision, str(paths[0])]
            output = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
            return [float(part) for part in output.split()]

        starts: dict[str, list[list[float]]] = {way.name: [] for way in WAYS}
        for turn in range(min(rounds, 3) + 1):
            for way in WAYS:
                values = start(way)
                if turn:
                    starts[way.name].append(values)
        for place, title in enumerate(("imports and load", "until the first caption")):
            show(title, {key: median(v[place] for v in values) for key, values in starts.items()}, 1000, "ms")
        print("peak memory of that process")
        for key, values in starts.items():
            print(f"  {key:<15} {median(v[2] for v in values):8.0f} MB")

        captioners = {w.name: Captioner.from_pretrained(model, engine=w.engine, precision=w.precision) for w in WAYS}

        def photo(captioner: Captioner) -> Callable[[], float]:
            return lambda: seconds(lambda: captioner.caption(paths[0]))

        show("one photo", interleaved({k: photo(c) for k, c in captioners.items()}, 3 * rounds), 1000, "ms")

        def folder(captioner: Captioner) -> Callable[[], float]:
            pairs = [(path.name, path) for path in paths]
            return lambda: seconds(lambda: list(captioner.caption_many(pairs)))

        show(f"a folder of {photos}", interleaved({k: folder(c) for k, c in captioners.items()}, rounds), 1, "s")
        texts = {k: [str(getattr(c.caption(p), "text", "")) for p in paths[:8]] for k, c in captioners.items()}
        first = next(iter(texts.values()))
        same = ", ".join(f"{k} {sum(a == b for a, b in zip(first, t, strict=True))}" for k, t in texts.items())
        print(f"captions of {len(first)} photos equal to the first engine's: {same}")


def measure_words(name: str, *, images: int, regions: int, rounds: int) -> None:
    """Beam search alone, with a model of a published size and random weights: what matters is how much is read."""
    import numpy as np
    import torch

    from xlan import Regions, Vocabulary, build_model, save_pretrained
    from xlan.engines.load import load
    from xlan.options import CaptionOptions
    from xlan.wording import request_of

    torch.manual_seed(0)
    model = build_model(name)
    vocabulary = Vocabulary.from_words([f"word{i}" for i in range(model.vocab_size - 4)])
    random = np.random.default_rng(0)
    shown = [
        Regions(random.normal(size=(regions, model.feature_dim)).astype(np.float32), np.zeros((regions, 4), np.float32))
        for _ in range(images)
    ]
    request = request_of(CaptionOptions(beams=3, max_length=17), vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(Path(folder) / "model", model.spec, model.state_dict(), vocabulary)
        engines = {
            way.name: load(Path(folder) / "model", engine=way.engine, precision=way.precision).engine  # type: ignore[arg-type]
            for way in WAYS
        }

        def decode(key: str) -> Callable[[], float]:
            return lambda: seconds(lambda: engines[key].decode(shown, request))

        found = interleaved({key: decode(key) for key in engines}, rounds)
        show(f"{name}, beam 3, {images} images of {regions} regions, 17 steps", found, 1, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the engines in one run.")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="model directory; without it, that of the package")
    parser.add_argument("--photos", type=int, default=48, help="photos in the folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--words", metavar="NAME", help="only decode, with a model of this name and random weights")
    parser.add_argument("--images", type=int, default=50, help="of --words")
    parser.add_argument("--regions", type=int, default=50, help="of --words")
    arguments = parser.parse_args()
    if arguments.words:
        measure_words(arguments.words, images=arguments.images, regions=arguments.regions, rounds=arguments.rounds)
    else:
        measure_pictures(arguments.model, photos=arguments.photos, rounds=arguments.rounds)
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
