"""Model directories: one folder that is complete.

    config.json         format version, the architecture's numbers, size and SHA-256 of the files beside it
    model.safetensors   the captioner's weights
    vocab.json          words and special ids
    vision.safetensors  what turns pictures into regions (only in models that caption pictures by themselves)
    familiar.safetensors  what its training pictures look like (optional; evidence for confidence)
    words.safetensors   the head with which vision names words by itself (optional; evidence for confidence)
    confidence.json     what turns evidence into confidence (optional; `xlan confidence fit`)
    README.md           the model card

Never a pickle. A directory is written beside its final place and moved there when it is whole. Replacing a model takes
two renames: killed exactly between them, the old model lies beside its place in a folder `.NAME.….old`.

A model may also be named as it is on the Hub, `owner/name` or `owner/name@revision`, where no such folder exists:
`find_model` then fetches the files above, and no others, and compares all of them with their hashes.

`read_model_directory` needs no torch; only what returns or takes tensors imports it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlan.errors import DataError, HubError, ModelError, WeightsError, XlanError
from xlan.files import read_bytes, read_json, read_text, write_json, write_text
from xlan.folders import check_files, fingerprint, read_description, whole_folder
from xlan.hub.names import HubName, parse_name
from xlan.hub.repository import Repository
from xlan.model.spec import Spec, spec_from_dict, spec_to_dict
from xlan.text.vocab import Vocabulary
from xlan.weights import compare_weights, load_weights, tensor_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xlan.model.captioner import CaptionModel

FORMAT = 1
SHIPPED = Path(__file__).parent / "models" / "default"  # the model that comes with xlan
CONFIG, WEIGHTS, VOCAB, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
VISION, FAMILIAR = "vision.safetensors", "familiar.safetensors"
WORD_HEAD, CALIBRATION = "words.safetensors", "confidence.json"
DETECTOR = "detector"  # a folder in a model directory: the detector whose regions the model was trained on
EXTRAS = (VISION, FAMILIAR, WORD_HEAD, CALIBRATION)  # files that a model directory may have
DETECTOR_CONFIG, DETECTOR_WEIGHTS = f"{DETECTOR}/detector.json", f"{DETECTOR}/detector.safetensors"
DETECTOR_FILES = (DETECTOR_CONFIG, DETECTOR_WEIGHTS, f"{DETECTOR}/{VISION}", f"{DETECTOR}/{CARD}")
MAX_CONFIG_BYTES = 1 << 20
MAX_DETECTOR_BYTES = 4 << 20  # of its settings
MAX_CARD_BYTES = 1 << 20
DEFAULT_CARD = "# A captioning model\n\nMade with xlan; `config.json` has its numbers.\n"


@dataclass(frozen=True)
class ModelDirectory:
    """What a model directory holds, checked; the weights are read when asked for.

    Attributes:
        path: where it is.
        spec: the architecture's numbers.
        vocabulary: its words, as many as the architecture has ids.
        hashes: SHA-256 of each file, as `config.json` has them.
        extras: the files of `EXTRAS` it has, by name.
        features: description of the extractor whose features it was trained with; empty when unknown.
    """

    path: Path
    spec: Spec
    vocabulary: Vocabulary
    hashes: Mapping[str, str]
    extras: Mapping[str, Path]
    features: Mapping[str, Any]

    def weights(self) -> dict[str, Tensor]:
        """The captioner's weights as they are stored, on the CPU.

        Raises:
            WeightsError: they are damaged, or missing, unexpected or misshapen, each of which is listed.
        """
        weights = load_weights(self.path / WEIGHTS)
        _check_weights(_skeleton(self.spec), weights, str(self.path / WEIGHTS))
        return weights

    @property
    def identity(self) -> str:
        """SHA-256 of what decides its captions: the same for every copy of this model, another for every other one.

        These are the hashes of its files, how its features are made (pictures are seen at that size) and what its
        detector says of itself, which has the hashes of its weights.

        Raises:
            DataError: the detector's description cannot be read.
        """
        parts: dict[str, Any] = dict(self.hashes)
        if self.features:
            parts["features"] = dict(self.features)
        if (self.path / DETECTOR_CONFIG).is_file():
            content = read_bytes(self.path / DETECTOR_CONFIG, max_bytes=MAX_DETECTOR_BYTES)
            parts[DETECTOR_CONFIG] = hashlib.sha256(content).hexdigest()
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def card(self) -> str:
        """The text of the model card; empty when there is none."""
        file = self.path / CARD
        return read_text(file, max_bytes=MAX_CARD_BYTES) if file.is_file() else ""


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
    spec: Spec,
    weights: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    *,
    card: str = "",
    dtype: torch.dtype | None = None,
    extras: Mapping[str, str | os.PathLike[str] | bytes] | None = None,
    features: Mapping[str, Any] | None = None,
) -> None:
    """Write a model directory, replacing a model that is there; other files in its folder stay.

    Args:
        directory: where; its parent is created when missing.
        spec: the architecture's numbers (`model.spec`).
        weights: the weights by name (`model.state_dict()`); they must fit the architecture.
        vocabulary: must have as many words as the architecture has ids.
        card: text of the model card.
        dtype: store the weights in this type (`torch.float16` halves the file); default: as they are.
        extras: further files by name, as paths to copy or as bytes: `vision.safetensors`, so that the model can caption
            pictures by itself; `familiar.safetensors`, `words.safetensors` and `confidence.json` for its confidence.
        features: description of the extractor whose features it was trained with (`FeatureStore.extractor`).

    Raises:
        ModelError: the parts do not belong together, or something else is at that place.
    """
    from safetensors.torch import save_file

    if len(vocabulary) != spec.vocab_size:
        raise ModelError(f"the vocabulary has {len(vocabulary)} words, the model expects {spec.vocab_size}")
    unknown = sorted(set(extras or {}) - set(EXTRAS))
    if unknown:
        raise ModelError(f"extras: expected {' or '.join(EXTRAS)}, got {unknown[0]!r}")
    _check_weights(_skeleton(spec), weights, "weights")
    target = Path(directory)
    if target.exists() and not _is_replaceable(target):
        raise ModelError(f"{target}: already exists and is not a model directory; choose another name or remove it")
    with whole_folder(target, replaced=(CONFIG, WEIGHTS, VOCAB, CARD, *EXTRAS)) as temporary:
        stored = {
            name: tensor.detach().cpu().to(dtype or tensor.dtype).contiguous() for name, tensor in weights.items()
        }
        with tensor_file(temporary / WEIGHTS) as path:  # which gives it the permissions other files have
            save_file(stored, path)
        vocabulary.save(temporary / VOCAB)
        write_text(temporary / CARD, card or DEFAULT_CARD)
        for name, content in (extras or {}).items():
            if isinstance(content, bytes):
                (temporary / name).write_bytes(content)
            else:
                shutil.copyfile(content, temporary / name)
        files = {name: fingerprint(temporary / name) for name in (WEIGHTS, VOCAB, *(extras or {}))}
        config = {"format": FORMAT, "model": spec_to_dict(spec), "files": files, "features": dict(features or {})}
        write_json(temporary / CONFIG, config)


def _is_replaceable(target: Path) -> bool:
    """Whether a place is empty or holds one of our models; many other things have a file called config.json too."""
    if not target.is_dir():
        return False
    if not is_model_directory(target):
        return not any(target.iterdir())
    try:
        config = read_json(target / CONFIG, max_bytes=MAX_CONFIG_BYTES)
    except DataError:
        return False
    return isinstance(config, dict) and {"format", "model", "files"} <= config.keys()


def is_model_directory(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder looks like a model directory."""
    return (Path(directory) / CONFIG).is_file()


