"""How large and how fast an index of many photos is: size, time to build beyond extraction, seconds per query, updates.

    python benchmarks/search_scale.py                         5,000 entries
    python benchmarks/search_scale.py --entries 100000        4 to 6 GB in --work

Photos are made here. Some hundred are described for real, from features with noise; that is what a photo costs beyond
extraction. The others repeat these records with noise in every number, so that nothing is the same twice: what they
cost on disk and in a search does not depend on what they show. Updates are timed on a real folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from xlan import Captioner
from xlan.search import PhotoSearch
from xlan.search.index import LARGEST_SHARD, Index
from xlan.search.library import identity_of
from xlan.search.rank import Ranker
from xlan.search.shards import Record, Stamp
from xlan.search.update import Describer
from xlan.search.words import read_query
from xlan.threads import leave_a_core
from xlan.types import Regions
from xlan.vision.regions import extract_regions

SENTENCES = (
    "a dog on the beach",
    "a man riding a wave on a surfboard",
    "two people sitting at a table with plates of food",
    "a red bus on a city street",
    "a cat sleeping on a bed",
)
NOISE_BYTES = 8  # how far a number of an encoding moves, of 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--described", type=int, default=128, help="how many are described for real")
    parser.add_argument("--files", type=int, default=64, help="photos of the folder whose updates are timed")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--work", type=Path, help="where the index goes; default: a temporary folder")
    options = parser.parse_args()
    captioner = Captioner.from_pretrained(options.model, threads=leave_a_core())
    with tempfile.TemporaryDirectory() as temporary:
        index = _build(options, captioner, options.work or Path(temporary) / "index")
        _time_queries(index, captioner)
        _time_updates(captioner, Path(temporary), options.files)


def _photo(random: np.random.Generator) -> Image.Image:
    return Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((640, 480), 3)


def _build(options: argparse.Namespace, captioner: Captioner, place: Path) -> Index:
    random = np.random.default_rng(0)
    assert captioner.extractor is not None
    seeds = extract_regions(captioner.extractor, [_photo(random) for _ in range(16)])
    describe = Describer(captioner)
    records: list[Record] = []
    began = time.perf_counter()
    while len(records) < options.described:
        noisy = [_noisy(one, random) for one in seeds]
        named = [(b"%06d.jpg" % (len(records) + i), Stamp(0, 0, 0), one) for i, one in enumerate(noisy)]
        records += [record for _, record in describe(named) if isinstance(record, Record)]
    each = (time.perf_counter() - began) / len(records)
    print(f"described beyond extraction: {1000 * each:.1f} ms a photo ({len(records)} photos)")
    index = Index(place, identity_of(captioner), Path("/nowhere"))
    writing = 0.0
    with index.writing():
        for start in range(0, options.entries, LARGEST_SHARD):
            names = range(start, min(options.entries, start + LARGEST_SHARD))
            some = [_repeated(records[number % len(records)], number, random) for number in names]
            began = time.perf_counter()
            index.add(some, describe.arrays)
            writing += time.perf_counter() - began
    print(
        f"index of {len(index):,} photos: {index.size / 1e9:.2f} GB, {index.size / len(index) / 1e3:.1f} KB a photo; "
        f"written in {1e6 * writing / len(index):.0f} µs a photo"
    )
    return index


def _noisy(regions: Regions, random: np.random.Generator) -> Regions:
    noise = random.normal(0, 0.05, regions.features.shape) * float(regions.features.std())
    return replace(regions, features=np.maximum(regions.features + noise, 0).astype(np.float32))


def _repeated(record: Record, number: int, random: np.random.Generator) -> Record:
    """The record with noise in the codes of its arrays; shapes and scales, which come first, stay."""
    encoding = record.encoding.copy()
    codes = encoding[len(encoding) // 4 :]
    moved = codes.astype(np.int16) + random.integers(-NOISE_BYTES, NOISE_BYTES + 1, len(codes), dtype=np.int16)
    codes[:] = np.clip(moved, 0, 255)
    return replace(record, name=b"%08d.jpg" % number, encoding=encoding)


def _time_queries(index: Index, captioner: Captioner) -> None:
    began = time.perf_counter()
    again = Index.read(index.path, index.identity, index.folder)
    ranker = Ranker(again, captioner)
    print(f"opened in {time.perf_counter() - began:.2f} s")
    firsts, wholes = [], []
    for sentence in SENTENCES * 2:
        query = read_query(sentence, captioner.vocabulary)
        began = time.perf_counter()
        ranker.first(query)
        firsts.append(time.perf_counter() - began)
        began = time.perf_counter()
        ranker.rank(query, count=10)
        wholes.append(time.perf_counter() - began)
    print(f"a query: {np.median(wholes):.2f} s (first stage {np.median(firsts):.2f} s), slowest {max(wholes):.2f} s")


def _time_updates(captioner: Captioner, folder: Path, files: int) -> None:
    random = np.random.default_rng(1)
    (folder / "photos").mkdir()

    def write(first: int, last: int) -> None:
        for number in range(first, last):
            _photo(random).save(folder / "photos" / f"{number}.jpg")

    write(0, files)
    photos = PhotoSearch(folder / "photos", captioner, place=folder / "small")
    for changed in (files, 0, 1, files // 4):
        if changed != files:
            write(0, changed)
            for number in range(changed):
                os.utime(folder / "photos" / f"{number}.jpg", ns=(number, time.time_ns()))
        began = time.perf_counter()
        done = photos.update()
        print(
            f"update of a folder of {files}, {changed} changed: {time.perf_counter() - began:.2f} s "
            f"({done.added} new, {done.changed} changed, {done.kept} kept)"
        )


if __name__ == "__main__":
    main()
