"""Export directories: a captioner as ONNX, in one folder that needs nothing else.

    export.json         format version, precision, the architecture's numbers, preprocessing, files with SHA-256
    encoder.onnx        region features → what the decoder needs of an image
    decoder.onnx        one decoding step, its state in and out
    vision.onnx         pixels → region features (only of models that caption pictures by themselves)
    vocab.json          words and special ids
    and those of a model directory's extra files that say how much its captions can be trusted

Each graph carries the format version, its part and the model's hash in its metadata, so that parts of different exports
are not mixed. `xlan.export.borders` describes the inputs and outputs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from xlan.errors import ModelError
from xlan.export.graph import Precision
from xlan.files import write_json
from xlan.folders import check_files, check_free, fingerprint, read_description, whole_folder
from xlan.model.spec import Spec, spec_from_dict, spec_to_dict
from xlan.text.vocab import Vocabulary
from xlan.vision.grid_settings import GridSettings

EXPORT, VOCAB = "export.json", "vocab.json"
ENCODER, DECODER, VISION = "encoder.onnx", "decoder.onnx", "vision.onnx"
FORMAT = 1
MAX_EXPORT_BYTES = 1 << 20


@dataclass(frozen=True)
class ExportDirectory:
    """What an export directory holds, checked.

    Attributes:
        path: where it is.
        spec: the architecture's numbers.
        precision: how weights are stored.
        parameters: how many numbers the model has learned.
        model_hash: of the model it was made from.
        vocabulary: its words.
        vision: how pictures become regions; None for models that take region features only.
        vision_weights: which weights the vision network has, for descriptions.
        files: every file, by name.
    """

    path: Path
    spec: Spec
    precision: Precision
    parameters: int
    model_hash: str
    vocabulary: Vocabulary
    vision: GridSettings | None
    vision_weights: str
    files: Mapping[str, Path]

    @property
    def identity(self) -> str:
        """What tells it from others: float32 is the model it was made from, fewer bits are another."""
        if self.precision == "float32":
            return self.model_hash
        return hashlib.sha256(f"{self.model_hash} {self.precision}".encode()).hexdigest()

    def check_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Refuse a graph that belongs to another export."""
        expected = metadata_of(name, self.model_hash, self.precision)
        if any(metadata.get(key) != value for key, value in expected.items()):
            raise ModelError(f"{self.path / name}: is not part of this export; copy the directory again")


def metadata_of(name: str, model_hash: str, precision: Precision) -> dict[str, str]:
    """What a graph says of itself."""
    part = name.removesuffix(".onnx")
    return {
        "xlan.format": str(FORMAT),
        "xlan.part": part,
        "xlan.model": model_hash,
        "xlan.precision": precision,
    }


def is_export_directory(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder looks like an export directory."""
    return (Path(directory) / EXPORT).is_file()


def check_place(target: Path, *, replace: bool) -> None:
    """Refuse to write an export where something else is."""
    check_free(target, EXPORT, "an export directory", replace=replace)


def write_export(
    target: Path,
    *,
    graphs: Mapping[str, bytes],
    spec: Spec,
    precision: Precision,
    parameters: int,
    model_hash: str,
    vocabulary: Vocabulary,
    vision: GridSettings | None,
    vision_weights: str,
    extras: Mapping[str, bytes],
    replace: bool = False,
) -> None:
    """Write an export directory beside its final place, and move it there when it is whole.

    Args:
        target: where; its parent is created when missing.
        graphs: contents of the `.onnx` files by name.
        spec: the architecture's numbers.
        precision: how weights are stored.
        parameters: how many numbers the model has learned.
        model_hash: of the model it is made from.
        vocabulary: its words.
        vision: how pictures become regions, or None.
        vision_weights: which weights the vision network has.
        extras: contents of further files by name.
        replace: replace an export that already exists.

    Raises:
        ModelError: something else is at that place.
    """
    check_place(target, replace=replace)
    with whole_folder(target) as temporary:
        for name, content in (*graphs.items(), *extras.items()):
            (temporary / name).write_bytes(content)
        vocabulary.save(temporary / VOCAB)
        about = {
            "format": FORMAT,
            "precision": precision,
            "parameters": parameters,
            "model_hash": model_hash,
            "model": spec_to_dict(spec),
            "vision": None if vision is None else {**asdict(vision), "weights": vision_weights},
            "files": {name: fingerprint(temporary / name) for name in (*graphs, VOCAB, *extras)},
        }
        write_json(temporary / EXPORT, about)


def read_export(directory: str | os.PathLike[str], *, verify: bool = False) -> ExportDirectory:
    """Read an export directory, but for its graphs.

    Args:
        directory: what `xlan export` wrote.
        verify: also compare the SHA-256 of graphs and weights with what `export.json` says (sizes, and the SHA-256 of
            small files such as the vocabulary, always are).

    Raises:
        ModelError: not an export directory, another format, or its vocabulary belongs to another model.
        WeightsError: a file is missing or damaged.
    """
    source = Path(directory)
    place = source / EXPORT
    if not is_export_directory(source):
        raise ModelError(f"{source}: not an export directory (there is no {EXPORT} in it)")
    about = read_description(place, version=FORMAT, what="the description of an export", max_bytes=MAX_EXPORT_BYTES)
    kinds = {"precision": str, "parameters": int, "model_hash": str}
    for key, kind in kinds.items():
        if not isinstance(about.get(key), kind):
            raise ModelError(f"{place}: expected {key!r} to be {kind.__name__}, got {about.get(key)!r}")
    if about["precision"] not in get_args(Precision):
        raise ModelError(f"{place}: unknown precision {about['precision']!r}")
    spec = spec_from_dict(about["model"], what=str(place))
    vision, weights = _vision(about.get("vision"), place)
    needed = [ENCODER, DECODER, VOCAB, *([VISION] if vision is not None else [])]
    check_files(place, about["files"], (*needed, *about["files"]), verify=verify)
    files = {name: source / name for name in about["files"]}
    vocabulary = Vocabulary.load(source / VOCAB)
    if len(vocabulary) != spec.vocab_size:
        raise ModelError(f"{source}: {VOCAB} has {len(vocabulary)} words, the model has {spec.vocab_size}")
    return ExportDirectory(
        source, spec, about["precision"], about["parameters"], about["model_hash"], vocabulary, vision, weights, files
    )


def _vision(value: Any, place: Path) -> tuple[GridSettings | None, str]:
    if value is None:
        return None, ""
    try:
        settings = {key: item for key, item in value.items() if key != "weights"}
        return GridSettings(**{**settings, "levels": tuple(settings["levels"])}), str(value.get("weights", ""))
    except (ModelError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{place}: its 'vision' cannot be read: {error}") from None
