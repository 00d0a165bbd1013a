"""Do the engines say the same, and what do fewer bits cost? Captions of a split by every engine, scored with CIDEr.

    python benchmarks/engine_agreement.py               the model that comes with xlan, drawn pictures, no score
    python benchmarks/engine_agreement.py MODEL --captions dataset_coco.json.xz --pictures train2017 --count 1000
    python benchmarks/engine_agreement.py MODEL --captions dataset_coco.json.xz --features store --count 0

The model is exported as float32 and as int8 into a temporary folder, so what is compared is what users of an export
get; torch computes in float32 and bf16. With pictures, every engine also computes its own region features. Each line
says, in comparison with torch in float32: how many captions are identical, by how much the log-probabilities of its
captions differ (the largest difference and the mean), and CIDEr. Images are the first of the split that can be had;
count 0 is all of them. One batch at a time is in memory.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from caption_speed import make_photos
from xlan.cli.progress import count_progress
from xlan.data.captions import load_captions
from xlan.data.records import CaptionedImage
from xlan.engines.load import Loaded, load
from xlan.errors import DataError, ImageError, XlanError
from xlan.exporting import export_model
from xlan.metrics.report import evaluate
from xlan.options import CaptionOptions
from xlan.pretrained import SHIPPED
from xlan.types import Regions
from xlan.vision.image import open_image
from xlan.vision.regions import PreparedImage
from xlan.vision.sources import PictureFolder
from xlan.vision.store import FeatureStore
from xlan.wording import request_of

Shown = list[Regions] | list[PreparedImage]


@dataclass
class Way:
    """One engine in one precision, and what it said so far."""

    name: str
    loaded: Loaded
    captions: dict[str, str] = field(default_factory=dict)
    largest: float = 0.0
    sum: float = 0.0
    words: int = 0

    def regions(self, shown: Shown) -> list[Regions]:
        """Features as they are in a store, or of pictures, by its own vision network."""
        if isinstance(shown[0], Regions):
            return [one for one in shown if isinstance(one, Regions)]
        assert self.loaded.extractor is not None
        return list(self.loaded.extractor.extract([one for one in shown if isinstance(one, PreparedImage)]))

    def differ(self, expected: Sequence[Sequence[np.ndarray]], got: Sequence[Sequence[np.ndarray]]) -> None:
        """Count differences of log-probabilities."""
        for theirs, ours in zip(expected, got, strict=True):
            for a, b in zip(theirs, ours, strict=True):
                difference = np.abs(a - b)
                self.largest = max(self.largest, float(difference.max()))
                self.sum += float(difference.sum())
                self.words += len(difference)


def split_of(arguments: argparse.Namespace, scratch: Path) -> list[CaptionedImage]:
    """The images of the split; without captions, drawn pictures."""
    if arguments.captions is None:
        arguments.pictures, arguments.features = scratch / "drawn", None
        drawn = make_photos(arguments.pictures, arguments.drawn)
        return [CaptionedImage(path.stem, "drawn", path.name, (), ()) for path in drawn]
    wanted = [image for image in load_captions(arguments.captions) if image.split == arguments.split]
    if not wanted:
        raise DataError(f"{arguments.captions}: has no images in the split {arguments.split!r}")
    return wanted


def images(
    wanted: Sequence[CaptionedImage], arguments: argparse.Namespace, loaded: Loaded
) -> Iterator[tuple[CaptionedImage, Regions | PreparedImage]]:
    """Images of the split whose features or picture can be had, ready for the engines."""
    if arguments.features is not None:
        store = FeatureStore(arguments.features)
        yield from ((image, store[image.id]) for image in wanted if image.id in store)
        return
    if loaded.extractor is None:
        raise DataError(f"{arguments.model}: captions region features, not pictures; give --features")
    folder = PictureFolder(arguments.pictures)
    for image in wanted:
        path = folder.find(image.id, image.file)
        if path is None:
            continue
        try:
            yield image, loaded.extractor.prepare(open_image(path, min_side=loaded.extractor.min_side))
        except ImageError as error:
            print(f"{error}; left out")


def caption(ways: Sequence[Way], batch: Sequence[tuple[CaptionedImage, Regions | PreparedImage]], beams: int) -> None:
    """One batch by every engine; the first one is what the others are compared with."""
    shown: Shown = [one for _, one in batch]  # type: ignore[assignment]
    sentences: list[list[tuple[int, ...]]] = []
    expected: list[list[np.ndarray]] = []
    for way in ways:
        engine, vocabulary = way.loaded.engine, way.loaded.vocabulary
        regions = way.regions(shown)
        found = engine.decode(regions, request_of(CaptionOptions(beams=beams), vocabulary))
        for (image, _), several in zip(batch, found, strict=True):
            way.captions[image.id] = vocabulary.decode(several[0].words)
        sentences = sentences or [[several[0].words] for several in found]
        scores = engine.score(regions, sentences)
        expected = expected or scores
        way.differ(expected, scores)


def cider(captions: dict[str, str], references: dict[str, tuple[str, ...]]) -> float:
    """In hundredths, as papers print it."""
    value = evaluate(captions, references, metrics=["cider"]).scores["CIDEr"].value
    assert value is not None
    return 100 * value


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(file.stat().st_size for file in folder.iterdir())


def measure(arguments: argparse.Namespace, scratch: Path) -> None:
    """Export, caption, compare, print."""
    wanted = split_of(arguments, scratch)
    print("exporting as float32 and as int8")
    calibration = [open_image(path) for path in sorted(arguments.calibrate.iterdir())] if arguments.calibrate else []
    export_model(arguments.model, scratch / "float32")
    export_model(arguments.model, scratch / "int8", precision="int8", pictures=calibration)
    ways = [
        Way("torch float32", load(arguments.model, engine="torch")),
        Way("onnx float32", load(scratch / "float32")),
        Way("onnx int8", load(scratch / "int8")),
        Way("torch bf16", load(arguments.model, engine="torch", precision="bf16")),
    ]
    base, *others = ways
    found = images(wanted, arguments, base.loaded)
    found = islice(found, arguments.count) if arguments.count else found
    total = min(arguments.count or len(wanted), len(wanted))
    with count_progress("captioning") as move:
        while batch := list(islice(found, arguments.batch_size)):
            caption(ways, batch, arguments.beams)
            move(len(base.captions), total)
    if not base.captions:
        raise DataError("no image of the split could be had; are the features or pictures those of the captions?")

    references = {image.id: image.captions for image in wanted if image.id in base.captions}
    scores = {} if arguments.captions is None else {way.name: cider(way.captions, references) for way in ways}
    print(f"{len(base.captions):,} images, beam {arguments.beams}")
    if scores:
        print(f"  {base.name:<15} CIDEr {scores[base.name]:6.2f}")
    for way in others:
        same = sum(way.captions[key] == text for key, text in base.captions.items())
        said = f"CIDEr {scores[way.name]:6.2f} ({scores[way.name] - scores[base.name]:+.2f})  " if scores else ""
        print(
            f"  {way.name:<15} {said}identical {same:,} of {len(base.captions):,} "
            f"({100 * same / len(base.captions):.1f} %)  "
            f"log-probabilities differ by {way.largest:.1e} at most, {way.sum / way.words:.1e} on average"
        )
    small, large = folder_bytes(scratch / "int8"), folder_bytes(scratch / "float32")
    print(f"int8 takes {small / 1e6:.1f} MB, float32 {large / 1e6:.1f} MB: {100 * small / large:.0f} %")
    exact = others[0]
    for key in islice((key for key, text in base.captions.items() if exact.captions[key] != text), arguments.shown):
        print(f"  {key}: {base.captions[key]!r} with torch, {exact.captions[key]!r} with onnx")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare what the engines say, in one run.")
    parser.add_argument("model", type=Path, nargs="?", default=SHIPPED, help="model directory")
    parser.add_argument("--captions", type=Path, help="captions of the images, in any form xlan reads")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--features", type=Path, help="feature store of the images")
    source.add_argument("--pictures", type=Path, help="folder of the pictures")
    parser.add_argument("--split", default="test")
    parser.add_argument("--count", type=int, default=1000, help="how many images; 0 for all")
    parser.add_argument("--drawn", type=int, default=24, help="how many pictures are drawn without --captions")
    parser.add_argument("--calibrate", type=Path, help="folder of pictures: the vision network gets 8 bits too")
    parser.add_argument("--beams", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--shown", type=int, default=5, help="captions to show where torch and onnx float32 differ")
    arguments = parser.parse_args()
    if (arguments.captions is None) != (arguments.features is None and arguments.pictures is None):
        parser.error("--captions goes with --features or --pictures")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            measure(arguments, Path(scratch))
        except XlanError as error:
            raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
