"""What is to be computed: the settings of a job, as every worker gets them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from xlan.errors import DataError
from xlan.export.directory import is_export_directory, read_export
from xlan.files import file_sha256
from xlan.options import CaptionOptions
from xlan.pretrained import find_model, read_model_directory

Kind = Literal["caption", "features"]


@dataclass(frozen=True)
class Job:
    """The settings of a job; JSON values only, because they travel to other processes.

    Attributes:
        kind: what comes out.
        output: folder or address of the result.
        model: model or export directory; None for the model that comes with xlan. Workers on other machines need it at
            this path.
        engine: what computes.
        device: where to compute; `cuda` gives each worker on this machine a GPU of its own.
        threads: threads that compute, per worker.
        batch_size: pictures per call of the model.
        readers: threads that read and open pictures, per worker.
        max_bytes: largest picture file.
        max_pixels: most pixels a picture may claim.
        options: of captions: those of `CaptionOptions`.
        detector: detector directory whose regions the model takes or, of features, that makes them.
        network: of features: a network with ImageNet weights instead of the model's.
        vision: of features: an adapted network instead of the model's.
        dtype: of features: how they are kept.
        made_with: what determines the result; workers refuse to compute with another model.
    """

    kind: Kind
    output: str
    model: str | None = None
    engine: str = "auto"
    device: str = "cpu"
    threads: int = 1
    batch_size: int = 16
    readers: int = 2
    max_bytes: int = 64 << 20
    max_pixels: int = 120_000_000
    options: dict[str, Any] = field(default_factory=dict)
    detector: str | None = None
    network: str | None = None
    vision: str | None = None
    dtype: str = "float16"
    made_with: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        """What `to_json` gave."""
        return cls(**{field.name: value[field.name] for field in fields(cls)})

    def caption_options(self) -> CaptionOptions:
        """The options of captions as an object."""
        return CaptionOptions(**{**self.options, "must": tuple(self.options.get("must", ()))})


def made_with(job: Job) -> dict[str, Any]:
    """What determines the result: hashes of model and networks, and the options; where it runs does not matter.

    Raises:
        ModelError: the model directory cannot be used.
        DataError: a network's file cannot be read.
    """
    found: dict[str, Any] = {"batch_size": job.batch_size, "max_bytes": job.max_bytes, "max_pixels": job.max_pixels}
    if job.kind == "caption":
        found.update(job.options, engine=job.engine)
    else:
        found["dtype"] = job.dtype
    if job.detector is not None:
        found["detector_sha256"] = _folder_sha256(Path(job.detector))
    if job.vision is not None:
        found["vision_sha256"] = _hash(Path(job.vision))
    if job.network is not None:
        found["network"] = job.network
    if job.kind == "caption" or not (job.detector or job.vision or job.network):
        found["model_sha256"] = _identity(job.model)
    return found


def _identity(model: str | None) -> str:
    """Of a model directory or an export directory: both caption pictures."""
    source = find_model(model)
    return read_export(source).identity if is_export_directory(source) else read_model_directory(source).identity


def _hash(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _folder_sha256(folder: Path) -> str:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    digest = hashlib.sha256()
    for path in sorted(Path(root) / name for root, _, names in os.walk(folder) for name in names):
        digest.update(f"{path.relative_to(folder).as_posix()} {_hash(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
