"""Detector directories: self-contained folders.

    detector.json          format version, kind, sizes, settings, names; size and SHA-256 of the weights
    detector.safetensors   the weights
    vision.safetensors     the backbone of a small detector; absent where it shares the captioner's
    README.md              what it is and where it came from

Never a pickle. Files are written under a temporary name and renamed; `detector.json` comes last, so a folder without it
was never finished.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from xlan.errors import ModelError, WeightsError
from xlan.files import atomic_path, file_sha256, write_json, write_text
from xlan.folders import check_files, fingerprint
from xlan.vision.detector.bottom_up import BottomUp, BottomUpSpec
from xlan.vision.detector.conventions import Convention
from xlan.vision.detector.detections import Detector
from xlan.vision.detector.directory_settings import (
    BOTTOM_UP,
    CARD,
    CONFIG,
    FORMAT,
    LITE,
    VISION,
    WEIGHTS,
    is_detector_directory,
    read_settings,
    shared_vision,
    weights_name,
)
from xlan.vision.detector.extractor import BottomUpExtractor
from xlan.vision.detector.lite import LiteDetector, LiteHeads
from xlan.vision.detector.lite_extractor import LiteExtractor
from xlan.vision.detector.lite_settings import LiteDetectorSpec, LiteSelection
from xlan.vision.efficientnet import load_checked
from xlan.vision.grid import load_vision, save_vision
from xlan.vision.grid_settings import GridSettings
from xlan.vision.lite import SPECS
from xlan.weights import load_weights, tensor_file

LITE_CARD = """# A small detector

