"""How well `xlan search` finds a picture by a person's caption, against searching our own captions by BM25.

    python benchmarks/search_recall.py --captions dataset_coco.json.xz --pictures train2017 --work DIR
    python benchmarks/search_recall.py --captions dataset_coco.json.xz --features STORE --work DIR --model DIR

The pictures of one split are indexed as `xlan search` does (in DIR, where an interrupted run goes on), then one caption
of each of some pictures is searched for. Printed: recall at 1, 5 and 10 and the median rank, of both ways in the same
run. BM25 has its best chance: content words only, singular and plural as one, and of pictures with equal scores the
middle rank. A picture that the first stage leaves out has the rank that the first stage gave it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from xlan import Captioner
from xlan.errors import ImageError, SearchError
from xlan.search.bm25 import Bm25
from xlan.search.index import Index
from xlan.search.library import identity_of
from xlan.search.rank import CANDIDATES, Ranker
from xlan.search.shards import Record, Stamp
from xlan.search.update import PICTURES_PER_FLUSH, Describer
from xlan.search.words import read_query
from xlan.text.content import content_words
from xlan.text.tokenize import tokenize
from xlan.threads import leave_a_core
from xlan.types import Regions
from xlan.vision.many import extract_many
from xlan.vision.sources import Picture, karpathy_pictures
from xlan.vision.store import FeatureStore

T = TypeVar("T")


def main() -> None:
    options = _options()
    if options.captions is None:
        print("nothing to measure: give --captions and --pictures, see --help")
        return
    captioner = Captioner.from_pretrained(options.model, threads=leave_a_core())
    known = karpathy_pictures(options.captions, splits=[options.split], folder=options.pictures)
    if options.features is not None:
        store = FeatureStore(options.features)
        known = [one for one in known if one.id in store]
    known = known[: options.limit]
    print(f"{len(known):,} pictures of {options.split!r}")
    index = _indexed(options, captioner, known)
    ranker = Ranker(index, captioner)
    places = {os.fsdecode(ranker.name(place)): place for place in range(len(ranker))}
    known = [one for one in known if one.id in places and one.captions]
    chosen = [known[i] for i in np.linspace(0, len(known) - 1, min(options.queries, len(known))).round().astype(int)]
    bm25 = Bm25([content_words(tokenize(ranker.caption(place))) for place in range(len(ranker))])
    ours, first, theirs, seconds = [], [], [], []
    for number, picture in enumerate(chosen, start=1):
        target, sentence = places[picture.id], picture.captions[0]
        try:
            query = read_query(sentence, captioner.vocabulary)
        except SearchError:
            continue
        began = time.perf_counter()
        order, per_word = ranker.compare(query, options.candidates)
        scores = per_word.sum(axis=1)
        seconds.append(time.perf_counter() - began)
        stage = ranker.first(query)[0].sum(axis=1)
        first.append(_rank(stage, target))
        here = (order == target).nonzero()[0]
        ours.append(_rank(scores, int(here[0])) if len(here) else max(first[-1], len(order) + 1))
        theirs.append(_rank(bm25.scores(content_words(tokenize(sentence))), target))
        if number % 100 == 0:
            print(f"  {number:,} of {len(chosen):,} queries", file=sys.stderr)
    print(f"{len(ours):,} queries over {len(ranker):,} pictures, {options.candidates:,} compared word by word")
    print(f"{'':30}{'R@1':>8}{'R@5':>8}{'R@10':>8}{'median':>8}")
    for name, ranks in (("xlan search", ours), ("  its first stage alone", first), ("BM25 over our captions", theirs)):
        array = np.array(ranks)
        recalls = "".join(f"{100 * np.mean(array <= k):7.1f}%" for k in (1, 5, 10))
        print(f"{name:30}{recalls}{np.median(array):8.0f}")
    reached = np.mean(np.array(first) <= options.candidates)
    print(f"the first stage keeps {100 * reached:.1f}% of the pictures; {np.median(seconds):.2f} s per query (median)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=Path, help="captions in Karpathy's format")
    parser.add_argument("--pictures", type=Path, help="folder of the pictures, found by name or id")
    parser.add_argument("--features", type=Path, help="a feature store instead of pictures")
    parser.add_argument("--model", type=Path, help="model directory; without it, the one that comes with xlan")
    parser.add_argument("--work", type=Path, default=Path("search-recall"), help="where the index is kept")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, help="at most this many pictures")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    return parser.parse_args()


def _indexed(options: argparse.Namespace, captioner: Captioner, pictures: Sequence[Picture]) -> Index:
    """An index whose names are the ids of the pictures."""
    identity = f"{identity_of(captioner)}:{options.split}"
    source = (options.features or options.pictures or options.captions.parent).resolve()
    index = Index.read(options.work, identity, source, print)
    there = {name for number, shard in enumerate(index.shards) for name in _names(index, number)}
    todo = [one for one in pictures if os.fsencode(one.id) not in there]
    describe = Describer(captioner)
    pending: list[Record] = []
    looked = described = 0.0
    began = time.perf_counter()
    with index.writing():
        parts = _regions(options, captioner, todo)
        done = 0
        while (part := next(parts, None)) is not None:
            looked += time.perf_counter() - began
            began = time.perf_counter()
            found = describe([(os.fsencode(name), Stamp(0, 0, 0), regions) for name, regions in part])
            pending += [record for _, record in found if isinstance(record, Record)]
            done += len(part)
            if len(pending) >= PICTURES_PER_FLUSH:
                index.add(pending, describe.arrays)
                pending = []
                print(f"  {done:,} of {len(todo):,} pictures indexed", file=sys.stderr)
            described += time.perf_counter() - began
            began = time.perf_counter()
        index.add(pending, describe.arrays)
    if todo:
        print(
            f"indexed {len(todo):,} pictures: {1000 * looked / len(todo):.0f} ms each for features, "
            f"{1000 * described / len(todo):.0f} ms each beyond"
        )
    print(f"index: {index.size / 1e6:,.1f} MB, {index.size / max(1, len(index)) / 1e3:.1f} KB a picture")
    return index


def _names(index: Index, number: int) -> Iterator[bytes]:
    return (index.shards[number].names[row] for row in index.live(number))


def _regions(
    options: argparse.Namespace, captioner: Captioner, pictures: Sequence[Picture]
) -> Iterator[list[tuple[str, Regions]]]:
    """Ids and regions, in batches; pictures that cannot be read are reported."""
    if options.features is not None:
        store = FeatureStore(options.features)
        for some in _batches(pictures, 16):
            yield [(one.id, store[one.id]) for one in some]
        return
    assert captioner.extractor is not None
    parts = extract_many(
        captioner.extractor,
        pictures,
        lambda one: captioner.prepare(one.read(), name=one.name),
        name=lambda one: one.name,
        batch=16,
        threads=2,
    )
    for part in parts:
        for _, error in part:
            if isinstance(error, ImageError):
                print(error, file=sys.stderr)
        yield [(one.id, regions) for one, regions in part if isinstance(regions, Regions)]


def _batches(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _rank(scores: np.ndarray, target: int) -> float:
    """Place of the target, from 1; among equals the middle."""
    return 1 + float((scores > scores[target]).sum()) + (float((scores == scores[target]).sum()) - 1) / 2


if __name__ == "__main__":
    main()
