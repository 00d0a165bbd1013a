"""A model directory → everything a `Captioner` is made of, with the engine that fits."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from xlan.confidence.calibration import Calibration
from xlan.confidence.evidence import Witness
from xlan.confidence.judge import Judge
from xlan.engines.interface import Engine
from xlan.errors import MissingExtraError, ModelError
from xlan.export.captioner import captioner_graphs, has_graphs
from xlan.export.directory import DECODER, ENCODER, EXPORT, is_export_directory, read_export
from xlan.export.directory import VISION as VISION_GRAPH
from xlan.export.graph import Precision
from xlan.model.spec import spec_to_dict
from xlan.pretrained import (
    CALIBRATION,
    CONFIG,
    DETECTOR,
    FAMILIAR,
    VISION,
    WEIGHTS,
    WORD_HEAD,
    ModelDirectory,
    find_model,
    read_model_directory,
)
from xlan.text.vocab import Vocabulary
from xlan.vision.detector.directory_settings import (
    LITE,
    REGION_EXTRACTORS,
    detector_options,
    read_settings,
    weights_name,
)
from xlan.vision.detector.lite_settings import LiteSelection
from xlan.vision.familiar import Familiar
from xlan.vision.grid_settings import GridSettings, trained_sizes
from xlan.vision.naming import LEAST_SCORE, MOST, NamingExtractor
from xlan.vision.regions import RegionExtractor, check_same_extractor
from xlan.vision.words import WordHead

if TYPE_CHECKING:
    import torch

    from xlan.vision.detector.detections import Detector

EngineName = Literal["auto", "onnx", "torch"]
ComputePrecision = Literal["float32", "int8", "bf16"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)


@dataclass(frozen=True)
class Loaded:
    """The parts of a model directory, ready to use.

    Attributes:
        engine: regions → ids.
        vocabulary: ids ↔ words.
        extractor: pictures → regions, on the same device; None for models that take region features only.
        judge: says how much its captions can be trusted, with what the directory has for that.
        identity: a hash of its files, the same for every copy of this model.
    """

    engine: Engine
    vocabulary: Vocabulary
    extractor: RegionExtractor | None
    judge: Judge
    identity: str


def load(
    directory: str | os.PathLike[str] | None = None,
    *,
    engine: EngineName = "auto",
    device: str = "cpu",
    threads: int | None = None,
    detector: str | os.PathLike[str] | None = None,
    precision: ComputePrecision = "float32",
    revision: str | None = None,
) -> Loaded:
    """Read a model directory.

    Args:
        directory: what `save_pretrained`, `xlan train`, `xlan pack` or `xlan export` wrote, or the name of a model on
            the Hub; None for the model that comes with xlan.
        engine: `onnx` (small, quick to start, on the CPU), `torch` (every model, every device), or `auto`: onnx on the
            CPU where onnxruntime is installed and knows the architecture, else torch. All give the same captions.
        device: where to compute: `cpu`, `cuda`, `cuda:1`, `mps`.
        threads: how many threads compute; None leaves it to the engine.
        detector: a detector directory whose regions the model is given; beside a model on grid cells it only names
            what the words look at. None takes the one in the model directory, if the model was trained on its regions.
            Detectors compute with torch on the CPU, whatever the engine.
        precision: of the captioner's weights: `float32`; `int8`, with the onnx engine; `bf16`, with the torch engine.
            Fewer bits are read faster, which is what decoding with a large model waits for; captions may then differ.
        revision: of a model on the Hub: a branch, a tag or a commit.

    Raises:
        ModelError: not a model directory, or the device cannot be used here.
        MissingExtraError: the engine is not installed.
    """
    _check_name(engine)
    if precision not in get_args(ComputePrecision):
        raise ModelError(f"precision: expected {', '.join(get_args(ComputePrecision))}, got {precision!r}")
    needs: dict[str, EngineName] = {"int8": "onnx", "bf16": "torch"}
    if engine not in ("auto", needs.get(precision, engine)):
        raise ModelError(f"precision {precision} goes with the {needs[precision]} engine, got {engine!r}")
    engine = needs.get(precision, engine)
    _check_device(engine, device)
    source = find_model(directory, revision=revision)
    if is_export_directory(source):
        if precision != "float32":
            raise ModelError(f"{directory}: is an export and has a precision of its own; leave --precision out")
        if engine == "torch" or device != "cpu":
            raise ModelError(f"{directory}: is an export and runs with the onnx engine on the cpu only")
        if detector is not None:
            raise ModelError(f"{directory}: is an export; detectors go with the model directory it was made from")
        return load_export(source, threads=threads)
    found = read_model_directory(source)
    fits = device == "cpu" and has_graphs(found.spec)
    if engine == "onnx" or (engine == "auto" and fits and is_installed("onnxruntime")):
        loaded = _onnx(found, threads, "int8" if precision == "int8" else "stored")
    else:
        loaded = _torch(found, device, threads, bf16=precision == "bf16")
    same: EngineName = "onnx" if loaded.engine.name == "onnx" else "torch"
    if detector is None and not uses_own_detector(found):
        return loaded
    if detector is not None and loaded.extractor is not None and _on_grid(found, detector):
        return replace(loaded, extractor=_naming(found, detector, loaded.extractor, engine=same, threads=threads))
    directory = found.path / DETECTOR if detector is None else Path(detector)
    return replace(loaded, extractor=_detector(found, directory, engine=same, threads=threads))


def _check_name(engine: EngineName) -> None:
    if engine not in ENGINES:
        raise ModelError(f"engine: expected {', '.join(ENGINES)}, got {engine!r}")


def _check_device(engine: EngineName, device: str) -> None:
    if engine == "onnx" and device != "cpu":
        raise ModelError(f"the onnx engine computes on the cpu, got device {device!r}; use the torch engine")


def uses_own_detector(found: ModelDirectory) -> bool:
    """Whether a model is given the regions of the detector in its directory.

    A detector in the directory of a model on grid cells waits until somebody asks for names.
    """
    return (found.path / DETECTOR).is_dir() and not (VISION in found.extras and _on_grid(found, None))


def _on_grid(found: ModelDirectory, detector: str | os.PathLike[str] | None) -> bool:
    """Whether a model with a vision network was trained on its cells; where it does not say, a detector in its
    directory means regions."""
    made_by = found.features.get("extractor")
    return made_by == "grid" or (made_by is None and detector is not None and not (found.path / DETECTOR).is_dir())


def open_vision(
    path: str | os.PathLike[str], *, engine: EngineName = "auto", device: str = "cpu", threads: int | None = None
) -> RegionExtractor:
    """The grid regions of a vision.safetensors, with either engine.

    Args:
        path: what `xlan adapt` wrote, or the file of a model directory.
        engine: what computes; `auto` takes onnxruntime where it can.
        device: where to compute.
        threads: how many threads compute; None leaves it to the engine.

    Raises:
        ModelError: the device cannot be used here, or not with this engine.
        WeightsError: the file is missing, damaged or of another format.
        MissingExtraError: the engine is not installed.
    """
    _check_name(engine)
    _check_device(engine, device)
    if engine == "onnx" or (engine == "auto" and device == "cpu" and is_installed("onnxruntime")):
        from xlan.engines.onnx_vision import OnnxGridExtractor

        return OnnxGridExtractor.load(path, threads=threads)
    where = _torch_device(device, threads)
    from xlan.vision.grid import GridExtractor

    return GridExtractor.load(path).to(where)


def open_imagenet(network: str, *, device: str = "cpu", threads: int | None = None) -> RegionExtractor:
    """The grid regions of a network with ImageNet weights, which only torch reads.

    Args:
        network: a name of `xlan.vision.lite.SPECS`.
        device: where to compute.
        threads: how many threads compute; None leaves it to torch.

    Raises:
        ModelError: no such network, or the device cannot be used here.
        MissingExtraError: torch or the weights are not installed.
    """
    where = _torch_device(device, threads)
    from xlan.vision.grid import GridExtractor

    return GridExtractor.imagenet(GridSettings(network=network)).to(where)


def open_detector(
    directory: str | os.PathLike[str],
    *,
    engine: EngineName = "auto",
    threads: int | None = None,
    regions: tuple[int, int] | None = None,
    confidence: float | None = None,
    grid: bool = False,
    vision: str | os.PathLike[str] | None = None,
) -> Detector:
    """The detector of a directory: a small one with either engine, any other with torch.

    Args:
        directory: what `xlan import-detector` or `xlan detector train` wrote.
        engine: what computes; `auto` takes onnxruntime where it can.
        threads: how many threads onnxruntime computes with.
        regions: fewest and most regions of a picture, instead of what the directory says.
        confidence: what counts as sure, instead of what the directory says.
        grid: add the cells of the backbone's last map (small detectors only).
        vision: a captioner's vision.safetensors, for a small detector that shares it.

    Raises:
        ModelError: not such a directory, or of another format or kind.
        WeightsError: the weights are damaged or do not fit.
        MissingExtraError: torch is needed, and not installed.
    """
    small = read_settings(directory).get("kind") == LITE
    if small and (engine == "onnx" or (engine == "auto" and is_installed("onnxruntime"))):
        from xlan.engines.onnx_detector import OnnxLiteDetector

        selection = LiteSelection.of(regions, confidence, grid=grid)
        return OnnxLiteDetector.load(directory, selection, vision=vision, threads=threads)
    try:
        from xlan.vision.detector.directory import load_detector
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("this detector", "train") from None
    return load_detector(directory, regions=regions, confidence=confidence, grid=grid, vision=vision)


def _naming(
    found: ModelDirectory, directory: str | os.PathLike[str], grid: RegionExtractor, **how: Any
) -> RegionExtractor:
    vision = found.extras.get(VISION)
    detector = open_detector(directory, vision=vision, regions=(1, MOST), confidence=LEAST_SCORE, **how)
    return NamingExtractor(grid, detector)


def _detector(found: ModelDirectory, directory: Path, **how: Any) -> RegionExtractor:
    made_by = {"weights": weights_name(read_settings(directory))}
    if found.features.get("extractor") in REGION_EXTRACTORS:
        known = {"weights": found.features.get("weights")}
        check_same_extractor(known, made_by, model=str(found.path), features=str(directory))
    try:
        options = detector_options(found.features)
    except ModelError as error:
        raise ModelError(f"{found.path / CONFIG}: its 'features' cannot be used: {error}") from None
    extractor = open_detector(directory, vision=found.extras.get(VISION), **options, **how)
    if extractor.feature_dim != found.spec.feature_dim:
        raise ModelError(
            f"{directory}: makes features {extractor.feature_dim} wide, {found.path} was trained on "
            f"{found.spec.feature_dim}; give the detector with which its features were extracted"
        )
    return extractor


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _onnx(found: ModelDirectory, threads: int | None, precision: Precision) -> Loaded:
    from xlan.engines.onnx_engine import OnnxEngine, OnnxModel
    from xlan.engines.onnx_session import OnnxSession
    from xlan.engines.onnx_vision import OnnxGridExtractor
    from xlan.engines.onnx_weights import MappedWeights

    # The network with the most to convert comes first: what it leaves free serves those that follow.
    extractor = None
    if VISION in found.extras:
        extractor = OnnxGridExtractor.load(found.extras[VISION], threads=threads, **trained_sizes(found.features))
    source = str(found.path / WEIGHTS)
    weights = MappedWeights(source)
    graphs = captioner_graphs(found.spec, weights, precision=precision, source=source)
    sessions = []
    for graph, name in zip(graphs, ("encoder", "decoder"), strict=True):
        sessions.append(OnnxSession.of_graph(graph, name, source=source, threads=threads))
        weights.release()  # the session holds what it needs in the form it needs
    about = {
        "architecture": spec_to_dict(found.spec),
        "parameters": sum(array.size for array in weights.values()),
    }
    return Loaded(
        engine=OnnxEngine(OnnxModel(*sessions), found.vocabulary.special, about),
        vocabulary=found.vocabulary,
        extractor=extractor,
        judge=judge_of(found.extras),
        identity=found.identity,
    )


def load_export(directory: str | os.PathLike[str], *, threads: int | None = None) -> Loaded:
    """Read an export directory; see `load`."""
    from xlan.engines.onnx_engine import OnnxEngine, OnnxModel
    from xlan.engines.onnx_session import OnnxSession
    from xlan.engines.onnx_vision import OnnxGridExtractor

    found = read_export(directory)

    def session(name: str) -> OnnxSession:
        opened = OnnxSession(found.files[name], source=str(found.files[name]), threads=threads)
        found.check_metadata(name, opened.metadata)
        return opened

    model = OnnxModel(session(ENCODER), session(DECODER))
    if (model.feature_dim, model.vocab_size) != (found.spec.feature_dim, found.spec.vocab_size):
        raise ModelError(f"{found.path}: its graphs do not fit its {EXPORT}; copy the directory again")
    about = {
        "architecture": spec_to_dict(found.spec),
        "parameters": found.parameters,
        "precision": found.precision,
    }
    extractor = None
    if found.vision is not None:
        extractor = OnnxGridExtractor(session(VISION_GRAPH), found.vision, weights_name=found.vision_weights)
    return Loaded(
        engine=OnnxEngine(model, found.vocabulary.special, about),
        vocabulary=found.vocabulary,
        extractor=extractor,
        judge=judge_of(found.files),
        identity=found.identity,
    )


def _torch(found: ModelDirectory, device: str, threads: int | None, *, bf16: bool) -> Loaded:
    where = _torch_device(device, threads)
    import torch

    from xlan.engines.torch_engine import TorchEngine
    from xlan.pretrained import load_model
    from xlan.vision.grid import GridExtractor

    extractor = None
    if VISION in found.extras:
        extractor = GridExtractor.load(found.extras[VISION], **trained_sizes(found.features)).to(where)
    return Loaded(
        engine=TorchEngine(
            load_model(found, device=where, dtype=torch.bfloat16 if bf16 else None), found.vocabulary.special
        ),
        vocabulary=found.vocabulary,
        extractor=extractor,
        judge=judge_of(found.extras),
        identity=found.identity,
    )


def _torch_device(name: str, threads: int | None) -> torch.device:
    """Where torch is to compute, with how many threads."""
    try:
        import torch

        from xlan.engines.torch_engine import torch_device
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("the torch engine", "train") from None
    if threads is not None:
        torch.set_num_threads(threads)
    return torch_device(name)


def judge_of(extras: Mapping[str, Path]) -> Judge:
    """The judge of a model directory with these extra files."""
    witness = Witness(
        WordHead.load(extras[WORD_HEAD]) if WORD_HEAD in extras else None,
        Familiar.load(extras[FAMILIAR]) if FAMILIAR in extras else None,
    )
    return Judge(witness, Calibration.load(extras[CALIBRATION]) if CALIBRATION in extras else None)
