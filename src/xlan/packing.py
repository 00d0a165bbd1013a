"""Making model directories from what others made: training's directory and a vision file, or a released checkpoint."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlan.confidence.calibration import Calibration
from xlan.data.captions import load_captions
from xlan.data.records import feature_key
from xlan.errors import ModelError
from xlan.files import file_sha256, read_text, sync_folder
from xlan.model.spec import TransformerSpec, XLANSpec, describe
from xlan.pretrained import (
    CALIBRATION,
    DETECTOR,
    FAMILIAR,
    MAX_CARD_BYTES,
    VISION,
    WORD_HEAD,
    ModelDirectory,
    is_model_directory,
    read_model_directory,
    save_pretrained,
)
from xlan.text.vocab import Vocabulary
from xlan.vision.detector.directory_settings import REGION_EXTRACTORS, read_settings, weights_name
from xlan.vision.familiar import EXAMPLES, Familiar
from xlan.vision.grid_settings import read_vision, trained_sizes
from xlan.vision.regions import check_same_extractor
from xlan.vision.store import FeatureStore
from xlan.vision.words import WordHead

if TYPE_CHECKING:
    import torch

    from xlan.model.spec import Spec

CARD = """# {name}

Converted by `xlan import-checkpoint` from {origin}. The weights stay under the terms of their source.

| | |
|---|---|
| source file | `{source}` |
| architecture | {architecture} |
| parameters | {parameters:,} |
| vocabulary | {vocab_size:,} ids; one id (0) is start, end and padding |
| region features | {feature_dim} wide |

