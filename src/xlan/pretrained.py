"""Model directories: one folder that is complete.

    config.json         format version, the architecture's numbers, size and SHA-256 of the files beside it
    model.safetensors   the captioner's weights
    vocab.json          words and special ids
    vision.safetensors  what turns pictures into regions (only in models that caption pictures by themselves)
    familiar.safetensors  what its training pictures look like (optional; makes confidence fall for other pictures)
    README.md           the model card

Never a pickle. A directory is written beside its final place and moved there when it is whole. Replacing a model takes
two renames: killed exactly between them, the old model lies beside its place in a folder `.NAME.….old`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from xlan.errors import DataError, ModelError, WeightsError
from xlan.files import atomic_path, file_sha256, read_json, sync_file, sync_folder, write_json, write_text
from xlan.model.build import build_model
from xlan.model.captioner import CaptionModel
from xlan.model.spec import spec_from_dict, spec_to_dict
from xlan.text.vocab import Vocabulary
from xlan.weights import compare_weights

FORMAT = 1
CONFIG, WEIGHTS, VOCAB, VISION, FAMILIAR, CARD = (
    "config.json",
    "model.safetensors",
    "vocab.json",
    "vision.safetensors",
    "familiar.safetensors",
    "README.md",
)
MAX_CONFIG_BYTES = 1 << 20
DEFAULT_CARD = "# A captioning model\n\nMade with xlan; `config.json` has its numbers.\n"


@dataclass(frozen=True)
class Pretrained:
    """A model, the words it speaks and, where the directory has them, the files about pictures.

    Attributes:
        features: description of the extractor whose features it was trained with; empty when unknown.
    """

    model: CaptionModel
    vocabulary: Vocabulary
    vision: Path | None = None
    familiar: Path | None = None
    features: Mapping[str, Any] = field(default_factory=dict)


def save_pretrained(
    directory: str | os.PathLike[str],
    model: CaptionModel,
    vocabulary: Vocabulary,
    *,
    card: str = "",
    dtype: torch.dtype | None = None,
    vision: str | os.PathLike[str] | None = None,
    familiar: str | os.PathLike[str] | None = None,
    features: Mapping[str, Any] | None = None,
) -> None:
    """Write a model directory, replacing a model that is there; other files in its folder stay.

    Args:
        directory: where; its parent is created when missing.
        model: what `build_model` made.
        vocabulary: must have as many words as the model has ids.
        card: text of the model card.
        dtype: store the weights in this type (`torch.float16` halves the file); default: as they are.
        vision: a `vision.safetensors` to put in, so that the model can caption pictures by itself.
        familiar: a `familiar.safetensors` to put in, so that pictures unlike those of training lower its confidence.
        features: description of the extractor whose features it was trained with (`FeatureStore.extractor`).
    """
    if len(vocabulary) != model.vocab_size:
        raise ModelError(f"the vocabulary has {len(vocabulary)} words, the model expects {model.vocab_size}")
    target = Path(directory)
    if target.exists() and not _is_replaceable(target):
        raise ModelError(f"{target}: already there and not a model directory; choose another name or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
        if dtype is not None:
            weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        with atomic_path(temporary / WEIGHTS) as path:  # which gives it the permissions other files have
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
        vocabulary.save(temporary / VOCAB)
        write_text(temporary / CARD, card or DEFAULT_CARD)
        for name, file in ((VISION, vision), (FAMILIAR, familiar)):
            if file is not None:
                shutil.copyfile(file, temporary / name)
        present = [name for name in (WEIGHTS, VOCAB, VISION, FAMILIAR) if (temporary / name).exists()]
        files = {name: _fingerprint(temporary / name) for name in present}
        config = {"format": FORMAT, "model": spec_to_dict(model.spec), "files": files, "features": dict(features or {})}
        write_json(temporary / CONFIG, config)
        temporary.chmod(0o755)
        _move_into_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_into_place(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
    else:
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        old = aside / target.name
        target.rename(old)
        try:
            temporary.rename(target)
        except BaseException:
            old.rename(target)
            aside.rmdir()
            raise
        for item in old.iterdir():
            if item.name not in (CONFIG, WEIGHTS, VOCAB, VISION, FAMILIAR, CARD):
                item.rename(target / item.name)
        shutil.rmtree(aside, ignore_errors=True)
    sync_folder(target.parent)


def _is_replaceable(target: Path) -> bool:
    """Whether a place holds nothing, or a model of ours; many other things have a file called config.json too."""
    if not target.is_dir():
        return False
    if not is_model_directory(target):
        return not any(target.iterdir())
    try:
        config = read_json(target / CONFIG, max_bytes=MAX_CONFIG_BYTES)
    except DataError:
        return False
    return isinstance(config, dict) and {"format", "model", "files"} <= config.keys()


def _fingerprint(path: Path) -> dict[str, Any]:
    sync_file(path)
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def is_model_directory(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder looks like a model directory."""
    return (Path(directory) / CONFIG).is_file()


