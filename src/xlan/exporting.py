"""`xlan export`: a model directory → an export directory, compared with PyTorch before it is said to be done."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from xlan.engines.load import Loaded, load, load_export, uses_own_detector
from xlan.engines.onnx_weights import MappedWeights
from xlan.errors import MissingExtraError, ModelError
from xlan.export.calibrate import MOST_PICTURES, quantise_vision
from xlan.export.captioner import captioner_graphs, check_has_graphs
from xlan.export.directory import DECODER, ENCODER, check_place, metadata_of, write_export
from xlan.export.directory import VISION as VISION_GRAPH
from xlan.export.graph import Precision
from xlan.export.vision import vision_graph
from xlan.options import CaptionOptions
from xlan.pretrained import FAMILIAR, VISION, WEIGHTS, WORD_HEAD, ModelDirectory, read_model_directory
from xlan.types import Regions
from xlan.vision.familiar import Familiar
from xlan.vision.grid_settings import VisionFile, read_vision, trained_sizes
from xlan.vision.words import WordHead
from xlan.wording import request_of

Pixels = npt.NDArray[np.uint8]
TEST_IMAGES = 4
TEST_REGIONS = 9


@dataclass(frozen=True)
class Tolerance:
    """How far an export may be from PyTorch.

    Attributes:
        log_probs: largest difference of a word's log-probability.
        features: difference of the region features, as a share of their length.
    """

    log_probs: float
    features: float


# float32 differs by rounding only. Smaller weights are another model, but one that should hardly say anything else.
TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(1e-3, 1e-4),
    "float16": Tolerance(0.1, 0.02),
    "int8": Tolerance(2.0, 0.3),
}


@dataclass(frozen=True)
class Exported:
    """What was written and how well it agrees with PyTorch.

    Attributes:
        path: the export directory.
        bytes: its size.
        log_probs: the largest difference of log-probabilities on the test inputs.
        features: the difference of region features, as a share of their length; None without vision.
        same_captions: how many of `captions` test captions are the same.
        captions: how many were compared.
    """

    path: Path
    bytes: int
    log_probs: float
    features: float | None
    same_captions: int
    captions: int


def export_model(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
    pictures: Iterable[Image.Image] = (),
    replace: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write a model directory as ONNX and compare it with PyTorch on test inputs.

    Of a model on the regions of a detector only the captioner is written: the export then captions region features.

    Args:
        directory: the model directory.
        output: the export directory to write.
        precision: how weights are stored; `int8` also computes in 8 bits.
        pictures: upright RGB pictures like those it will see; `int8` measures the ranges of the vision network on them.
            Without them the vision network has 16 bits.
        replace: replace an export that already exists.
        tell: hears what is being done, a line each.

    Raises:
        ModelError: no graph is known for its architecture, something else is at `output`, or the export differs from
            PyTorch by more than it may; what was written is then removed.
        MissingExtraError: torch is not installed, or `onnx` where it is needed.
    """
    target = Path(output)
    check_place(target, replace=replace)
    found = read_model_directory(directory, verify=True)
    check_has_graphs(found.spec, str(directory))
    vision = None
    if uses_own_detector(found):
        tell("its detector is not exported; the export captions region features, not pictures")
    elif VISION in found.extras:
        vision = read_vision(found.extras[VISION], **trained_sizes(found.features))
    pixels = _prepared(vision, pictures)
    try:
        theirs = load(directory, engine="torch")
    except MissingExtraError:
        raise MissingExtraError("xlan export compares what it writes with PyTorch, which", "export") from None
    tell("writing the graphs")
    weights = MappedWeights(found.path / WEIGHTS)
    model_hash = found.identity
    graphs = _graphs(found, weights, vision, precision, model_hash, pixels, tell)
    staging = target.parent / f".{target.name}.{os.getpid()}.unchecked"
    arguments: dict[str, Any] = {
        "graphs": graphs,
        "spec": found.spec,
        "precision": precision,
        "parameters": sum(array.size for array in weights.values()),
        "model_hash": model_hash,
        "vocabulary": found.vocabulary,
        "vision": None if vision is None else vision.settings,
        "vision_weights": "" if vision is None else vision.digest,
        "extras": _extras(found.extras, int8=precision == "int8"),
    }
    write_export(staging, **arguments)
    try:
        tell("comparing with PyTorch")
        result = compare(load_export(staging), theirs, pixels[:TEST_IMAGES])
        tolerance = TOLERANCES[precision]
        faults = [
            f"{what} by {got:.2g} (at most {most:g})"
            for what, got, most in (
                ("log-probabilities", result.log_probs, tolerance.log_probs),
                ("region features", result.features or 0.0, tolerance.features),
            )
            if not got <= most
        ]
        if faults:
            raise ModelError(f"{directory}: the export differs from PyTorch: {', '.join(faults)}; nothing was written")
        write_export(target, replace=replace, **arguments)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    size = sum(file.stat().st_size for file in target.iterdir())
    return Exported(target, size, result.log_probs, result.features, result.same_captions, result.captions)