def find_model(model: str | os.PathLike[str] | None, *, revision: str | None = None) -> Path:
    """The model directory behind a name: a folder here or, where there is none, the name of a model on the Hub.

    A model of the Hub is fetched into the cache of `huggingface_hub`, and all its files are compared with the hashes in
    its `config.json`, each time: a folder that this returns is whole.

    Args:
        model: a folder, or `owner/name` or `owner/name@revision` on the Hub; None for the model that comes with xlan.
        revision: a branch, a tag or a commit on the Hub.

    Raises:
        ModelError: this version of xlan comes without a model, or a revision of it was asked for.
        HubError: it cannot be fetched, it is damaged, or a folder was given together with a revision.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    if model is None:
        if revision is not None:
            raise ModelError(f"the model that comes with xlan has no revisions; got revision {revision!r}")
        if not SHIPPED.is_dir():
            raise ModelError("this version of xlan ships no trained model; give a model directory (--model DIR)")
        return SHIPPED
    source = Path(model)
    name = None if source.exists() else parse_name(model)
    if name is not None:
        return _fetch(name.at(revision))
    if revision is not None:
        what = "a folder has no revisions" if source.exists() else "not the name of a model on the Hub (owner/name)"
        raise HubError(f"{source}: {what}; got revision {revision!r}")
    return source


def _fetch(name: HubName) -> Path:
    repository = Repository(name)
    repository.get(CONFIG)
    folder = repository.folder
    try:
        files = _read_config(folder)["files"]
        for file in (CARD, *DETECTOR_FILES):
            repository.find(file, before=WEIGHTS)
        if (folder / DETECTOR_CONFIG).is_file():
            settings = read_json(folder / DETECTOR_CONFIG, max_bytes=MAX_DETECTOR_BYTES)
            files = {**files, DETECTOR_WEIGHTS: settings.get("file") if isinstance(settings, dict) else None}
        names = [name for name in (VOCAB, *EXTRAS, DETECTOR_WEIGHTS, WEIGHTS) if name in files]
        for file in names:
            repository.get(file)
    except BaseException as error:  # also a full disk, or Ctrl-C
        repository.forget()
        if isinstance(error, HubError) or not isinstance(error, XlanError):
            raise
        raise HubError(f"{name}: not a model that this version of xlan can read: {_named(error, folder)}") from None
    for file in names:
        try:
            check_files(folder / CONFIG, files, (file,), verify=True)
        except ModelError as error:
            repository.forget(damaged=file)
            what = _named(error, folder).rpartition(";")[0] or _named(error, folder)
            remedy = "it was removed: try again, and if that does not help, tell the owner of the model"
            raise HubError(f"{name}: {what}; {remedy}") from None
    return folder


def _named(error: Exception, folder: Path) -> str:
    """What an error says, without where in the cache."""
    return str(error).removeprefix(str(folder)).lstrip(":/\\ ")


def read_model_directory(
    directory: str | os.PathLike[str], *, verify: bool = False, revision: str | None = None
) -> ModelDirectory:
    """Read a model directory, but for its weights.

    Args:
        directory: what `save_pretrained`, `xlan train`, `xlan pack` or `xlan import-checkpoint` wrote, or the name of
            a model on the Hub, see `find_model`.
        verify: also compare the SHA-256 of weights with what `config.json` says (sizes, and the SHA-256 of small files
            such as the vocabulary, always are).
        revision: a branch, a tag or a commit on the Hub.

    Raises:
        ModelError: not a model directory, another format, or vocabulary and architecture do not belong together.
        WeightsError: a file is missing or damaged.
    """
    source = find_model(directory, revision=revision)
    if not is_model_directory(source):
        raise ModelError(f"{source}: not a model directory (there is no {CONFIG} in it)")
    config = _read_config(source)
    spec = spec_from_dict(config["model"], what=str(source / CONFIG))
    files = config["files"]
    extras = {name: source / name for name in EXTRAS if name in files}
    check_files(source / CONFIG, files, (WEIGHTS, VOCAB, *extras), verify=verify)
    vocabulary = Vocabulary.load(source / VOCAB)
    if len(vocabulary) != spec.vocab_size:
        raise ModelError(f"{source}: {VOCAB} has {len(vocabulary)} words, {CONFIG} says {spec.vocab_size}")
    hashes = {name: files[name]["sha256"] for name in (WEIGHTS, VOCAB, *extras)}
    return ModelDirectory(source, spec, vocabulary, hashes, extras, config.get("features", {}))


def from_pretrained(
    directory: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    verify: bool = False,
    revision: str | None = None,
) -> Pretrained:
    """Load a model directory in PyTorch, in evaluation mode.

    Args:
        directory: as for `read_model_directory`.
        device: where the weights go.
        dtype: in which type they are computed with; float32 unless given.
        verify: also compare the files' SHA-256 with what `config.json` says.
        revision: a branch, a tag or a commit on the Hub.

    Raises:
        ModelError: as `read_model_directory` has it.
        WeightsError: the weights are damaged, or missing, unexpected or misshapen, each of which is listed.
    """
    found = read_model_directory(directory, verify=verify, revision=revision)
    return Pretrained(
        load_model(found, device=device, dtype=dtype),
        found.vocabulary,
        found.extras.get(VISION),
        found.extras.get(FAMILIAR),
        found.features,
    )


def load_model(
    found: ModelDirectory, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> CaptionModel:
    """The model of a directory that was read, in evaluation mode; see `from_pretrained`."""
    import torch

    weights, model = load_weights(found.path / WEIGHTS), _skeleton(found.spec)
    _check_weights(model, weights, str(found.path / WEIGHTS))
    model.load_state_dict({name: tensor.to(dtype or torch.float32) for name, tensor in weights.items()}, assign=True)
    return model.to(device).eval()


def _check_weights(model: CaptionModel, weights: Mapping[str, Tensor], what: str) -> None:
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    faults = compare_weights(expected, {name: tensor.shape for name, tensor in weights.items()})
    if faults:
        raise WeightsError(f"{what}: does not fit the architecture; {faults}")


def _skeleton(spec: Spec) -> CaptionModel:
    """The architecture without memory and without random numbers: its weights are about to be replaced."""
    import torch
    from torch.overrides import TorchFunctionMode

    from xlan.model.build import build_model

    class Uninitialised(TorchFunctionMode):
        """Modules made inside do not initialise weights: for one kind, that alone imports torch's whole compiler."""

        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            named = kwargs or {}
            if getattr(func, "__module__", None) == "torch.nn.init":
                return named["tensor"] if "tensor" in named else args[0]
            return func(*args, **named)

    with torch.device("meta"), Uninitialised():
        return build_model(spec)


def _read_config(source: Path) -> dict[str, Any]:
    what = "the configuration of a model directory"
    config = read_description(source / CONFIG, version=FORMAT, what=what, max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(config.get("features", {}), dict):
        raise ModelError(f"{source / CONFIG}: 'features' must be an object")
    return config
