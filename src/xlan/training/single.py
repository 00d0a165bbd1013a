"""Runs of one process that keep everything in one file: what the vision networks are trained with.

    checkpoint.safetensors   weights, averaged weights, optimiser; everything else as text in the header
    log.jsonl                one line per log interval and per evaluation

The file is replaced as a whole, so a killed run continues exactly from its last checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from xlan.errors import TrainingError
from xlan.files import atomic_path, read_json_lines, write_text
from xlan.training.average import AveragedWeights
from xlan.training.stop import Stopped, StopRequest

Batch = TypeVar("Batch", contravariant=True)
OnLog = Callable[[dict[str, Any]], None]
_ADAM = ("step", "exp_avg", "exp_avg_sq")


def save_run(
    path: Path,
    parameters: Iterable[tuple[str, nn.Parameter]],
    average: AveragedWeights,
    optimizer: torch.optim.Optimizer,
    header: Mapping[str, str],
) -> None:
    """Write weights, their average and the optimiser's state (of the Adam family) as one file, atomically."""
    tensors = {}
    for name, tensor in parameters:
        tensors[f"model.{name}"] = tensor.detach()
        tensors[f"average.{name}"] = average.tensors[name]
        for key, value in optimizer.state.get(tensor, {}).items():
            tensors[f"adam.{key}.{name}"] = value
    with atomic_path(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=dict(header))


def load_run(
    path: Path,
    parameters: Iterable[tuple[str, nn.Parameter]],
    average: AveragedWeights,
    optimizer: torch.optim.Optimizer,
    check: Callable[[dict[str, str]], None],
    *,
    otherwise: str,
) -> dict[str, str]:
    """Put back what `save_run` wrote and return the header, once `check` has accepted it.

    `otherwise` says what to do when the file holds other weights than the run trains.

    Raises:
        TrainingError: the file is damaged or holds other weights, or `check` raised it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            check(header)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        named = dict(parameters)
        if {f"model.{name}" for name in named} != {name for name in tensors if name.startswith("model.")}:
            raise TrainingError(f"{path}: was started with other heads; {otherwise}")
        with torch.no_grad():
            for name, tensor in named.items():
                tensor.copy_(tensors[f"model.{name}"])
                average.tensors[name].copy_(tensors[f"average.{name}"])
                if f"adam.step.{name}" in tensors:
                    state = {key: tensors[f"adam.{key}.{name}"] for key in _ADAM}
                    optimizer.state[tensor] = {
                        key: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
                        for key, value in state.items()
                    }
        return header
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise TrainingError(f"{path}: cannot be resumed: {error}") from None


def check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run with other settings, naming those that differ."""
    changed = [f"{key} was {before.get(key)}, is {now[key]}" for key in now if before.get(key) != now[key]]
    if changed:
        raise TrainingError(f"{path}: was started with other settings ({'; '.join(changed)}); choose another folder")


def rate_groups(
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    is_head: Callable[[str], bool],
    rate: float,
    head_rate: float,
    weight_decay: float,
) -> list[dict[str, Any]]:
    """Groups for an optimiser: heads learn at a rate of their own; matrices and filters decay, the rest does not."""
    named, groups = list(parameters), []
    for head in (False, True):
        for decayed in (False, True):
            chosen = [tensor for name, tensor in named if is_head(name) == head and (tensor.ndim > 1) == decayed]
            peak = head_rate if head else rate
            if chosen:
                decay = weight_decay if decayed else 0.0
                groups.append({"params": chosen, "peak": peak, "lr": peak, "weight_decay": decay})
    return groups


class SteppedRun(Protocol[Batch]):
    """A run that `train_epochs` drives.

    Attributes:
        step: steps that are done.
        total_steps: of the whole run.
        window: losses since the last line of the log.
        lines: the log.
    """

    step: int
    total_steps: int
    window: Window
    lines: RunLog

    def train_step(self, batch: Batch) -> dict[str, float]:
        """One step; returns its losses."""

    def finish_epoch(self, stop: StopRequest) -> dict[str, float]:
        """Evaluate, write what others read, and return the scores."""

    def save(self) -> None:
        """Write a checkpoint."""


def train_epochs(
    run: SteppedRun[Batch],
    batches: Iterator[Batch],
    *,
    per_epoch: int,
    batch_size: int,
    checkpoint_minutes: float,
    log_every: int,
    on_log: OnLog | None,
    until_step: int | None,
    stop: StopRequest | None,
) -> bool:
    """Train to the end (or to `until_step`), evaluating after every epoch; True when everything is done.

    A request to stop ends it early and saves, as an exception does. The evaluation of a finished epoch that was cut
    short is made up for when the run continues.
    """

    def log(record: Mapping[str, Any]) -> None:
        line = {"step": run.step, "of": run.total_steps, **record}
        run.lines.add(line)
        if on_log is not None:
            on_log(line)

    last = run.total_steps if until_step is None else min(until_step, run.total_steps)
    stop = stop or StopRequest()
    saved = began = time.monotonic()
    try:
        if run.step and run.step % per_epoch == 0 and not run.lines.evaluated(run.step):
            log({"epoch": run.step // per_epoch, **run.finish_epoch(stop)})
        for batch in batches:
            if run.step >= last or stop.signal is not None:
                break
            run.window.add(run.train_step(batch))
            if run.step % log_every == 0:
                speed = run.window.steps * batch_size / (time.monotonic() - began)
                log({**run.window.means(), "images_per_s": round(speed, 1)})
                run.window, began = Window(), time.monotonic()
            if run.step % per_epoch == 0:
                run.save()
                log({"epoch": run.step // per_epoch, **run.finish_epoch(stop)})
                began = time.monotonic()
            if time.monotonic() - saved > 60 * checkpoint_minutes:
                run.save()
                saved = time.monotonic()
    except Stopped:
        pass
    finally:
        batches.close()  # type: ignore[attr-defined]
        run.save()
    return run.step >= run.total_steps and run.lines.evaluated(run.step)


class RunLog:
    """The lines of `log.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def evaluated(self, step: int) -> bool:
        """Whether the evaluation after a step is logged."""
        return self.path.exists() and any(
            "epoch" in record and record.get("step") == step for record in read_json_lines(self.path)
        )

    def trim(self, step: int) -> None:
        """Drop what a killed run logged after its last checkpoint; it will be logged again."""
        if self.path.exists():
            kept = [record for record in read_json_lines(self.path) if record.get("step", 0) <= step]
            write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))


@dataclass
class Window:
    """Sums over the steps since the last line of the log; kept in checkpoints, so that a kill changes no mean.

    Attributes:
        steps: how many.
        sums: of each loss, by name.
    """

    steps: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, losses: Mapping[str, float]) -> None:
        """Take in one step."""
        self.steps += 1
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """Means as the log has them."""
        return {name: round(value / self.steps, 4) for name, value in self.sums.items()}

    def to_json(self) -> str:
        """As text for a checkpoint."""
        return json.dumps({"steps": self.steps, **self.sums})

    @classmethod
    def from_json(cls, text: str) -> Window:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        return cls(int(values.pop("steps", 0)), {name: float(value) for name, value in values.items()})
