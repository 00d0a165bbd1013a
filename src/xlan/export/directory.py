"""Export directories: a captioner as ONNX, in one folder that needs nothing else.

    export.json         format version, precision, the architecture's numbers, preprocessing, files with SHA-256
    encoder.onnx        region features → what the decoder needs of an image
    decoder.onnx        one decoding step, its state in and out
    vision.onnx         pixels → region features (only of models that caption pictures by themselves)
    vocab.json          words and special ids
    and those of a model directory's extra files that say how far its captions can be believed

Each graph carries the format version, its part and the model's hash in its metadata, so that parts of different exports
are not mixed. `xlan.export.borders` describes the inputs and outputs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from xlan.errors import ModelError, WeightsError
from xlan.export.graph import Precision
from xlan.files import file_sha256, read_json, sync_file, sync_folder, write_json
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
    if is_export_directory(target):
        if not replace:
            raise ModelError(f"{target}: an export already exists there; use --force to replace it")
    elif target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ModelError(f"{target}: already exists and is not an export directory; choose another name or remove it")


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
    extras: Mapping[str, Path],
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
        extras: further files to copy, by name.
        replace: replace an export that already exists.

    Raises:
        ModelError: something else is at that place.
    """
    check_place(target, replace=replace)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        for name, content in graphs.items():
            (temporary / name).write_bytes(content)
        vocabulary.save(temporary / VOCAB)
        for name, file in extras.items():
            shutil.copyfile(file, temporary / name)
        files = {}
        for name in (*graphs, VOCAB, *extras):
            sync_file(temporary / name)
            files[name] = {"bytes": (temporary / name).stat().st_size, "sha256": file_sha256(temporary / name)}
        about = {
            "format": FORMAT,
            "precision": precision,
            "parameters": parameters,
            "model_hash": model_hash,
            "model": spec_to_dict(spec),
            "vision": None if vision is None else {**asdict(vision), "weights": vision_weights},
            "files": files,
        }
        write_json(temporary / EXPORT, about)
        temporary.chmod(0o755)
        move_into_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_into_place(temporary: Path, target: Path) -> None:
    """Give a folder that is whole its final name; what has that name now is moved aside, then removed."""
    if target.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        target.rename(aside / target.name)
        temporary.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        temporary.rename(target)
    sync_folder(target.parent)


def read_export(directory: str | os.PathLike[str], *, verify: bool = False) -> ExportDirectory:
    """Read an export directory, but for its graphs.

    Args:
        directory: what `xlan export` wrote.
        verify: also compare the files' SHA-256 with what `export.json` says (their sizes are always compared).

    Raises:
        ModelError: not an export directory, another format, or its vocabulary belongs to another model.
        WeightsError: a file is missing or damaged.
    """
    source = Path(directory)
    place = source / EXPORT
    if not is_export_directory(source):
        raise ModelError(f"{source}: not an export directory (there is no {EXPORT} in it)")
    about = read_json(place, max_bytes=MAX_EXPORT_BYTES)
    if not isinstance(about, dict) or "format" not in about:
        raise ModelError(f"{place}: not the description of an export")
    if about["format"] != FORMAT:
        raise ModelError(
            f"{place}: format {about['format']!r}, this version of xlan reads format {FORMAT}; "
            "install the version that wrote it"
        )
    if not isinstance(about.get("model"), dict) or not isinstance(about.get("files"), dict):
        raise ModelError(f"{place}: 'model' and 'files' must be objects")
    kinds = {"precision": str, "parameters": int, "model_hash": str}
    for key, kind in kinds.items():
        if not isinstance(about.get(key), kind):
            raise ModelError(f"{place}: expected {key!r} to be {kind.__name__}, got {about.get(key)!r}")
    if about["precision"] not in get_args(Precision):
        raise ModelError(f"{place}: unknown precision {about['precision']!r}")
    spec = spec_from_dict(about["model"], what=str(place))
    vision, weights = _vision(about.get("vision"), place)
    needed = [ENCODER, DECODER, VOCAB, *([VISION] if vision is not None else [])]
    files = _checked_files(source, about["files"], needed, verify=verify)
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
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{place}: its 'vision' cannot be read: {error}") from None


def _checked_files(source: Path, files: dict[str, Any], needed: list[str], *, verify: bool) -> dict[str, Path]:
    for name in (*needed, *(name for name in files if name not in needed)):
        said = files.get(name)
        if not isinstance(said, dict) or type(said.get("bytes")) is not int or not isinstance(said.get("sha256"), str):
            raise ModelError(f"{source / EXPORT}: 'files' must give bytes and sha256 of {name}")
        if Path(name).name != name or not (source / name).is_file():
            raise WeightsError(f"{source}: {name} is missing; copy the directory again")
        size = (source / name).stat().st_size
        if size != said["bytes"]:
            raise WeightsError(f"{source / name}: {size:,} bytes, expected {said['bytes']:,}; copy the directory again")
        if verify and file_sha256(source / name) != said["sha256"]:
            raise WeightsError(f"{source / name}: damaged (its SHA-256 differs); copy the directory again")
    return {name: source / name for name in files}
