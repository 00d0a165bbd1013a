"""What a search returns: tensors for training, and records for everybody else."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from xlan.decoding.step import IMPOSSIBLE
from xlan.lengths import real_positions


@dataclass(frozen=True)
class Hypothesis:
    """One sentence.

    Attributes:
        ids: what was emitted, in order, without `bos`; the last one is `eos` when `finished`.
        score: what hypotheses were ranked by: `total`, or with a length penalty α `total / len(ids) ** α`.
        total: sum of `log_probs`.
        log_probs: natural log-probability of each of `ids`.
        finished: the model ended the sentence; False when it was cut off at the maximum length.
        spatial: `[T, N]` attention over regions, a row for each of `ids`; None unless asked for.
        channel: `[T, C]` channel gate, likewise; None unless asked for, or where the model has none.
    """

    ids: tuple[int, ...]
    score: float
    total: float
    log_probs: tuple[float, ...]
    finished: bool
    spatial: Tensor | None = None
    channel: Tensor | None = None

    @property
    def words(self) -> tuple[int, ...]:
        """`ids` without the final `eos`."""
        return self.ids[:-1] if self.finished else self.ids


@dataclass(frozen=True)
class DecodingResult:
    """K hypotheses for each of B images: beams from best to worst, or samples in the order they were drawn.

    A place can be empty (length 0, score -inf) when fewer than K sentences exist.

    Attributes:
        ids: `[B, K, T]` int64 as in `Hypothesis.ids`, filled up with `pad`; T is the longest length.
        lengths: `[B, K]` int64, number of ids including `eos`.
        log_probs: `[B, K, T]`, 0 from a hypothesis' length on.
        scores: `[B, K]` what hypotheses were ranked by.
        finished: `[B, K]` bool.
        spatial: `[B, K, T, N]` or None, 0 from a hypothesis' length on.
        channel: `[B, K, T, C]` or None.
    """

    ids: Tensor
    lengths: Tensor
    log_probs: Tensor
    scores: Tensor
    finished: Tensor
    spatial: Tensor | None = None
    channel: Tensor | None = None

    @property
    def totals(self) -> Tensor:
        """`[B, K]` sums of the log-probabilities, -inf where a place is empty."""
        return sum_in_order(self.log_probs).masked_fill(self.lengths == 0, IMPOSSIBLE)

    @property
    def mask(self) -> Tensor:
        """`[B, K, T]` bool, True where an id was emitted (`eos` included)."""
        return real_positions(self.lengths, self.ids.shape[-1])

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The same as records, per image, without empty places."""
        ids, log_probs = self.ids.tolist(), self.log_probs.tolist()
        lengths, scores, finished = self.lengths.tolist(), self.scores.tolist(), self.finished.tolist()
        totals = self.totals.tolist()

        def record(b: int, k: int) -> Hypothesis:
            length = lengths[b][k]
            return Hypothesis(
                ids=tuple(ids[b][k][:length]),
                score=scores[b][k],
                total=totals[b][k],
                log_probs=tuple(log_probs[b][k][:length]),
                finished=finished[b][k],
                spatial=None if self.spatial is None else self.spatial[b, k, :length],
                channel=None if self.channel is None else self.channel[b, k, :length],
            )

        return [[record(b, k) for k in range(len(lengths[b])) if lengths[b][k]] for b in range(len(lengths))]

    def best(self) -> list[Hypothesis]:
        """The first hypothesis of every image."""
        first = {name: value[:, :1] for name, value in self._tensors().items()}
        return [found[0] for found in replace(self, **first).hypotheses()]

    def _tensors(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def usable_in_autograd(self) -> DecodingResult:
        """Copies that autograd may keep: tensors made in inference mode could not be fed to a model that is trained."""
        copies = {name: value.clone() for name, value in self._tensors().items() if value.is_inference()}
        return replace(self, **copies)


def sum_in_order(log_probs: Tensor) -> Tensor:
    """Sum of the last dimension from first to last, as a search adds up: padding cannot change its rounding."""
    return log_probs.cumsum(-1)[..., -1] if log_probs.shape[-1] else log_probs.sum(-1)
