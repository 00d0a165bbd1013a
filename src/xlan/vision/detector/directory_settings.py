"""What a detector directory says of itself, read without torch; `directory` reads and writes the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlan.errors import ModelError, WeightsError
from xlan.files import file_sha256, read_json
from xlan.vision.detector.conventions import CAFFE
from xlan.vision.detector.lite_settings import LITE_EXTRACTOR, LiteSelection
from xlan.vision.values import check_objects

FORMAT = 1
CONFIG, WEIGHTS, CARD = "detector.json", "detector.safetensors", "README.md"
VISION = "vision.safetensors"
BOTTOM_UP, LITE = "bottom-up", "lite"
REGION_EXTRACTORS = (BOTTOM_UP, LITE_EXTRACTOR)  # how descriptions of features call detectors
MAX_CONFIG_BYTES = 4 << 20


def is_detector_directory(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a detector."""
    return (Path(directory) / CONFIG).is_file()


def read_settings(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """What `detector.json` says.

    Raises:
        ModelError: not a detector directory, or of another format.
    """
    source = Path(directory)
    if not is_detector_directory(source):
        raise ModelError(f"{source}: not a detector directory (there is no {CONFIG} in it); see `xlan import-detector`")
    settings = read_json(source / CONFIG, max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(settings, dict) or not isinstance(settings.get("file"), dict):
        raise ModelError(f"{source / CONFIG}: not the settings of a detector (there is no object 'file' in it)")
    if settings.get("format") != FORMAT:
        raise ModelError(
            f"{source / CONFIG}: format {settings.get('format')!r}, this version of xlan reads format {FORMAT}"
        )
    return settings


def weights_name(settings: Mapping[str, Any]) -> str:
    """What descriptions of features call the weights of a detector with these settings."""
    return f"sha256:{str(settings['file'].get('sha256', ''))[:16]}"


def detector_options(features: Mapping[str, Any]) -> dict[str, Any]:
    """How `load_detector` makes the regions that a store or model was made with.

    Args:
        features: description of the extractor (`FeatureStore.extractor`, `ModelDirectory.features`); empty if unknown.

    Raises:
        ModelError: no detector makes such regions.
    """
    kind = features.get("extractor")
    if kind not in REGION_EXTRACTORS:
        return {}
    rule = features if kind == LITE_EXTRACTOR else features.get("selection", {})
    check_objects(selection=rule)
    options = {name: rule[name] for name in ("confidence", "grid") if name in rule}
    if "fewest" in rule and "most" in rule:
        options["regions"] = (rule["fewest"], rule["most"])
    if kind == LITE_EXTRACTOR:
        LiteSelection.of(options.get("regions"), options.get("confidence"), grid=options.get("grid", False))
    else:
        usual = CAFFE.selection
        fewest, most = options.get("regions", (usual.fewest, usual.most))
        replace(usual, fewest=fewest, most=most, confidence=options.get("confidence", usual.confidence))
    return options


def shared_vision(
    directory: str | os.PathLike[str], settings: Mapping[str, Any], vision: str | os.PathLike[str] | None
) -> Path:
    """The backbone of a small detector: the file in its directory, else `vision`, the captioner's.

    Raises:
        ModelError: there is neither.
        WeightsError: it is another network than the detector was trained with.
    """
    source = Path(directory)
    file = source / VISION if (source / VISION).is_file() else vision
    if file is None:
        raise ModelError(f"{source}: has no {VISION}; give the captioner whose vision network it shares")
    if file_sha256(file) != settings.get("vision"):
        raise WeightsError(f"{file}: is not the vision network that {source} was trained with")
    return Path(file)
