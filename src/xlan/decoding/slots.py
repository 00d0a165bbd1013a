"""Places for hypotheses, as tensors: what beams, finished pools and results are made of."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from xlan.decoding.result import DecodingResult
from xlan.decoding.step import IMPOSSIBLE
from xlan.lengths import real_positions
from xlan.types import StepTrace


@dataclass(frozen=True)
class Slots:
    """M places for hypotheses of each of A images.

    Attributes:
        tokens: `[A, M, T]` ids, filled up with `pad`.
        log_probs: `[A, M, T]` their log-probabilities, filled up with 0.
        rows: `[A, M, T]` which row of the model emitted each id (to find its attention), -1 where there is none.
        total: `[A, M]` sum of log-probabilities; -inf marks an empty place.
        length: `[A, M]` number of ids.
        finished: `[A, M]` bool, the last id is `eos`.
    """

    tokens: Tensor
    log_probs: Tensor
    rows: Tensor
    total: Tensor
    length: Tensor
    finished: Tensor

    @classmethod
    def empty(cls, images: int, places: int, steps: int, *, pad: int, like: Tensor) -> Slots:
        """Empty places, with log-probabilities of the kind of `like`."""
        device = like.device
        return cls(
            tokens=torch.full((images, places, steps), pad, device=device),
            log_probs=like.new_zeros(images, places, steps),
            rows=torch.full((images, places, steps), -1, device=device),
            total=like.new_full((images, places), IMPOSSIBLE),
            length=torch.zeros(images, places, dtype=torch.int64, device=device),
            finished=torch.zeros(images, places, dtype=torch.bool, device=device),
        )

    @property
    def used(self) -> Tensor:
        """`[A, M]` bool."""
        return self.total > IMPOSSIBLE

    @property
    def live(self) -> Tensor:
        """`[A, M]` bool: hypotheses that can still grow."""
        return self.used & ~self.finished

    def of_images(self, index: Tensor) -> Slots:
        """The places of images `index` (`[A']`, or a mask)."""
        return Slots(*(getattr(self, field.name)[index] for field in fields(self)))

    def take(self, index: Tensor) -> Slots:
        """Places `index` (`[A, M']`) of each image."""

        def taken(tensor: Tensor) -> Tensor:
            if tensor.dim() == 2:
                return tensor.gather(1, index)
            return tensor.gather(1, index.unsqueeze(2).expand(-1, -1, tensor.shape[2]))

        return Slots(*(taken(getattr(self, field.name)) for field in fields(self)))

    def beside(self, other: Slots) -> Slots:
        """These places and those of `other`, image by image."""
        return Slots(*(torch.cat([getattr(self, f.name), getattr(other, f.name)], dim=1) for f in fields(self)))

    def emptied(self, where: Tensor) -> Slots:
        """These places, empty `where` (`[A, M]` bool) is True."""
        return Slots(
            self.tokens,
            self.log_probs,
            self.rows,
            self.total.masked_fill(where, IMPOSSIBLE),
            self.length,
            self.finished,
        )

    def ranks(self, length_penalty: float) -> Tensor:
        """What hypotheses compete by: `[A, M]`."""
        if length_penalty == 0:
            return self.total
        powers = [float(max(1, length)) ** length_penalty for length in range(self.tokens.shape[2] + 1)]
        return self.total / self.total.new_tensor(powers)[self.length]

    def sorted(self, length_penalty: float) -> Slots:
        """The same places from best to worst; equals keep their order."""
        return self.take(self.ranks(length_penalty).sort(dim=1, descending=True, stable=True).indices)

    def write(self, images: Tensor, source: Slots) -> None:
        """Put `source` in the places of `images` (`[A']`), in place."""
        for field in fields(self):
            getattr(self, field.name)[images] = getattr(source, field.name)

    def result(self, traces: list[StepTrace], *, pad: int, length_penalty: float) -> DecodingResult:
        """These hypotheses as a result; `traces` has the attention of every step, or nothing."""
        length = self.length.masked_fill(~self.used, 0)
        steps = max(1, int(length.max())) if length.numel() else 0
        beyond = ~real_positions(length, steps)
        rows = self.rows[:, :, :steps].masked_fill(beyond, -1)
        gates = [trace.channel for trace in traces if trace.channel is not None]
        return DecodingResult(
            ids=self.tokens[:, :, :steps].masked_fill(beyond, pad),
            lengths=length,
            log_probs=self.log_probs[:, :, :steps].masked_fill(beyond, 0.0),
            scores=self.ranks(length_penalty),
            finished=self.finished & self.used,
            spatial=_follow(rows, [trace.spatial for trace in traces]) if traces else None,
            channel=_follow(rows, gates) if gates else None,
        )


def _follow(rows: Tensor, parts: list[Tensor]) -> Tensor:
    """Pick row `rows[a, m, t]` of `parts[t]` (`[R_t, N]`): `[A, M, T, N]`, 0 where the row is -1."""
    out = parts[0].new_zeros(*rows.shape, parts[0].shape[1])
    for step in range(rows.shape[2]):
        here = rows[:, :, step] >= 0
        out[:, :, step][here] = parts[step][rows[:, :, step][here]]
    return out
