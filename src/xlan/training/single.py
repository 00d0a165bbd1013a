"""Runs of one process that keep everything in one file: what the vision networks are trained with.

    folder/
      checkpoint.safetensors   weights, averaged weights, optimiser; settings, step and log window in the header
      log.jsonl                one line per log interval and per evaluation

The checkpoint is replaced as a whole, so a killed run continues exactly from its last one.
"""

from __future__ import annotations

import copy
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from xlan.errors import TrainingError
from xlan.files import read_json_lines, remove_leftovers, write_text
from xlan.training.average import AveragedWeights
from xlan.training.schedule import Cosine
from xlan.training.stop import Stopped, StopRequest
from xlan.weights import tensor_file

Model = TypeVar("Model", bound=nn.Module)
Batch = TypeVar("Batch")
Batches = TypeVar("Batches", covariant=True)
OnLog = Callable[[dict[str, Any]], None]
CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
_ADAM = ("step", "exp_avg", "exp_avg_sq")


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


class TrainingBatches(Protocol[Batches]):
    """Where a run gets its batches from."""

    def steps_per_epoch(self, batch: int) -> int:
        """How many steps a pass over the pictures takes."""

    def training(self, *, batch: int, first_step: int) -> Iterator[Batches]:
        """Endless batches, from step `first_step` on."""


