"""The runs of a study: which there are, which are finished, and how the others are trained.

Every run is a child process, `xlan train … --resume auto` and then `xlan predict …`, so that a run which dies takes no
other with it, and one that was stopped resumes. A finished run is recognised by its files and not repeated.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from statistics import mean
from typing import Any

from xlan.children import start_child
from xlan.config import changed_keys, dump_config, load_config
from xlan.config.schema import RESUME_MAY_CHANGE, RunConfig
from xlan.data.captions import load_captions
from xlan.errors import DataError, TrainingError, one_line
from xlan.files import read_json_lines, write_text
from xlan.studies.schema import StudyConfig, overrides, then_overrides
from xlan.threads import cores

# What does not decide the result of a run. Training may be resumed with other epochs; a row has those of the study.
_NO_MATTER = (
    *(key for key in RESUME_MAY_CHANGE if key not in ("train.epochs", "train.max_steps", "evaluation")),
    "evaluation.batch_size",
    "evaluation.metrics",
)


@dataclass(frozen=True)
class Run:
    """One training of one row.

    Attributes:
        row: the row it belongs to; the second stage has rows of its own, with "+" at the end of their names.
        seed: of everything random.
        folder: of the training run.
        train: the command that trains it.
        predict: the command that captions the split to be scored, after training.
        predictions: what `predict` writes.
    """

    row: str
    seed: int
    folder: Path
    train: tuple[str, ...]
    predict: tuple[str, ...]
    predictions: Path

    @property
    def name(self) -> str:
        """Row and seed."""
        return f"{self.row}, seed {self.seed}"

    @property
    def captions(self) -> str:
        """The file with the captions of the split to be scored."""
        return self.predict[self.predict.index("--captions") + 1]

    @property
    def said(self) -> Path:
        """Where the command that made the predictions is kept."""
        return self.predictions.with_suffix(".command.txt")

    def is_done(self) -> bool:
        """Whether its captions are written, which happens after training has ended well, and as the study asks now."""
        if not self.predictions.is_file():
            return False
        return not self.said.is_file() or self.said.read_text(encoding="utf-8").strip() == shown(self.predict)

    def evaluations(self) -> list[dict[str, float]]:
        """Scores on the validation split, epoch by epoch; empty before the first."""
        return [record["scores"] for record in self._records() if record.get("kind") == "evaluation"]

    def losses(self) -> dict[int, float]:
        """Cross-entropy per word in training, by step; empty where the log has none, as in self-critical training."""
        steps = [record for record in self._records() if record.get("kind") == "step" and "reward" not in record]
        return {record["step"]: record["loss"] for record in steps}

    def _records(self) -> list[dict[str, Any]]:
        path = self.folder / "log.jsonl"
        return list(read_json_lines(path)) if path.is_file() else []


def first_stage(study: StudyConfig) -> list[Run]:
    """Every run of the rows, seed by seed, so that all rows have one result before any has a second."""
    most = max(len(row.seeds or study.seeds) for row in study.rows.values())
    runs = []
    for place in range(most):
        for name, row in study.rows.items():
            seeds = row.seeds or study.seeds
            if place < len(seeds):
                folder = Path(study.output) / f"{name}-{seeds[place]}"
                changes = overrides(study, name, folder, seed=seeds[place])
                runs.append(_run(study, name, seeds[place], folder, study.recipe, changes))
    return runs


def second_stage(study: StudyConfig, first: Sequence[Run]) -> list[Run]:
    """The runs of `then` that can begin: those whose first stage is finished, of the rows it names.

    The best rows are known, and any of them can begin, when all of the first stage is finished. Empty without `then`.
    """
    if study.then is None:
        return []
    finished = [run for run in first if run.is_done()]
    if study.then.best is not None and len(finished) < len(first):
        return []
    rows = best_rows(finished, study.then.best) if study.then.best is not None else study.then.rows
    runs = []
    for run in finished:
        if run.row in rows and run.seed in (study.then.seeds or (run.seed,)):
            folder = Path(study.output) / f"{run.row}+-{run.seed}"
            changes = then_overrides(study, run.row, folder, init=run.folder / "best", seed=run.seed)
            runs.append(_run(study, f"{run.row}+", run.seed, folder, study.then.recipe, changes))
    return runs


def check_split(runs: Sequence[Run], split: str) -> None:
    """Refuse a split that the captions of a run do not have, before it is trained for nothing.

    A captions file that does not exist yet is left to training, which says so at once.

    Raises:
        DataError: the split has no images; the message lists those there are.
    """
    for path in dict.fromkeys(run.captions for run in runs if not run.is_done()):
        if Path(path).exists():
            load_captions(path).split(split)


def best_rows(runs: Sequence[Run], count: int) -> list[str]:
    """The rows with the highest mean over seeds of the best validation CIDEr.

    Raises:
        DataError: a run has no validation scores.
    """
    values: dict[str, list[float]] = {}
    for run in runs:
        scores = [record["CIDEr"] for record in run.evaluations() if "CIDEr" in record]
        if not scores:
            raise DataError(f"{run.folder}: has no validation CIDEr to choose by; the recipe must compute it")
        values.setdefault(run.row, []).append(max(scores))
    return sorted(values, key=lambda row: -mean(values[row]))[:count]


def _run(study: StudyConfig, row: str, seed: int, folder: Path, recipe: str, changes: list[str]) -> Run:
    config = load_config(recipe, changes)
    scoring, data = study.scoring, config.data
    assert data.captions is not None, "checked when the study was read"
    assert data.features is not None, "checked when the study was read"
    _check_same(folder, config)
    predictions = folder / f"{scoring.split}.json"
    command = (sys.executable, "-m", "xlan")
    files = ("--captions", data.captions, "--features", data.features, "-o", str(predictions))
    how = ("--split", scoring.split, "--beams", str(scoring.beams), "--max-length", str(scoring.max_length))
    limit = ("--max-regions", str(data.max_regions)) if data.max_regions is not None else ()
    skip = ("--skip-missing",) if data.missing == "skip" else ()
    return Run(
        row=row,
        seed=seed,
        folder=folder,
        train=(*command, "train", recipe, *changes, "--resume", "auto"),
        predict=(*command, "predict", str(folder / "best"), *files, *how, *limit, *skip),
        predictions=predictions,
    )


def _check_same(folder: Path, config: RunConfig) -> None:
    """Refuse a folder that holds a run of other settings: its results would appear under the wrong row."""
    if not (folder / "config.yaml").is_file():
        return
    before = dump_config(load_config(folder / "config.yaml"))
    if changed := changed_keys(before, dump_config(config), free=_NO_MATTER):
        raise DataError(
            f"{folder}: holds a run with other settings ({', '.join(changed[:5])}); remove it, or give the study "
            "another output"
        )


def shown(command: Sequence[str]) -> str:
    """A command as a user types it."""
    return shlex.join(["xlan", *command[3:]])


@dataclass(frozen=True)
class Place:
    """Where one run at a time is carried out.

    Attributes:
        name: what is told of it, such as "GPU 0".
        environment: the variables that keep a child process to it.
    """

    name: str
    environment: dict[str, str]


def gpu_places(names: Sequence[str]) -> list[Place]:
    """One place on each GPU, by its name for CUDA_VISIBLE_DEVICES."""
    return [Place(f"GPU {name}", {"CUDA_VISIBLE_DEVICES": name}) for name in names]


def cpu_places(count: int) -> list[Place]:
    """Places that share the processor: each has an equal part of its cores, and at least one."""
    if count == 1:
        return [Place("", {})]
    threads = max(1, cores() // count)
    return [Place(f"{threads} of {cores()} cores", {"OMP_NUM_THREADS": str(threads)})] * count


def carry_out(runs: Sequence[Run], *, logs: Path, places: Sequence[Place], tell: Callable[[str], None]) -> None:
    """Train and caption every run that is not done, one at a time in each place.

    When it is interrupted, the runs are asked to save and end, and waited for.

    Args:
        runs: in the order in which they are begun.
        logs: folder for what the child processes print.
        places: where to train, at least one.
        tell: called with a line when something begins or ends.

    Raises:
        TrainingError: runs failed, after the others were carried out; the message names their logs.
    """
    todo = [run for run in runs if not run.is_done()]
    if len(todo) < len(runs):
        tell(f"{len(runs) - len(todo)} of {len(runs)} runs are finished already")
    logs.mkdir(parents=True, exist_ok=True)
    free: Queue[Place] = Queue()
    for place in places:
        free.put(place)
    began, done, failed = time.monotonic(), 0, []
    children = _Children()

    def one(run: Run) -> bool:
        place = free.get()
        try:
            tell(f"{run.name}: training" + (f" on {place.name}" if place.name else ""))
            if not all(children.call(command, _log_of(run, logs), place) for command in (run.train, run.predict)):
                return False
            write_text(run.said, shown(run.predict) + "\n")
            return True
        finally:
            free.put(place)

    with ThreadPoolExecutor(len(places)) as pool:
        futures = [(run, pool.submit(one, run)) for run in todo]
        try:
            for run, future in futures:
                if not future.result():
                    failed.append(run)
                    log = _log_of(run, logs)
                    tell(f"{run.name}: failed, see {log}: {_last_line(log)}")
                    continue
                done += 1
                left = (time.monotonic() - began) / done * (len(todo) - done - len(failed))
                tell(f"{run.name}: finished; {len(todo) - done - len(failed)} left, about {_duration(left)}")
        except BaseException:
            for _, future in futures:
                future.cancel()
            tell("stopping when the runs have saved; the same command continues")
            children.stop()
            raise
    if failed:
        names = ", ".join(f"{run.name} ({_log_of(run, logs)})" for run in failed[:5])
        raise TrainingError(f"{len(failed)} of {len(runs)} runs failed: {names}; the same command tries them again")


def _log_of(run: Run, logs: Path) -> Path:
    return logs / f"{run.folder.name}.log"


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), ""))


class _Children:
    """The processes that train and caption, each waited for in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def call(self, command: Sequence[str], log: Path, place: Place) -> bool:
        """Run a command to its end; whether it ended well."""
        with log.open("a", encoding="utf-8") as file:
            with self._lock:
                if self._stopped:
                    return False
                file.write(f"$ {shown(command)}\n")
                file.flush()
                environment = {**os.environ, **place.environment}
                child = start_child(command, environment, file)
                self._running.add(child)
            with child:
                status = child.wait()
        with self._lock:
            self._running.discard(child)
        return status == 0

    def stop(self) -> None:
        """Ask those that run to save and end, and start no more."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                child.terminate()


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
