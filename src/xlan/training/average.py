"""Weights averaged over the steps of a run (exponential moving average): often better than the last ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn


class AveragedWeights:
    """A running average of parameters.

    Early steps count less: after n updates the decay is min(decay, (n + 1) / (n + 10)), so the random weights of the
    start are soon forgotten.

    Args:
        parameters: names and parameters; sharded ones are averaged shard by shard.
        decay: share of the old average that a step keeps.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        self.decay = decay
        self._parameters = dict(parameters)
        self.tensors: dict[str, Tensor] = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step` updates."""
        keep = min(self.decay, (step + 1) / (step + 10))
        for name, parameter in self._parameters.items():
            self.tensors[name].lerp_(parameter.detach(), 1 - keep)

    @torch.no_grad()
    def reset(self) -> None:
        """Start again from the weights as they are now."""
        for name, parameter in self._parameters.items():
            self.tensors[name].copy_(parameter)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            own = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(own)