class SingleRun(ABC, Generic[Model, Batch]):
    """A run in a folder: a new one, or one that continues exactly from its last checkpoint.

    It learns with AdamW, warm-up and then cosine to zero. A subclass computes the losses, evaluates, and sets what
    `header` and `check_header` need before it calls `super().__init__`.

    Args:
        model: what to train: its parameters that require gradients.
        batches: what to train it on.
        folder: see the top of this file.
        batch: pictures per step.
        total_steps: of the whole run.
        is_head: whether a parameter, by name, belongs to the heads.
        rate: peak learning rate of all but the heads.
        head_rate: peak learning rate of the heads.
        weight_decay: of matrices and filters.
        warmup: steps until the peak.
        average: decay of the averaged weights per step.
        clip: largest norm of a gradient.
        rate_setting: what to lower when the loss explodes, with its value.
    """

    same_heads: ClassVar[str]  # what to do when the checkpoint has other heads

    def __init__(
        self,
        model: Model,
        batches: TrainingBatches[Batch],
        *,
        folder: str | os.PathLike[str],
        batch: int,
        total_steps: int,
        is_head: Callable[[str], bool],
        rate: float,
        head_rate: float,
        weight_decay: float,
        warmup: int,
        average: float,
        clip: float,
        rate_setting: str,
    ) -> None:
        self.model, self.folder, self.step, self.total_steps = model, Path(folder), 0, total_steps
        self._batches, self._batch, self._clip, self._rate_setting = batches, batch, clip, rate_setting
        self._average = AveragedWeights(self._trained(), average)
        self._schedule = Cosine(1.0, total=total_steps, warmup=warmup)
        groups = rate_groups(
            self._trained(), is_head=is_head, rate=rate, head_rate=head_rate, weight_decay=weight_decay
        )
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
        self._updating = False  # weights, average and step do not belong together
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        self._window, self._log = Window(), RunLog(self.folder / LOG)
        self.resumed = (self.folder / CHECKPOINT).exists()
        if self.resumed:
            self._resume()

    @abstractmethod
    def losses(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and the values to log, by name."""

    @abstractmethod
    def finish_epoch(self, stop: StopRequest) -> dict[str, float]:
        """Evaluate, write what others read, and return the scores."""

    @abstractmethod
    def header(self) -> dict[str, str]:
        """What a checkpoint says of the run, besides its state."""

    @abstractmethod
    def check_header(self, header: Mapping[str, str]) -> None:
        """Refuse, with `TrainingError`, to continue a run that was started otherwise."""

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, tensor) for name, tensor in self.model.named_parameters() if tensor.requires_grad)

    def run(
        self,
        *,
        checkpoint_minutes: float = 5.0,
        log_every: int = 50,
        on_log: OnLog | None = None,
        until_step: int | None = None,
        stop: StopRequest | None = None,
    ) -> bool:
        """Train to the end (or to `until_step`), evaluating after every epoch and at the end; True when all is done.

        A request to stop ends it early and saves, as an exception does, except in the middle of an update: the last
        checkpoint then stays. The evaluation of a finished epoch that was cut short is made up for when the run
        continues.
        """
        per_epoch = self._batches.steps_per_epoch(self._batch)

        def due() -> bool:
            return self.step > 0 and (self.step % per_epoch == 0 or self.step == self.total_steps)

        def log(record: Mapping[str, Any]) -> None:
            line = {"step": self.step, "of": self.total_steps, **record}
            self._log.add(line)
            if on_log is not None:
                on_log(line)

        def finish_epoch(stop: StopRequest) -> None:
            done = self.step // per_epoch if self.step % per_epoch == 0 else round(self.step / per_epoch, 3)
            log({"epoch": done, **self.finish_epoch(stop)})

        batches = self._batches.training(batch=self._batch, first_step=self.step)
        last = self.total_steps if until_step is None else min(until_step, self.total_steps)
        stop = stop or StopRequest()
        saved = began = time.monotonic()
        try:
            if due() and not self._log.evaluated(self.step):
                finish_epoch(stop)
            for batch in batches:
                if self.step >= last or stop.signal is not None:
                    break
                self._window.add(self.train_step(batch))
                if self.step % log_every == 0:
                    speed = self._window.steps * self._batch / (time.monotonic() - began)
                    log({**self._window.means(), "images_per_s": round(speed, 1)})
                    self._window, began = Window(), time.monotonic()
                if due():
                    self.save()
                    finish_epoch(stop)
                    began = time.monotonic()
                if time.monotonic() - saved > 60 * checkpoint_minutes:
                    self.save()
                    saved = time.monotonic()
        except Stopped:
            pass
        finally:
            batches.close()  # type: ignore[attr-defined]
            if not self._updating:
                self.save()
        return self.step >= self.total_steps and self._log.evaluated(self.step)

    def train_step(self, batch: Batch) -> dict[str, float]:
        """One step of the optimiser; returns the losses."""
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * self._schedule.rate(self.step)
        loss, parts = self.losses(batch)
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss is {loss.item()} at step {self.step}; lower {self._rate_setting}")
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([tensor for _, tensor in self._trained()], self._clip)
        self._updating = True
        self._optimizer.step()
        self.step += 1
        self._average.update(self.step)
        self._updating = False
        return {name: value.item() for name, value in parts.items()}

    def averaged(self) -> Model:
        """A copy of the model with averaged weights, for evaluation."""
        model: Model = copy.deepcopy(self.model).eval()
        model.load_state_dict({**model.state_dict(), **self._average.tensors})
        return model

    def save(self) -> None:
        """Write a checkpoint, atomically."""
        tensors = {}
        for name, tensor in self._trained():
            tensors[f"model.{name}"] = tensor.detach()
            tensors[f"average.{name}"] = self._average.tensors[name]
            for key, value in self._optimizer.state.get(tensor, {}).items():
                tensors[f"adam.{key}.{name}"] = value
        header = {**self.header(), "step": str(self.step), "window": self._window.to_json()}
        with tensor_file(self.folder / CHECKPOINT) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=header)

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                self.check_header(header)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            named = dict(self._trained())
            if {f"model.{name}" for name in named} != {name for name in tensors if name.startswith("model.")}:
                raise TrainingError(f"{path}: was started with other heads; {self.same_heads}")
            with torch.no_grad():
                for name, tensor in named.items():
                    tensor.copy_(tensors[f"model.{name}"])
                    self._average.tensors[name].copy_(tensors[f"average.{name}"])
                    if f"adam.step.{name}" in tensors:
                        state = {key: tensors[f"adam.{key}.{name}"] for key in _ADAM}
                        self._optimizer.state[tensor] = {
                            key: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
                            for key, value in state.items()
                        }
            self.step, self._window = int(header["step"]), Window.from_json(header.get("window", "{}"))
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise TrainingError(f"{path}: cannot be resumed: {error}") from None
        self._log.trim(self.step)


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