def from_pretrained(
    directory: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    verify: bool = False,
) -> Pretrained:
    """Load a model directory, in evaluation mode.

    Args:
        directory: what `save_pretrained` or `xlan import-checkpoint` wrote.
        device: where the weights go.
        dtype: in which type they are computed with.
        verify: also compare the files' SHA-256 with what `config.json` says (their sizes are always compared).

    Raises:
        ModelError: not a model directory, another format, or vocabulary and weights do not belong together.
        WeightsError: the weights are damaged, or missing, unexpected or misshapen, each of which is listed.
    """
    source = Path(directory)
    if not is_model_directory(source):
        raise ModelError(f"{source}: not a model directory (there is no {CONFIG} in it)")
    config = _read_config(source)
    spec = spec_from_dict(config["model"], what=str(source / CONFIG))
    _check_files(source, config["files"], verify=verify)
    vocabulary = Vocabulary.load(source / VOCAB)
    if len(vocabulary) != spec.vocab_size:
        raise ModelError(f"{source}: {VOCAB} has {len(vocabulary)} words, {CONFIG} says {spec.vocab_size}")
    weights = _read_weights(source / WEIGHTS)
    with torch.device("meta"), _Uninitialised():  # no memory, no random numbers for weights that are replaced at once
        model = build_model(spec)
    faults = compare_weights(
        {name: tensor.shape for name, tensor in model.state_dict().items()},
        {name: tensor.shape for name, tensor in weights.items()},
    )
    if faults:
        raise WeightsError(f"{source / WEIGHTS}: does not fit the architecture; {faults}")
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in weights.items()}, assign=True)
    vision, familiar = (source / name if name in config["files"] else None for name in (VISION, FAMILIAR))
    return Pretrained(model.to(device).eval(), vocabulary, vision, familiar, config.get("features", {}))


class _Uninitialised(TorchFunctionMode):
    """Modules made inside do not initialise their weights: for one kind, that alone imports torch's whole compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


def _read_config(source: Path) -> dict[str, Any]:
    config = read_json(source / CONFIG, max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(config, dict) or "format" not in config:
        raise ModelError(f"{source / CONFIG}: not the configuration of a model directory")
    if config["format"] != FORMAT:
        raise ModelError(
            f"{source / CONFIG}: format {config['format']!r}, this version of xlan reads format {FORMAT}; "
            "install the version that wrote it"
        )
    if not isinstance(config.get("model"), dict) or not isinstance(config.get("files"), dict):
        raise ModelError(f"{source / CONFIG}: 'model' and 'files' must be objects")
    if not isinstance(config.get("features", {}), dict):
        raise ModelError(f"{source / CONFIG}: 'features' must be an object")
    return config


def _check_files(source: Path, files: dict[str, Any], *, verify: bool) -> None:
    for name in (WEIGHTS, VOCAB, *(name for name in (VISION, FAMILIAR) if name in files)):
        said = files.get(name)
        if not isinstance(said, dict) or type(said.get("bytes")) is not int or not isinstance(said.get("sha256"), str):
            raise ModelError(f"{source / CONFIG}: 'files' must give bytes and sha256 of {name}")
        if not (source / name).is_file():
            raise WeightsError(f"{source}: {name} is missing; copy the directory again")
        size = (source / name).stat().st_size
        if size != said["bytes"]:
            raise WeightsError(f"{source / name}: {size:,} bytes, expected {said['bytes']:,}; copy the directory again")
        if verify and _fingerprint(source / name)["sha256"] != said["sha256"]:
            raise WeightsError(f"{source / name}: damaged (its SHA-256 differs); copy the directory again")


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
