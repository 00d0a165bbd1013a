"""The folder of one run: what is in it, whether it can be used, and the model directories it leaves behind.

RUN/
  config.yaml, environment.json, vocab.json, samples.json   what the run is
  log.jsonl, tensorboard/                                   how it goes
  predictions/                                              captions of the validation split, epoch by epoch
  checkpoints/                                              to resume from
  best/, last/                                              model directories: best validation CIDEr, and the newest
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xlan import __version__
from xlan.errors import DataError, TrainingError
from xlan.files import open_locked, remove_leftovers
from xlan.model.spec import Spec
from xlan.pretrained import save_pretrained
from xlan.text.vocab import Vocabulary
from xlan.training.checkpoint import Checkpoint, CheckpointFolder, load_checkpoint
from xlan.training.distributed import World


class RunFolder:
    """Paths of a run.

    Args:
        path: the folder; it need not exist yet.
        keep: how many checkpoints are kept.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: int = 2) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.vocabulary = self.path / "vocab.json"
        self.samples = self.path / "samples.json"
        self.log = self.path / "log.jsonl"
        self.predictions = self.path / "predictions"
        self.best = self.path / "best"
        self.last = self.path / "last"
        self.checkpoints = CheckpointFolder(self.path / "checkpoints", keep=keep)
        self.damaged: dict[Path, str] = {}

    def prediction_file(self, split: str, epoch: int) -> Path:
        """Captions of a split after `epoch`, counted from 0."""
        return self.predictions / f"{split}-epoch-{epoch + 1:03d}.json"

    def find_checkpoint(self, resume_from: str | None) -> Checkpoint | None:
        """The checkpoint to resume from, or None to start.

        Args:
            resume_from: None refuses a folder that holds a run; `auto` takes the newest undamaged checkpoint, if any,
                and notes the damaged ones it skipped in `damaged`; anything else is the path of a checkpoint.

        Raises:
            TrainingError: the folder holds a run and `resume_from` is None or a checkpoint of another run, or all its
                checkpoints are damaged.
            DataError: the checkpoint named is damaged.
        """
        if resume_from is None:
            if self.config.exists():
                raise TrainingError(
                    f"{self.path}: already holds a run; resume it (--resume auto) or choose another folder (output=…)"
                )
            return None
        if resume_from != "auto":
            if self.config.exists() and Path(resume_from).resolve().parent != self.checkpoints.folder.resolve():
                raise TrainingError(
                    f"{self.path}: already holds a run, and {resume_from} is a checkpoint of another one; choose "
                    "another folder (output=…), or resume the run that is there (--resume auto)"
                )
            return load_checkpoint(resume_from)
        for path in self.checkpoints.names():
            try:
                return load_checkpoint(path)
            except DataError as error:
                self.damaged[path] = str(error)
        if self.damaged:
            raise TrainingError(
                f"{self.path}: all its checkpoints are damaged ({next(iter(self.damaged.values()))}); start in another "
                f"folder (output=…)"
            )
        return None

    @contextlib.contextmanager
    def claimed(self, world: World) -> Iterator[None]:
        """Inside, the folder exists, can be written and is closed to other runs; every process takes part.

        Temporary files of killed writers are removed, and damaged checkpoints are renamed so that none of them counts
        as the newest again.

        Raises:
            TrainingError: it cannot be written, or another run is using it.
        """
        lock: int | None = None
        problem: TrainingError | None = None
        if world.is_main:
            try:
                self.predictions.mkdir(parents=True, exist_ok=True)
                lock = open_locked(self.path / ".lock")
                for folder in (self.path, self.predictions):
                    remove_leftovers(folder)
                for path in self.damaged:
                    path.rename(path.with_name(f"damaged-{path.name}"))
            except BlockingIOError:
                problem = TrainingError(f"{self.path}: another run is using this folder; choose another (output=…)")
            except OSError as error:
                reason = error.strerror or error
                problem = TrainingError(f"{self.path}: cannot be written: {reason}; choose another folder (output=…)")
        problem = world.broadcast(problem)
        try:
            if problem is not None:
                raise problem
            yield
        finally:
            if lock is not None:
                os.close(lock)


def save_model(
    directory: Path,
    tensors: Mapping[str, Any],
    spec: Spec,
    vocabulary: Vocabulary,
    *,
    card: str,
    world: World,
    features: Mapping[str, Any],
) -> None:
    """Write a model directory from whole weights; every process takes part.

    `features` describes the extractor behind its training features (`FeatureStore.extractor`).

    Raises:
        TrainingError: it could not be written (on every process).
    """
    problem: TrainingError | None = None
    if world.is_main:
        try:
            save_pretrained(directory, spec, tensors, vocabulary, card=card, features=features)
        except OSError as error:
            problem = TrainingError(
                f"{directory}: the model could not be written: {error.strerror or error}; make room or fix "
                "permissions, then continue with --resume auto"
            )
    problem = world.broadcast(problem)
    if problem is not None:
        raise problem


def model_card(
    *,
    name: str,
    how: str,
    epochs: int,
    split: str,
    scores: Mapping[str, float],
    config: Mapping[str, Any],
    vocabulary: Vocabulary,
) -> str:
    """The text that goes with a trained model: what it is, how good, and the configuration that made it."""
    rows = "".join(f"| {metric} | {value:.4f} |\n" for metric, value in scores.items())
    table = f"\nOn the validation split `{split}`:\n\n| metric | score |\n|---|---|\n{rows}" if rows else ""
    return (
        f"# {name}\n\nTrained with xlan {__version__}: {how}, {epochs} epoch(s).\n\n"
        f"Vocabulary: {len(vocabulary):,} entries, {vocabulary.origin or 'of unknown origin'}.\n{table}\n"
        f"## Configuration\n\n```json\n{json.dumps(config, indent=2)}\n```\n"
    )


def vocabulary_hash(vocabulary: Vocabulary) -> str:
    """Two vocabularies with the same hash give every word the same id."""
    special = vocabulary.special
    text = json.dumps([vocabulary.words, special.pad, special.bos, special.eos, special.unk])
    return hashlib.sha256(text.encode()).hexdigest()
