"""Checkpoints: each complete or absent, and the last few kept.

    RUN/checkpoints/step-00001200-0003/
        model.safetensors       weights
        optimizer.safetensors   optimiser state, named `<parameter>/<slot>`
        rng.safetensors         random states of every process
        average.safetensors     averaged weights (only in runs that average)
        state.json              position, schedule, best score, config, versions, and size and hash of the files above

A checkpoint is written into a hidden folder, flushed to disk and renamed as the last act, so a kill at any time leaves
the earlier checkpoints as they were and no half-written one. A name is never written twice.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from xlan.errors import DataError, TrainingError
from xlan.files import file_sha256, read_json, sync_folder, write_json
from xlan.folders import fingerprint

CHECKPOINT_FORMAT = 1
_NAME = re.compile(r"^step-(\d{8,})-(\d{4,})$")
_REQUIRED = ("model", "optimizer", "rng")
_OPTIONAL = ("average",)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint read back.

    Attributes:
        path: its folder.
        model: weights by name.
        optimizer: optimiser tensors by `<parameter>/<slot>`.
        rng: random states by `<rank>/<kind>`.
        average: averaged weights by name; empty in runs without them.
        state: everything else, as JSON.
    """

    path: Path
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rng: dict[str, Tensor]
    average: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: where they are.
        keep: how many are kept.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int) -> None:
        self.folder = Path(folder)
        self.keep = keep

    def names(self) -> list[Path]:
        """Folders named like checkpoints, those written last first: a run may have gone back to an earlier step."""
        if not self.folder.is_dir():
            return []
        found = [(match, path) for path in self.folder.iterdir() if (match := _NAME.match(path.name))]
        return [path for _, path in sorted(found, key=lambda item: _order(item[0]), reverse=True)]

    def newest(self) -> Path | None:
        """The newest checkpoint that is complete and undamaged, or None."""
        for path in self.names():
            try:
                _verified_state(path)
            except DataError:
                continue
            return path
        return None

    def save(self, *, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then drop the oldest beyond `keep`.

        Args:
            step: updates made.
            tensors: by file: `model`, `optimizer`, `rng` and, in runs that average weights, `average`.
            state: everything else, as JSON values.

        Raises:
            TrainingError: the disk is full or the folder cannot be written; earlier checkpoints are untouched.
        """
        try:
            self.clean()
            path = self._write(step, tensors, state)
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            newest = self.newest()
            kept = f"the earlier checkpoint {newest.name} is complete" if newest else "there is no earlier checkpoint"
            raise TrainingError(
                f"{self.folder}: the checkpoint of step {step} could not be written: {reason}; {kept}. "
                f"Make room or fix permissions, then continue with --resume auto"
            ) from error
        for old in self.names()[self.keep :]:
            _remove(old)
        return path

    def clean(self) -> None:
        """Remove unfinished checkpoints of killed writers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)

    def _write(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
        newest = self.names()[:1]
        serial = 1 + (_order(_NAME.match(newest[0].name))[0] if newest else 0)
        final = self.folder / f"step-{step:08d}-{serial:04d}"
        hidden = self.folder / f".{final.name}.writing"
        hidden.mkdir()
        try:
            files = {}
            for name, values in tensors.items():
                file = hidden / f"{name}.safetensors"
                save_file({key: _plain(value) for key, value in values.items()}, file)
                files[file.name] = fingerprint(file)
            write_json(hidden / "state.json", {"format": CHECKPOINT_FORMAT, "step": step, "files": files, **state})
            sync_folder(hidden)
            hidden.rename(final)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        return final


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint, checking sizes and hashes first.

    Raises:
        DataError: it is incomplete, damaged or of another format.
    """
    folder = Path(path)
    if not (folder / "state.json").is_file():
        raise DataError(f"{folder}: not a checkpoint; expected a folder such as RUN/checkpoints/step-00002832-0007")
    state = _verified_state(folder, hashes=True)
    try:
        parts = {name: load_file(folder / f"{name}.safetensors") for name in _tensor_files(state)}
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder}: damaged checkpoint: {error}") from None
    return Checkpoint(folder, **{name: parts.get(name, {}) for name in (*_REQUIRED, *_OPTIONAL)}, state=state)


def _tensor_files(state: Mapping[str, Any]) -> list[str]:
    return [*_REQUIRED, *(name for name in _OPTIONAL if f"{name}.safetensors" in state["files"])]


def _verified_state(folder: Path, *, hashes: bool = False) -> dict[str, Any]:
    state = read_json(folder / "state.json")
    if (
        not isinstance(state, dict)
        or state.get("format") != CHECKPOINT_FORMAT
        or not isinstance(state.get("files"), dict)
    ):
        raise DataError(f"{folder}: expected a checkpoint of format {CHECKPOINT_FORMAT}")
    for name in _tensor_files(state):
        file = folder / f"{name}.safetensors"
        expected = state["files"].get(file.name, {})
        if not file.is_file() or file.stat().st_size != expected.get("bytes"):
            raise DataError(f"{file}: missing or not of the recorded size; the checkpoint is damaged")
        if hashes and file_sha256(file) != expected.get("sha256"):
            raise DataError(f"{file}: content does not match its recorded hash; the checkpoint is damaged")
    return state


def _order(match: re.Match[str] | None) -> tuple[int, int]:
    """Number among all that were written, then step."""
    assert match is not None
    return int(match[2]), int(match[1])


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").contiguous()


def _remove(path: Path) -> None:
    """Remove a checkpoint so that a kill half-way leaves nothing that looks like one."""
    hidden = path.with_name(f".{path.name}.removed")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def random_state() -> dict[str, Tensor]:
    """The random states of this process: torch, its GPU, numpy and Python, as tensors."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    python_version, python_keys, python_gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_rest": torch.tensor([float(position), float(has_gauss), float(gauss)], dtype=torch.float64),
        "python": torch.tensor([python_version, *python_keys], dtype=torch.int64),
        "python_rest": torch.tensor([] if python_gauss is None else [python_gauss], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Put the random states of this process back as `random_state` gave them."""
    torch.set_rng_state(state["torch"])
    position, has_gauss, gauss = state["numpy_rest"].tolist()
    np.random.set_state(("MT19937", state["numpy"].numpy().astype(np.uint32), int(position), int(has_gauss), gauss))
    version, *keys = state["python"].tolist()
    rest = state["python_rest"].tolist()
    random.setstate((version, tuple(keys), rest[0] if rest else None))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
