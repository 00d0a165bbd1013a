"""Detector directories: one folder that is complete.

    detector.json          format version, kind, sizes, settings, names; size and SHA-256 of the weights
    detector.safetensors   the weights
    README.md              what it is and where it came from

Never a pickle. Files are written under a temporary name and renamed; `detector.json` comes last, so a folder without it
was never finished.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from xlan.errors import DataError, ModelError, WeightsError
from xlan.files import atomic_path, file_sha256, read_json, write_json, write_text
from xlan.vision.detector.bottom_up import BottomUp, BottomUpSpec
from xlan.vision.detector.conventions import Convention
from xlan.vision.detector.detections import Detector
from xlan.vision.detector.extractor import BottomUpExtractor
from xlan.weights import compare_weights

FORMAT = 1
CONFIG, WEIGHTS, CARD = "detector.json", "detector.safetensors", "README.md"
BOTTOM_UP = "bottom-up"
MAX_CONFIG_BYTES = 4 << 20


def is_detector_directory(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a detector."""
    return (Path(directory) / CONFIG).is_file()


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
    if target.exists() and not is_detector_directory(target) and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target}: already exists and is not a detector directory; choose another name or remove it")
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG).unlink(missing_ok=True)
    with atomic_path(target / WEIGHTS) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary)
    write_text(target / CARD, card)
    file = {"bytes": (target / WEIGHTS).stat().st_size, "sha256": file_sha256(target / WEIGHTS)}
    write_json(target / CONFIG, {"format": FORMAT, "kind": kind, "file": file, **settings})


def read_directory(directory: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """Settings, weights and a name for them.

    Raises:
        ModelError: not a detector directory, or of another format.
        WeightsError: the weights are missing, damaged, or hold values that are not finite.
    """
    source = Path(directory)
    if not is_detector_directory(source):
        raise ModelError(f"{source}: not a detector directory (there is no {CONFIG} in it); see `xlan import-detector`")
    settings = read_json(source / CONFIG, max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(settings, dict) or not isinstance(settings.get("file"), dict):
        raise ModelError(f"{source / CONFIG}: not the settings of a detector")
    if settings.get("format") != FORMAT:
        raise ModelError(
            f"{source / CONFIG}: format {settings.get('format')!r}, this version of xlan reads format {FORMAT}"
        )
    weights = _read_weights(source / WEIGHTS, settings["file"])
    return settings, weights, f"sha256:{str(settings['file'].get('sha256'))[:16]}"


def _read_weights(path: Path, said: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        size = path.stat().st_size
        if size != said.get("bytes"):
            raise WeightsError(f"{path}: {size:,} bytes, expected {said.get('bytes')}; copy the directory again")
        weights = load_file(path)
    except FileNotFoundError:
        raise WeightsError(f"{path}: missing; copy the directory again") from None
    except SafetensorError as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise WeightsError(f"{path}: {name} holds values that are not finite; the file is damaged")
    return {name: tensor.float() for name, tensor in weights.items()}


def load_checked(network: torch.nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Give a network built on the meta device its weights; what does not fit is named."""
    faults = compare_weights(
        {name: tensor.shape for name, tensor in network.state_dict().items()},
        {name: tensor.shape for name, tensor in weights.items()},
    )
    if faults:
        raise WeightsError(f"{source}: weights do not fit its sizes; {faults}")
    network.load_state_dict(dict(weights), assign=True)


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


def load_detector(directory: str | os.PathLike[str], *, regions: tuple[int, int] | None = None) -> Detector:
    """Load a detector directory, ready to look at pictures.

    Args:
        directory: what `xlan import-detector` or `xlan detector train` wrote.
        regions: fewest and most regions of a picture, instead of what the directory says.

    Raises:
        ModelError: not such a directory, or of another format or kind.
        WeightsError: the weights are damaged or do not fit.
    """
    settings, weights, name = read_directory(directory)
    what = str(Path(directory) / CONFIG)
    if settings.get("kind") != BOTTOM_UP:
        raise ModelError(f"{what}: unknown kind of detector {settings.get('kind')!r}")
    spec = BottomUpSpec.from_dict(settings.get("spec", {}), what=what)
    convention = Convention.from_dict(settings.get("convention", {}), what=what)
    if regions is not None:
        rule = replace(convention.selection, fewest=regions[0], most=regions[1])
        convention = replace(convention, selection=rule)
    with torch.device("meta"):
        network = BottomUp(spec, convention)
    load_checked(network, weights, str(Path(directory) / WEIGHTS))
    return BottomUpExtractor(
        network,
        objects=_names(settings, "objects", what),
        attributes=_names(settings, "attributes", what),
        weights_name=name,
    )


def _names(settings: Mapping[str, Any], key: str, what: str) -> list[str]:
    names = settings.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{what}: {key!r} must be a list of names")
    return names