A two-stage detector on {network} for {classes} classes, trained with `xlan detector train`. It looks at pictures
squashed to {size} × {size} pixels. Use it with `xlan detect --detector DIR` or `xlan features extract --detector DIR`.
"""


def save_directory(
    directory: str | os.PathLike[str], kind: str, settings: Mapping[str, Any], weights: Mapping[str, Tensor], card: str
) -> None:
    """Write a detector directory, replacing the detector that is in it.

    Args:
        directory: where.
        kind: which family, for `load_detector`.
        settings: everything but the weights, as JSON values.
        weights: state of the network.
        card: text of README.md.
    """
    target = Path(directory)
    others = [item.name for item in target.iterdir()] if target.is_dir() else ["."] if target.exists() else []
    if not is_detector_directory(target) and set(others) - {WEIGHTS, VISION, CARD}:
        raise ModelError(f"{target}: already exists and is not a detector directory; choose another name or remove it")
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG).unlink(missing_ok=True)
    with tensor_file(target / WEIGHTS) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary)
    write_text(target / CARD, card)
    write_json(target / CONFIG, {"format": FORMAT, "kind": kind, "file": fingerprint(target / WEIGHTS), **settings})


def read_directory(directory: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """Settings, weights and a name for them.

    Raises:
        ModelError: not a detector directory, or of another format.
        WeightsError: the weights are missing, damaged, or hold values that are not finite.
    """
    settings, path = read_settings(directory), Path(directory) / WEIGHTS
    check_files(path.with_name(CONFIG), {WEIGHTS: settings["file"]}, [WEIGHTS], verify=False)
    weights = load_weights(path)
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise WeightsError(f"{path}: {name} holds values that are not finite; the file is damaged")
    floats = {name: tensor.float() for name, tensor in weights.items()}
    return settings, floats, weights_name(settings)


def save_bottom_up(
    directory: str | os.PathLike[str],
    spec: BottomUpSpec,
    convention: Convention,
    weights: Mapping[str, Tensor],
    *,
    objects: Sequence[str] = (),
    attributes: Sequence[str] = (),
    card: str = "",
) -> None:
    """Write a bottom-up network as a detector directory."""
    settings = {
        "spec": spec.to_dict(),
        "convention": convention.to_dict(),
        "objects": list(objects),
        "attributes": list(attributes),
    }
    save_directory(directory, BOTTOM_UP, settings, weights, card or "# A detector\n\nMade with xlan.\n")


def save_lite(
    directory: str | os.PathLike[str], detector: LiteDetector, *, vision: str | os.PathLike[str] | None = None
) -> None:
    """Write a small detector: its heads as float16, and its backbone as a vision file beside them.

    Args:
        directory: where.
        detector: backbone and heads.
        vision: the file that the backbone came from, copied as it is; None writes the backbone itself.
    """
    target, spec = Path(directory), detector.spec
    target.mkdir(parents=True, exist_ok=True)
    made = target / VISION
    if vision is None:
        save_vision(made, detector.network, GridSettings(network=spec.network, input_size=spec.input_size))
    else:
        with atomic_path(made) as temporary:
            shutil.copyfile(vision, temporary)
    weights = {name: tensor.half() for name, tensor in detector.heads.state_dict().items()}
    card = LITE_CARD.format(network=spec.network, classes=len(spec.classes), size=spec.input_size)
    save_directory(target, LITE, {"spec": spec.to_dict(), "vision": file_sha256(made)}, weights, card)


def load_detector(
    directory: str | os.PathLike[str],
    *,
    regions: tuple[int, int] | None = None,
    confidence: float | None = None,
    grid: bool = False,
    vision: str | os.PathLike[str] | None = None,
) -> Detector:
    """Load a detector directory, ready to look at pictures.

    Args:
        directory: what `xlan import-detector` or `xlan detector train` wrote.
        regions: fewest and most regions of a picture, instead of what the directory says.
        confidence: what counts as sure, instead of what the directory says.
        grid: add the cells of the backbone's last map (small detectors only).
        vision: a captioner's vision.safetensors, for a small detector that shares it.

    Raises:
        ModelError: not such a directory, or of another format or kind.
        WeightsError: the weights are damaged or do not fit.
    """
    settings, weights, name = read_directory(directory)
    source = Path(directory)
    kind, what = settings.get("kind"), str(source / CONFIG)
    if kind == LITE:
        selection = LiteSelection.of(regions, confidence, grid=grid)
        return _load_lite(source, settings, weights, name, selection, vision)
    if kind != BOTTOM_UP:
        raise ModelError(f"{what}: unknown kind of detector {kind!r}")
    if grid:
        raise ModelError(f"{source}: only small detectors have grid cells beside their regions")
    spec = BottomUpSpec.from_dict(settings.get("spec", {}), what=what)
    convention = Convention.from_dict(settings.get("convention", {}), what=what)
    rule = convention.selection
    if regions is not None:
        rule = replace(rule, fewest=regions[0], most=regions[1])
    if confidence is not None:
        rule = replace(rule, confidence=confidence)
    with torch.device("meta"):
        network = BottomUp(spec, replace(convention, selection=rule))
    load_checked(network, weights, str(source / WEIGHTS), assign=True)
    return BottomUpExtractor(
        network,
        objects=_names(settings, "objects", what),
        attributes=_names(settings, "attributes", what),
        weights_name=name,
    )


def feature_width(directory: str | os.PathLike[str]) -> int:
    """How wide the features of a detector directory are, without reading its weights."""
    settings, what = read_settings(directory), str(Path(directory) / CONFIG)
    if settings.get("kind") == LITE:
        return SPECS[LiteDetectorSpec.from_dict(settings.get("spec", {}), what=what).network].head
    return BottomUpSpec.from_dict(settings.get("spec", {}), what=what).feature_dim


def _load_lite(
    source: Path,
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    name: str,
    selection: LiteSelection,
    vision: str | os.PathLike[str] | None,
) -> LiteExtractor:
    spec = LiteDetectorSpec.from_dict(settings.get("spec", {}), what=str(source / CONFIG))
    file = shared_vision(source, settings, vision)
    network, _, _ = load_vision(file)
    if network.spec.name != spec.network:
        raise WeightsError(f"{file}: is {network.spec.name}, the detector needs {spec.network}")
    with torch.random.fork_rng():  # initial weights are random, and replaced at once
        heads = LiteHeads(spec)
    load_checked(heads, weights, str(source / WEIGHTS), assign=True)
    return LiteExtractor(LiteDetector(network, heads), selection, weights_name=name)


def _names(settings: Mapping[str, Any], key: str, what: str) -> list[str]:
    names = settings.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{what}: {key!r} must be a list of names")
    return names
