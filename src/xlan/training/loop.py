"""The one loop: fetch, step, clip, update, log, save, evaluate. It knows neither stage nor configuration.

Order within an epoch: steps; a checkpoint; evaluation; the best model kept when the score rose; a second checkpoint
that remembers the scores. A kill during evaluation therefore loses the evaluation and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from xlan.errors import DecodingError, TrainingError
from xlan.training.average import AveragedWeights
from xlan.training.checkpoint import Checkpoint, CheckpointFolder, random_state, restore_random_state
from xlan.training.distributed import World
from xlan.training.logs import RunLog
from xlan.training.optim import clip_gradients, set_rate
from xlan.training.schedule import Schedule
from xlan.training.scoring import Scores
from xlan.training.state import load_model_tensors, load_optimizer_tensors, model_tensors, optimizer_tensors
from xlan.training.steps import Batch, StepOutput
from xlan.training.stop import StopRequest


class Loader(Protocol):
    """Batches of one process, in an order that follows from (seed, epoch, rank)."""

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Choose the epoch, and where in it to begin."""

    def __iter__(self) -> Iterator[Any]:
        """The batches from `start_batch` on."""


class Watch(Protocol):
    """Looks at every step's values and says when something goes wrong."""

    def update(self, values: Mapping[str, float]) -> Sequence[str]:
        """Take in one step's means; returns new warnings."""

    def state(self) -> dict[str, Any]:
        """What must be remembered to continue, as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""


@dataclass
class Position:
    """Where a run is: everything the loop remembers, as JSON values.

    Attributes:
        step: updates made.
        epoch: current epoch, from 0.
        batch: batches of this epoch that are done.
        best: best validation score, None before the first evaluation.
        best_epoch: epoch of `best`.
        since_best: evaluations since `best`.
        unevaluated: the epoch before `epoch` is done, but its evaluation is not.
        seconds: time spent training, over all restarts.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float | None = None
    best_epoch: int = -1
    since_best: int = 0
    unevaluated: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Plain numbers that steer the loop.

    Attributes:
        epochs: epochs in all.
        batches: batches per epoch.
        max_steps: stop after this many updates, or None.
        clip_by: `norm`, `value` or `none`.
        clip_at: where to clip.
        evaluate_every: epochs between evaluations.
        early_stop: evaluations without a better score before stopping, or None.
        save_every: steps between checkpoints within an epoch, or None.
        log_every: steps per log record.
    """

    epochs: int
    batches: int
    max_steps: int | None
    clip_by: str
    clip_at: float
    evaluate_every: int
    early_stop: int | None
    save_every: int | None
    log_every: int


@dataclass
class Job:
    """Everything one run is made of.

    Attributes:
        model: the model, wrapped for the processes at hand.
        optimizer: the optimiser as accelerate prepared it.
        accelerator: moves, scales and synchronises.
        world: the processes.
        loader: training batches.
        step: step function: (batch, epoch, step) → StepOutput.
        schedule: learning rate.
        evaluate: (epoch) → Scores; the same on every process.
        keep_best: called on every process when an evaluation was the best so far.
        checkpoints: where checkpoints go.
        log: where records go.
        plan: the numbers.
        stop: whether the run was asked to end.
        watch: looks at every step's values, or None.
        average: averaged weights, which are evaluated and kept in place of the last ones, or None.
        record: what else belongs into every checkpoint (config, versions, vocabulary hash).
        position: where the run is.
        window: sums since the last line of the log.
    """

    model: nn.Module
    optimizer: Any
    accelerator: Any
    world: World
    loader: Loader
    step: Callable[[Batch, int, int], StepOutput]
    schedule: Schedule
    evaluate: Callable[[int], Scores]
    keep_best: Callable[[Mapping[str, float], int], None]
    checkpoints: CheckpointFolder
    log: RunLog
    plan: Plan
    stop: StopRequest
    watch: Watch | None
    average: AveragedWeights | None
    record: Mapping[str, Any]
    position: Position = field(default_factory=Position)
    window: Window = field(default_factory=lambda: Window())

    def final_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are evaluated and kept: the averaged ones if there are any."""
        return nullcontext() if self.average is None else self.average.applied()


def train(job: Job) -> str:
    """Train until the epochs are done, the run is asked to stop, or it stops by itself; returns why, in words.

    Raises:
        TrainingError: the loss is not finite, or a checkpoint cannot be written.
    """
    position, plan = job.position, job.plan
    job.model.train()
    while True:
        if position.unevaluated:
            _evaluate(job)
            save(job)
        if plan.early_stop is not None and position.since_best >= plan.early_stop:
            return f"the validation score has not risen for {position.since_best} evaluations"
        if position.epoch >= plan.epochs:
            return f"all {plan.epochs} epochs are done"
        if _at_limit(job):
            return f"all {plan.max_steps} steps are done"
        if not _train_epoch(job):
            save(job)
            if job.stop.wanted_anywhere(job.world):
                return f"{job.stop.reason} after step {position.step}"
            continue
        position.epoch, position.batch = position.epoch + 1, 0
        done = position.epoch >= plan.epochs
        position.unevaluated = done or position.epoch % plan.evaluate_every == 0
        save(job)


