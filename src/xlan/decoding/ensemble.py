"""Several models as one (§4.2 of the paper): their probabilities are averaged before every word.

An `Ensemble` is a `Stepper` itself, so every search, control and result works with it as with a single model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from xlan.decoding.step import State, Stepper
from xlan.errors import DecodingError
from xlan.types import StepTrace


class Encoder(Protocol):
    """A model that can encode images for itself."""

    def encode(self, features: Tensor, mask: Tensor | None, *boxes: Tensor) -> Any:
        """Encode `features` `[B, N, D]` with `mask` `[B, N]` and, where they are given, `boxes` `[B, N, 4]`."""


@dataclass(frozen=True)
class EnsembleState:
    """The states of all members, row by row in step."""

    members: tuple[State, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.members[0].rows

    @property
    def device(self) -> torch.device:
        """Device of the members."""
        return self.members[0].device

    @property
    def trace(self) -> StepTrace | None:
        """Attention averaged over the members; no channel gate where they do not all have one of the same width."""
        traces = [member.trace for member in self.members]
        spatial = [trace.spatial for trace in traces if trace is not None]
        if len(spatial) < len(traces):
            return None
        channel = [trace.channel for trace in traces if trace is not None and trace.channel is not None]
        alike = len(channel) == len(traces) and len({gate.shape for gate in channel}) == 1
        return StepTrace(_mean(spatial), _mean(channel) if alike else None)

    def select(self, index: Tensor) -> EnsembleState:
        """Rows `index` of every member."""
        return EnsembleState(tuple(member.select(index) for member in self.members))


class Ensemble:
    """Models with the same vocabulary, asked together.

    Args:
        models: at least one `Stepper`.

    Raises:
        DecodingError: no model was given, or the vocabularies differ in size.
    """

    def __init__(self, models: Sequence[Stepper[Any, Any]]) -> None:
        if not models:
            raise DecodingError("an ensemble needs at least one model, got none")
        sizes = [model.vocab_size for model in models]
        if len(set(sizes)) > 1:
            got = ", ".join(f"{size:,}" for size in sizes)
            raise DecodingError(
                f"models of an ensemble need the same vocabulary, got {got} words; train them with one vocab.json"
            )
        self.models = tuple(models)

    @property
    def vocab_size(self) -> int:
        """Number of ids V."""
        return self.models[0].vocab_size

    def encode(self, features: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None) -> tuple[Any, ...]:
        """Encode images with every member, for members that take the same regions.

        Args:
            features: `[B, N, D]`.
            mask: `[B, N]` bool, or None.
            boxes: `[B, N, 4]`, for members that want them.
        """
        encoded = []
        for model in self.models:
            encoder: Encoder = model  # type: ignore[assignment]
            encoded.append(encoder.encode(features, mask, *(() if boxes is None else (boxes,))))
        return tuple(encoded)

    def start(self, encoded: Sequence[Any], *, trace: bool = False) -> EnsembleState:
        """Open one row per image in every member; `encoded` has one entry per member, as `encode` returns them."""
        if len(encoded) != len(self.models):
            raise DecodingError(
                f"an ensemble of {len(self.models)} needs one encoding per model, in the same order, got {len(encoded)}"
            )
        pairs = zip(self.models, encoded, strict=True)
        state = EnsembleState(tuple(model.start(one, trace=trace) for model, one in pairs))
        rows = [member.rows for member in state.members]
        if len(set(rows)) > 1:
            raise DecodingError(f"the encodings of an ensemble must be of the same images, got {rows} images")
        return state

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Log of the mean probability, `[R, V]`, and the new state."""
        answers = [model.step(tokens, member) for model, member in zip(self.models, state.members, strict=True)]
        stacked = torch.stack([log_probs for log_probs, _ in answers])
        log_probs = torch.logsumexp(stacked, dim=0) - math.log(len(answers))
        return log_probs, EnsembleState(tuple(member for _, member in answers))


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).mean(dim=0)