{decoding}
"""
# Where weights come from, and how their results were decoded.
AUTHORS = (
    "a checkpoint released by the authors of\n*X-Linear Attention Networks for Image Captioning* "
    "(Pan, Yao, Li, Mei, CVPR 2020)",
    "The published X-LAN results were decoded with beam 3 and the rule `earlier`, those of X-Transformer with beam 2\n"
    "and the released rule.",
)
OTHERS = (
    "a checkpoint of the widespread PyTorch implementation\n(ImageCaptioning.pytorch)",
    "That implementation decodes with beam 5 and the rule `earlier`.",
)


def pack_model(
    model: str | os.PathLike[str],
    vision: str | os.PathLike[str] | None,
    output: str | os.PathLike[str],
    *,
    detector: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    familiar: Familiar | None = None,
    words: str | os.PathLike[str] | None = None,
    card: str = "",
    replace: bool = False,
) -> list[str]:
    """Join a trained model and its vision network in one directory that captions pictures.

    Args:
        model: a model directory, as training leaves it.
        vision: the `vision.safetensors` with which its features were extracted; None with a detector that has its own.
        output: the model directory to write.
        detector: the detector directory with which its features were extracted, if it was one.
        dtype: store the weights in this type; default: as they are.
        familiar: what its training pictures look like, see `familiar_pictures`; default: what `model` says, if it does.
        words: the `words.safetensors` that `xlan adapt` wrote beside `vision`, as evidence for confidence.
        card: text of the model card; default: the card of `model`.
        replace: replace a model directory that already exists.

    Returns:
        The names of the extra files it has now.

    Raises:
        ModelError: something exists at `output`, or the features have another width.
        FeatureError: the model was trained with features of another network.
        WeightsError: a file is missing or damaged.
    """
    _check_output(output, replace=replace)
    trained = read_model_directory(model, verify=True)
    if vision is None and detector is None:
        raise ModelError("give the vision network or the detector with which the features were extracted")
    width = trained.spec.feature_dim
    for source, made in _widths(vision, detector, trained.features):
        if made != width:
            raise ModelError(
                f"{source}: makes features {made} wide, {model} was trained on {width}; "
                "give the network with which its features were extracted"
            )
    extras: dict[str, os.PathLike[str] | str | bytes] = dict(trained.extras)
    _check_eyes(trained, vision, detector)
    if vision is not None:
        extras[VISION] = vision
    if familiar is not None:
        if (seen := familiar.examples.shape[1]) != width:
            raise ModelError(f"the familiar pictures have features {seen} wide, {model} was trained on {width}")
        extras[FAMILIAR] = familiar.to_bytes()
    if words is not None:
        head = WordHead.load(words)
        if head.weight.shape[1] != width:
            raise ModelError(f"{words}: takes features {head.weight.shape[1]} wide, {vision} makes them {width} wide")
        extras[WORD_HEAD] = head.to_bytes()
    seen_anew = vision is not None and VISION in trained.extras and _differ(vision, trained.extras[VISION])
    if extras.keys() != trained.extras.keys() or familiar is not None or words is not None or seen_anew:
        extras.pop(CALIBRATION, None)  # it was fitted on other evidence
    text = card or trained.card
    weights, features = trained.weights(), trained.features
    with _detector_copy(Path(output), detector, extras.get(VISION)) as copy:
        save_pretrained(
            output, trained.spec, weights, trained.vocabulary, card=text, dtype=dtype, extras=extras, features=features
        )
        shutil.rmtree(Path(output) / DETECTOR, ignore_errors=True)
        if copy is not None:
            copy.rename(Path(output) / DETECTOR)
            sync_folder(Path(output))
    return sorted([*extras, *([DETECTOR] if detector is not None else [])])


def calibrate_model(model: str | os.PathLike[str], calibration: Calibration) -> None:
    """Put a calibration into a model directory, in place of the one it had.

    Raises:
        WeightsError: the directory is damaged.
    """
    found = read_model_directory(model, verify=True)
    save_pretrained(
        model,
        found.spec,
        found.weights(),
        found.vocabulary,
        card=found.card,
        extras={
            **{name: path.read_bytes() for name, path in found.extras.items()},
            CALIBRATION: calibration.to_bytes(),
        },
        features=found.features,
    )


def _widths(
    vision: str | os.PathLike[str] | None, detector: str | os.PathLike[str] | None, features: Mapping[str, Any]
) -> Iterator[tuple[str | os.PathLike[str], int]]:
    if vision is not None:
        yield vision, read_vision(vision, **trained_sizes(features)).settings.feature_dim
    if detector is not None:
        from xlan.vision.detector.directory import feature_width

        yield detector, feature_width(detector)


def _check_eyes(
    trained: ModelDirectory, vision: str | os.PathLike[str] | None, detector: str | os.PathLike[str] | None
) -> None:
    """Refuse a vision network or detector that did not make the features which a model was trained on."""
    known = trained.features
    if vision is not None and (detector is None or known.get("extractor") == "grid"):
        file = read_vision(vision, **trained_sizes(known))
        made_by = file.settings.describe(file.digest)
        check_same_extractor(known, made_by, model=str(trained.path), features=str(vision))
    if detector is not None and known.get("extractor") in REGION_EXTRACTORS:
        check_same_extractor(
            {"weights": known.get("weights")},
            {"weights": weights_name(read_settings(detector))},
            model=str(trained.path),
            features=str(detector),
        )


def _differ(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    return file_sha256(one) != file_sha256(other)


@contextmanager
def _detector_copy(
    output: Path, detector: str | os.PathLike[str] | None, vision: os.PathLike[str] | str | bytes | None
) -> Iterator[Path | None]:
    """A copy of a detector beside `output`, without its backbone where that is the model's own.

    It is made before anything of `output` changes, since the detector may come from there.
    """
    if detector is None:
        yield None
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.detector.", suffix=".tmp", dir=output.parent))
    try:
        for file in sorted(Path(detector).iterdir()):
            own = file.name == VISION and isinstance(vision, (str, os.PathLike)) and not _differ(file, vision)
            if file.is_file() and not own:
                shutil.copyfile(file, temporary / file.name)
        temporary.chmod(0o755)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def familiar_pictures(
    features: str | os.PathLike[str],
    *,
    captions: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | None = None,
) -> Familiar:
    """What the pictures of a feature store look like, from up to a thousand of them, evenly spread.

    Args:
        features: the store a model was trained on.
        captions: take only the training split of this captions file; images are found by id or by file name.
        model: that model's directory; a store of other features than those it was trained on is refused.

    Raises:
        DataError: there are too few pictures.
        FeatureError: another network made the features.
    """
    store = FeatureStore(features)
    if model is not None:
        known = read_model_directory(model).features
        check_same_extractor(known, store.extractor, model=str(model), features=str(features))
    ids = list(store.ids)
    if captions is not None:
        named = (feature_key(image, store) for image in load_captions(captions).split("train"))
        ids = [name for name in named if name is not None]
    chosen = ids[:: max(1, len(ids) // EXAMPLES)][:EXAMPLES]
    return Familiar.of(store[image].features for image in chosen)


@dataclass(frozen=True)
class Imported:
    """What a released checkpoint turned out to be.

    Attributes:
        description: what it is and its sizes, in words.
        spec: all its numbers.
        parameters: how many numbers it has learned.
    """

    description: str
    spec: Spec
    parameters: int


def import_checkpoint(
    checkpoint: str | os.PathLike[str],
    vocab: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    heads: int | None = None,
    replace: bool = False,
) -> Imported:
    """Turn a public checkpoint into a model directory; nothing in the file is executed.

    Args:
        checkpoint: a state dict (`.pth`, `.safetensors`) of X-LAN or X-Transformer as released by their authors, or of
            UpDown, Att2in, Att2all, NewFC, Show and Tell or AoANet of the widespread PyTorch implementation.
        vocab: its vocabulary, see `Vocabulary.from_released`.
        output: the model directory to write.
        heads: heads of an AoANet, which its weights do not tell; default 8.
        replace: replace a model directory that already exists.

    Raises:
        WeightsError: not such a checkpoint.
        ModelError: something exists at `output`, or the vocabulary is another one.
    """
    from xlan.model.released import convert_released, read_checkpoint

    _check_output(output, replace=replace)
    vocabulary = Vocabulary.from_released(vocab)
    spec, weights = convert_released(read_checkpoint(checkpoint), heads=heads)
    if len(vocabulary) != spec.vocab_size:
        raise ModelError(
            f"{vocab}: {len(vocabulary) - 1} words make {len(vocabulary)} ids, the checkpoint has {spec.vocab_size}; "
            "give the vocabulary it was trained with"
        )
    description = describe(spec)
    origin, decoding = AUTHORS if isinstance(spec, XLANSpec | TransformerSpec) else OTHERS
    parameters = sum(tensor.numel() for tensor in weights.values())
    card = CARD.format(
        name=description.split(",")[0],
        origin=origin,
        decoding=decoding,
        source=Path(checkpoint).name,
        architecture=description,
        parameters=parameters,
        vocab_size=spec.vocab_size,
        feature_dim=spec.feature_dim,
    )
    save_pretrained(output, spec, weights, vocabulary, card=card)
    return Imported(description, spec, parameters)


def read_card(path: str | os.PathLike[str]) -> str:
    """The text of a model card somebody wrote."""
    return read_text(path, max_bytes=MAX_CARD_BYTES)


def _check_output(output: str | os.PathLike[str], *, replace: bool) -> None:
    if is_model_directory(output) and not replace:
        raise ModelError(f"{output}: a model directory already exists there; use --force to replace it")
