"""Learning rates and the scheduled-sampling probability, as functions of the step and the epoch.

A schedule answers `rate(step)`; only the plateau schedule has a state, which is plain JSON and part of a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """What the loop asks of a schedule."""

    def rate(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""

    def evaluated(self, score: float) -> None:
        """Take in the validation score (higher is better)."""

    def state(self) -> dict[str, float]:
        """What must be remembered to continue, as JSON values."""

    def restore(self, state: dict[str, float]) -> None:
        """Continue from `state`."""


class _Stateless:
    def evaluated(self, score: float) -> None:
        """Nothing to learn from a score."""

    def state(self) -> dict[str, float]:
        """Nothing to remember."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Nothing to restore."""


@dataclass
class Noam(_Stateless):
    """factor · width^-½ · min(n^-½, n · warmup^-3/2) with n = step + 1: up for `warmup` steps, then down."""

    width: int
    warmup: int
    factor: float = 1.0

    def rate(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        n = step + 1
        return float(self.factor * self.width**-0.5 * min(n**-0.5, n * self.warmup**-1.5))


@dataclass
class Constant(_Stateless):
    """A fixed rate after `warmup` steps of linear rise."""

    base: float
    warmup: int = 0

    def rate(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        return self.base * _warm(step, self.warmup)


@dataclass
class Cosine(_Stateless):
    """Linear rise over `warmup` steps, then half a cosine from `base` down to `floor` · `base` at step `total`."""

    base: float
    total: int
    warmup: int = 0
    floor: float = 0.0

    def rate(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        done = min(1.0, max(0.0, (step - self.warmup) / max(1, self.total - self.warmup)))
        shape = self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))
        return self.base * _warm(step, self.warmup) * shape


@dataclass
class StepDecay(_Stateless):
    """`base`, multiplied by `factor` every `every` epochs from epoch `start` on, after `warmup` steps of linear rise.

    Epochs have `batches` steps and count from 0: the first decay is at epoch `start` + `every`.
    """

    base: float
    factor: float
    every: int
    batches: int
    start: int = 0
    warmup: int = 0

    def rate(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        decays = max(0, step // self.batches - self.start) // self.every
        return float(self.base * self.factor**decays * _warm(step, self.warmup))


class Plateau:
    """`base`, multiplied by `factor` each time the score has not risen for more than `patience` evaluations.

    A rise counts when it exceeds a ten-thousandth of the best score, as in torch's ReduceLROnPlateau, which the
    released code uses.
    """

    threshold = 1e-4

    def __init__(self, base: float, factor: float, patience: int) -> None:
        self.base = base
        self.factor = factor
        self.patience = patience
        self._scale = 1.0
        self._best = -math.inf
        self._bad = 0

    def rate(self, step: int) -> float:  # noqa: ARG002
        """Learning rate, the same for every step between two evaluations."""
        return self.base * self._scale

    def evaluated(self, score: float) -> None:
        """Take in the validation score; maybe lower the rate."""
        if score > self._best + abs(self._best) * self.threshold or self._best == -math.inf:
            self._best, self._bad = score, 0
            return
        self._bad += 1
        if self._bad > self.patience:
            self._scale, self._bad = self._scale * self.factor, 0

    def state(self) -> dict[str, float]:
        """Scale so far, best score (absent before the first) and evaluations since."""
        best = {} if self._best == -math.inf else {"best": self._best}
        return {"scale": self._scale, "bad": self._bad, **best}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self._scale, self._bad = state["scale"], int(state["bad"])
        self._best = state.get("best", -math.inf)


@dataclass(frozen=True)
class ScheduledSampling:
    """Probability of feeding the model its own word: 0 before epoch `start`, then +`step` every `every` epochs."""

    start: int
    every: int
    step: float
    maximum: float

    def probability(self, epoch: int) -> float:
        """Probability in `epoch`, counted from 0."""
        if epoch < self.start:
            return 0.0
        return min(self.maximum, self.step * (1 + (epoch - self.start) // self.every))


def _warm(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup > 0 else 1.0