def _train_epoch(job: Job) -> bool:
    """Take the epoch's remaining steps; False when it was cut short."""
    position, plan, window = job.position, job.plan, job.window
    job.loader.set_epoch(position.epoch, position.batch)
    batches = iter(job.loader)
    with job.log.epoch(position.epoch, plan.epochs, done=position.batch, total=plan.batches) as display:
        while position.batch < plan.batches:
            if job.stop.wanted_anywhere(job.world) or _at_limit(job):
                return False
            started = time.perf_counter()
            output, norm, rate = _take_step(job, next(batches))
            position.step, position.batch = position.step + 1, position.batch + 1
            elapsed = time.perf_counter() - started
            position.seconds += elapsed
            window.add(output, norm=norm, seconds=elapsed)
            _watch(job, output)
            display.advance(window.text)
            if position.step % plan.log_every == 0 or position.batch == plan.batches:
                means = window.flush(job.world)
                spent = round(position.seconds, 3)
                job.log.write("step", step=position.step, epoch=position.epoch, lr=rate, seconds=spent, **means)
            if plan.save_every and position.step % plan.save_every == 0 and position.batch < plan.batches:
                save(job)
    return True


def _take_step(job: Job, batch: Any) -> tuple[StepOutput, float, float]:
    """One update; returns what the step function said, the gradient norm and the rate used."""
    position, plan = job.position, job.plan
    batch = batch.to(job.world.device, non_blocking=True)
    rate = job.schedule.rate(position.step)
    set_rate(job.optimizer, rate)
    try:
        with job.accelerator.autocast():
            output = job.step(batch, position.epoch, position.step)
    except DecodingError as error:  # a step function that decodes met numbers that are not finite
        raise _not_usable(job, batch, str(error)) from error
    job.accelerator.backward(output.loss)
    job.accelerator.unscale_gradients(job.optimizer)
    norm = float(clip_gradients(job.model.parameters(), by=plan.clip_by, at=plan.clip_at))
    loss = float(output.loss.detach())
    # Every process sees the same averaged gradients, so all of them stop here together and before the update. With a
    # gradient scaler (fp16) overflowing gradients are usual: it skips the update and scales less.
    if not math.isfinite(loss if job.accelerator.scaler is not None else norm):
        raise _not_finite(job, batch, loss)
    job.optimizer.step()
    job.optimizer.zero_grad(set_to_none=True)
    if job.average is not None:
        job.average.update(position.step + 1)
    return output, norm, rate


def _not_finite(job: Job, batch: Batch, loss: float) -> TrainingError:
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradients are not finite (loss {loss:.4g})"
    return _not_usable(job, batch, what)


def _not_usable(job: Job, batch: Batch, what: str) -> TrainingError:
    position = job.position
    newest = job.checkpoints.newest()
    where = f"the last checkpoint is {newest.name}" if newest else "there is no checkpoint yet"
    return TrainingError(
        f"{what} at step {position.step + 1} (epoch {position.epoch + 1}) on images {', '.join(batch.image_ids)}; the "
        f"weights were not updated and {where}. Check these images' features, or lower the learning rate"
    )


def _at_limit(job: Job) -> bool:
    return job.plan.max_steps is not None and job.position.step >= job.plan.max_steps


def _watch(job: Job, output: StepOutput) -> None:
    if job.watch is None:
        return
    for warning in job.watch.update({name: total / max(1.0, n) for name, (total, n) in output.values.items()}):
        job.log.warn(warning, step=job.position.step)


def _evaluate(job: Job) -> None:
    position = job.position
    epoch = position.epoch - 1
    state = random_state()
    with job.final_weights():
        scores = job.evaluate(epoch)
        better = position.best is None or scores.selecting > position.best
        if better:
            job.keep_best(scores.values, epoch)
    restore_random_state(state)
    job.schedule.evaluated(scores.selecting)
    position.unevaluated = False
    if better:
        position.best, position.best_epoch, position.since_best = scores.selecting, epoch, 0
    else:
        position.since_best += 1
    for note in scores.notes:
        job.log.warn(note, step=position.step)
    job.log.write("evaluation", step=position.step, epoch=epoch, best=better, scores=scores.values)
    line = "  ".join(f"{name} {value:.3f}" for name, value in scores.values.items())
    job.log.say(f"epoch {epoch + 1}: {line}{'  (best)' if better else ''}")