def _prepared(vision: VisionFile | None, pictures: Iterable[Image.Image]) -> list[Pixels]:
    if vision is None:
        return []
    return [vision.settings.prepare(picture).pixels for picture in itertools.islice(pictures, MOST_PICTURES)]


def _extras(files: Mapping[str, Path], *, int8: bool) -> dict[str, bytes]:
    """What confidence is computed from: as it is, or its matrices in 8 bits."""
    extras = {name: path.read_bytes() for name, path in files.items() if name != VISION}
    if int8 and FAMILIAR in extras:
        extras[FAMILIAR] = Familiar.load(files[FAMILIAR]).to_bytes(int8=True)
    if int8 and WORD_HEAD in extras:
        extras[WORD_HEAD] = WordHead.load(files[WORD_HEAD]).to_bytes(int8=True)
    return extras


def _graphs(
    found: ModelDirectory,
    weights: Mapping[str, npt.NDArray[Any]],
    vision: VisionFile | None,
    precision: Precision,
    model_hash: str,
    pixels: Sequence[Pixels],
    tell: Callable[[str], None],
) -> dict[str, bytes]:
    source = str(found.path / WEIGHTS)
    encoder, decoder = captioner_graphs(found.spec, weights, precision=precision, source=source)
    graphs = {
        name: graph.model(name.removesuffix(".onnx"), metadata_of(name, model_hash, precision))
        for name, graph in ((ENCODER, encoder), (DECODER, decoder))
    }
    if vision is not None:
        stored: Precision = "float16" if precision == "int8" and not pixels else precision
        graph = vision_graph(vision, precision=stored, source=str(found.extras[VISION]))
        content = graph.model("vision", metadata_of(VISION_GRAPH, model_hash, precision))
        if stored == "int8":
            tell(f"measuring the vision network on {len(pixels)} pictures")
            content = quantise_vision(content, pixels)
        elif precision == "int8":
            tell("the vision network keeps 16 bits; --calibrate with pictures gives it 8")
        graphs[VISION_GRAPH] = content
    return graphs


@dataclass(frozen=True)
class Comparison:
    """How well two engines agree; see `Exported`."""

    log_probs: float
    features: float | None
    same_captions: int
    captions: int


def compare(ours: Loaded, theirs: Loaded, pixels: Sequence[Pixels]) -> Comparison:
    """Compare an export with PyTorch on pictures, or on drawn ones and random regions where none are given."""
    features, regions = None, _random_regions(theirs.engine.feature_dim)
    if theirs.extractor is not None and ours.extractor is not None:
        prepare = theirs.extractor.prepare
        shown = [prepare(Image.fromarray(picture)) for picture in pixels] or [prepare(one) for one in _drawn()]
        regions, other = theirs.extractor.extract(shown), ours.extractor.extract(shown)
        mine, true = (np.stack([image.features for image in some]) for some in (other, regions))
        features = float(np.linalg.norm(mine - true) / np.linalg.norm(true))
    request = request_of(CaptionOptions(), theirs.vocabulary)
    expected, got = theirs.engine.decode(regions, request), ours.engine.decode(regions, request)
    sentences = [[beam.words for beam in image] for image in expected]
    scores = zip(theirs.engine.score(regions, sentences), ours.engine.score(regions, sentences), strict=True)
    worst = max(float(np.abs(a - b).max()) for one, two in scores for a, b in zip(one, two, strict=True))
    same = sum(a[0].ids == b[0].ids for a, b in zip(expected, got, strict=True))
    return Comparison(worst, features, same, len(expected))


def _random_regions(width: int) -> list[Regions]:
    random = np.random.default_rng(0)
    counts = [TEST_REGIONS - i for i in range(TEST_IMAGES)]
    return [
        Regions(np.abs(random.normal(size=(n, width))).astype(np.float32), np.zeros((n, 4), np.float32)) for n in counts
    ]


def _drawn() -> list[Image.Image]:
    """Smooth colours with noise: nothing a photo would be, but it reaches every filter."""
    random = np.random.default_rng(0)
    pictures = []
    for i in range(TEST_IMAGES):
        y, x = np.mgrid[0:96, 0:128] / 96
        waves = np.stack([np.sin((i + 2) * x + c * y) for c in (1, 3, 5)], axis=-1)
        noise = random.normal(scale=0.1, size=waves.shape)
        pictures.append(Image.fromarray(np.clip(127 + 100 * (waves + noise), 0, 255).astype(np.uint8)))
    return pictures
