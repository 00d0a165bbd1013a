"""Import and loading: megabytes and images per second on a warm cache.

    python benchmarks/data_speed.py [--images 1500] [--repeats 3] [--folder DIR]

Made-up features of 36 to 64 regions × 2048 numbers, float32, half of them zero as after a ReLU. They are written as
`.npz` files, plain and compressed, and as a bottom-up TSV, read once so that the page cache is warm, and imported into
float16 stores. Speed is megabytes of source files per second, in wall-clock time and in processor time (threads
included); for compressed files the unpacked arrays are counted too. Every speed is the best of the repeats, since
whatever else a machine does only ever slows it down; the write to disk is flushed and counted.

The loader then reads the store (10 images × 5 captions a batch, as the paper trains), alone and with one worker;
train_speed.py compares it with a training step. Memory is the peak of the whole process.
"""

from __future__ import annotations

import argparse
import base64
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlan.data.dataset import CaptionDataset
from xlan.data.importers.run import import_features
from xlan.data.loader import training_loader
from xlan.data.records import CaptionedImage, CaptionSet
from xlan.text.vocab import Vocabulary
from xlan.vision.store import FeatureStore

WIDTH = 2048
IMPORT_TARGET = 200.0  # MB/s from .npz


def image_features(number: int) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(number)
    regions = int(random.integers(36, 65))
    values: npt.NDArray[np.float32] = np.maximum(random.standard_normal((regions, WIDTH), dtype=np.float32), 0)
    return values


def write_sources(folder: Path, images: int) -> dict[str, Path]:
    """The same features in three forms."""
    sources = {"npz": folder / "npz", "npz, compressed": folder / "packed", "tsv": folder / "features.tsv"}
    sources["npz"].mkdir()
    sources["npz, compressed"].mkdir()
    with sources["tsv"].open("wb") as tsv:
        for number in range(images):
            features = image_features(number)
            boxes = np.tile(np.array([[10, 10, 90, 90]], np.float32), (len(features), 1))
            np.savez(sources["npz"] / f"{number}.npz", feat=features)
            np.savez_compressed(sources["npz, compressed"] / f"{number}.npz", feat=features)
            code = b"\t".join(base64.b64encode(array.tobytes()) for array in (boxes, features))
            tsv.write(b"%d\t100\t100\t%d\t%s\n" % (number, len(features), code))
    return sources


def warm(path: Path) -> int:
    """Read everything once; its size in bytes."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return sum(len(file.read_bytes()) for file in files)


def best(work: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Least wall-clock and least processor seconds."""
    times = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(t[0] for t in times), min(t[1] for t in times)


def measure_imports(folder: Path, images: int, repeats: int) -> float:
    """Print the speed of each form; returns that of plain .npz in MB/s."""
    sources = write_sources(folder, images)
    arrays = sum(image_features(number).nbytes for number in range(images)) / 1e6
    result = 0.0
    print(f"\nimport, {images} images, {arrays:.0f} MB of arrays")
    for name, source in sources.items():
        size = warm(source) / 1e6

        def work(source: Path = source) -> None:
            shutil.rmtree(folder / "store", ignore_errors=True)
            import_features(source, folder / "store")

        wall, cpu = best(work, repeats)
        result = result or size / wall
        unpacked = f", {arrays / wall:6.0f} MB/s unpacked" if "compressed" in name else ""
        print(f"  {name:<16} {size / wall:6.0f} MB/s of files{unpacked}  ({size / cpu:.0f} MB per processor second)")
    return result


def captions_of(images: int) -> CaptionSet:
    random = np.random.default_rng(0)
    records = []
    for number in range(images):
        words = tuple(tuple(f"w{i}" for i in random.integers(0, 9000, random.integers(8, 17))) for _ in range(5))
        records.append(CaptionedImage(str(number), "train", "", tuple(" ".join(w) for w in words), words))
    return CaptionSet(tuple(records), "made up", "table")


def measure_loader(store: Path, images: int, repeats: int) -> None:
    """Print the speed of the loader."""
    vocab = Vocabulary.from_words(f"w{i}" for i in range(9000))
    dataset = CaptionDataset(captions_of(images), FeatureStore(store), vocab, split="train")
    print(f"\nloader, batches of 10 images × 5 captions from {images} images")
    for workers in (0, 1):
        loader = training_loader(dataset, batch_size=10, captions_per_image=5, num_workers=workers)

        def work(loader: object = loader) -> None:
            for _ in loader:  # type: ignore[attr-defined]
                pass

        work()
        wall, _ = best(work, repeats)
        print(f"  {workers} workers         {images / wall:6.0f} images/s, {5 * images / wall:6.0f} captions/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to put some gigabytes for a while")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        speed = measure_imports(folder, options.images, options.repeats)
        measure_loader(folder / "store", options.images, options.repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory {peak:.0f} MB")
    print(f"import from npz {speed:.0f} MB/s, wanted {IMPORT_TARGET:.0f}")


if __name__ == "__main__":
    main()