def save(job: Job) -> None:
    """Write a checkpoint; every process takes part.

    Raises:
        TrainingError: it could not be written (on every process).
    """
    position = job.position
    tensors = {"model": model_tensors(job.model), "optimizer": optimizer_tensors(job.model, job.optimizer.optimizer)}
    if job.average is not None:
        with job.average.applied():
            tensors["average"] = {name: tensor.clone() for name, tensor in model_tensors(job.model).items()}
    window = job.window.state(job.world)
    states = job.world.gather(random_state())
    problem: TrainingError | None = None
    if job.world.is_main:
        tensors["rng"] = {f"{rank}/{kind}": value for rank, state in enumerate(states) for kind, value in state.items()}
        scaler = job.accelerator.scaler
        state = {
            "position": asdict(position),
            "schedule": job.schedule.state(),
            "collapse": None if job.watch is None else job.watch.state(),
            "window": window,
            "scaler": None if scaler is None else scaler.state_dict(),
            "processes": job.world.size,
            **job.record,
        }
        try:
            path = job.checkpoints.save(step=position.step, tensors=tensors, state=state)
            job.log.write("saved", step=position.step, checkpoint=path.name)
        except TrainingError as error:
            problem = error
    problem = job.world.broadcast(problem)
    if problem is not None:
        raise problem


def resume(job: Job, checkpoint: Checkpoint) -> None:
    """Put a fresh job where `checkpoint` was taken."""
    if job.average is not None:
        load_model_tensors(job.model, checkpoint.average)
        job.average.reset()
    load_model_tensors(job.model, checkpoint.model)
    load_optimizer_tensors(job.model, job.optimizer.optimizer, checkpoint.optimizer)
    job.schedule.restore(checkpoint.state["schedule"])
    if job.watch is not None and checkpoint.state.get("collapse"):
        job.watch.restore(checkpoint.state["collapse"])
    if checkpoint.state.get("window"):
        job.window.restore(checkpoint.state["window"], job.world)
    if job.accelerator.scaler is not None and checkpoint.state.get("scaler"):
        job.accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
    job.position = Position(**checkpoint.state["position"])
    prefix = f"{job.world.rank}/"
    own = {key.removeprefix(prefix): value for key, value in checkpoint.rng.items() if key.startswith(prefix)}
    if own:
        restore_random_state(own)
    job.log.rewind(job.position.step, unevaluated=job.position.unevaluated)


class Window:
    """Sums over the steps since the last line of the log; part of a checkpoint, so that a kill changes no mean."""

    def __init__(self) -> None:
        self.text = ""
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._norm = self._seconds = 0.0
        self._captions = self._steps = 0

    def add(self, output: StepOutput, *, norm: float, seconds: float) -> None:
        """Take in one step."""
        for name, (total, count) in output.values.items():
            sums = self._sums.setdefault(name, [0.0, 0.0])
            sums[0] += total
            sums[1] += count
        self._captions += output.captions
        self._steps += 1
        self._norm += norm
        self._seconds += seconds
        shown = [f"{name} {self._sums[name][0] / max(1.0, self._sums[name][1]):.3f}" for name in output.shown]
        self.text = "  ".join([*shown, f"{self._captions / max(self._seconds, 1e-9):.0f} captions/s"])

    def flush(self, world: World) -> dict[str, float]:
        """Means over all processes since the last flush, then start again."""
        total = self.state(world)
        values = {name: amount / max(1.0, count) for name, (amount, count) in total["sums"].items()}
        values["grad_norm"] = self._norm / max(1, self._steps)
        values["captions_per_second"] = total["captions"] / max(self._seconds, 1e-9)
        self._clear()
        return values

    def state(self, world: World) -> dict[str, Any]:
        """The sums over all processes, as JSON values; every process takes part."""
        names = sorted(self._sums)
        flat = world.sum([number for name in names for number in self._sums[name]] + [float(self._captions)])
        return {
            "sums": {name: flat[2 * i : 2 * i + 2] for i, name in enumerate(names)},
            "captions": flat[-1],
            "steps": self._steps,
            "norm": self._norm,
            "seconds": self._seconds,
        }

    def restore(self, state: Mapping[str, Any], world: World) -> None:
        """Continue from `state`: the main process takes over the sums of all."""
        share = 1.0 if world.is_main else 0.0
        self._sums = {name: [share * number for number in sums] for name, sums in state["sums"].items()}
        self._captions = int(share * state["captions"])
        self._steps, self._norm, self._seconds = state["steps"], state["norm"], state["seconds"]


def seed_everything(seed: int, rank: int) -> None:
    """Seed Python, numpy and torch differently on every process."""
    import random

    import numpy as np

    random.seed(seed * 1000 + rank)
    np.random.seed((seed * 1000 + rank) % 2**32)
    torch.manual_seed(seed * 1000 + rank)
