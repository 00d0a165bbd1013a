"""The loop of the beam searches in `xlan.decoding.beam`, where the rules are written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from xlan.decoding.arguments import SearchArguments
from xlan.decoding.result import DecodingResult
from xlan.decoding.selection import Choice, Selector
from xlan.decoding.slots import Slots
from xlan.decoding.step import IMPOSSIBLE, State, Stepper
from xlan.errors import DecodingError
from xlan.required import not_a_number
from xlan.types import Rule, StepTrace

StateT = TypeVar("StateT", bound=State)


@dataclass(frozen=True)
class BeamOptions:
    """What only beam searches are told, checked.

    Attributes:
        width: beams per group.
        groups: number of groups.
        diversity: cost of a word an earlier group chose in the same step.
        rule: what happens to finished beams.
        length_penalty: α of `sum / length ** α`.
        best_only: only the best hypothesis is wanted.
        trace: attention is wanted.
    """

    width: int
    groups: int
    diversity: float
    rule: Rule
    length_penalty: float
    best_only: bool
    trace: bool

    def __post_init__(self) -> None:
        if self.width < 1:
            raise DecodingError(f"beam width: expected at least 1, got {self.width}")
        if self.groups < 1:
            raise DecodingError(f"groups: expected at least 1, got {self.groups}")
        if self.rule not in ("released", "earlier"):
            raise DecodingError(f"beam rule: expected 'released' or 'earlier', got {self.rule!r}")
        if not 0 <= self.diversity < float("inf"):
            raise DecodingError(f"diversity: expected a number of at least 0, got {self.diversity}")
        if not abs(self.length_penalty) < float("inf"):
            raise DecodingError(f"length penalty: expected a finite number, got {self.length_penalty}")


class BeamSearch:
    """One search; it is used once.

    Args:
        arguments: the checked arguments that all searches have.
        options: those of beam searches.
        images: number B of images.
        device: where tokens live.
    """

    def __init__(self, arguments: SearchArguments, options: BeamOptions, *, images: int, device: torch.device) -> None:
        self._arguments = arguments
        self._options = options
        self._selector = Selector(
            width=options.width,
            groups=options.groups,
            diversity=options.diversity,
            length_penalty=options.length_penalty,
            required=arguments.required,
        )
        self._traces: list[StepTrace] = []
        self._images = torch.arange(images, device=device)  # images still searched, [A]

    def run(self, stepper: Stepper[Any, StateT], state: StateT) -> DecodingResult:
        """Search from a fresh state with one row per image."""
        tokens = torch.full_like(self._images, self._arguments.special.bos)
        for step in range(self._arguments.max_length):
            log_probs, state = stepper.step(tokens, state)
            if log_probs.dtype in (torch.float16, torch.bfloat16):
                log_probs = log_probs.float()  # sums of many log-probabilities need the digits
            if state.trace is not None:
                self._traces.append(state.trace)
            if step == 0:
                self._begin(log_probs)
            self._rows = len(log_probs)
            self._grow(log_probs, step)
            self._retire(step)
            if not self._images.numel():
                break
            kept = self._renumber()
            if kept is not None:
                state = state.select(kept)
            tokens = self._beams.tokens.flatten(0, 1)[self._live, step]
        return self._results.result(
            self._traces, pad=self._arguments.special.pad, length_penalty=self._options.length_penalty
        )

    def _begin(self, log_probs: Tensor) -> None:
        """Open one beam per image and group, all on the one row of their image."""
        images, arguments, pad = len(self._images), self._arguments, self._arguments.special.pad
        kept = 1 if self._options.best_only else self._options.groups * self._options.width
        self._beams = Slots.empty(images, self._selector.places, arguments.max_length, pad=pad, like=log_probs)
        self._results = Slots.empty(images, kept, arguments.max_length, pad=pad, like=log_probs)
        finished = self._options.groups * self._options.width if self._options.rule == "earlier" else 0
        self._pool = Slots.empty(images, finished, arguments.max_length, pad=pad, like=log_probs)
        opening = torch.arange(self._options.groups) * (self._selector.places // self._options.groups)
        self._beams.total[:, opening] = 0.0
        self._live = self._beams.live.flatten().nonzero().squeeze(1)
        self._row = self._images.unsqueeze(1).expand(-1, self._selector.places)  # row of each place, [A, M]

    def _grow(self, log_probs: Tensor, step: int) -> None:
        """Add a word to the beams; `_row` then tells the row each new beam comes from."""
        arguments, beams, places = self._arguments, self._beams, self._selector.places
        if step == 0:
            prefix = arguments.prefix(self._images.new_empty(len(self._images), 0), self._images)
            said = torch.zeros_like(self._images)
        else:
            prefix = arguments.prefix(beams.tokens.flatten(0, 1)[self._live, :step], self._images[self._live // places])
            said = self._selector.states_of(self._live)
        log_probs = arguments.apply(log_probs, prefix)
        if arguments.required is not None:
            log_probs = arguments.required.restrict(
                log_probs if arguments.controls else log_probs.clone(), said, prefix
            )
        if len(log_probs) != len(self._live):  # groups that share the first row
            log_probs = log_probs[self._row.flatten()[self._live]]
        choice = self._selector.choose(beams, self._live, log_probs, step=step)
        self._refuse_nan(choice)
        self._row = self._row.gather(1, choice.parent)
        self._beams = self._extended(choice, step)

    def _extended(self, choice: Choice, step: int) -> Slots:
        beams, grown = self._beams.take(choice.parent), choice.grown
        beams.tokens[:, :, step] = torch.where(grown, choice.token, beams.tokens[:, :, step])
        beams.log_probs[:, :, step] = choice.log_prob.masked_fill(~grown, 0.0)
        beams.rows[:, :, step] = self._row.masked_fill(~grown, -1)
        total = torch.where(grown, beams.total + choice.log_prob, beams.total).masked_fill(~choice.used, IMPOSSIBLE)
        ended = grown & (choice.token == self._arguments.special.eos)
        finished = (beams.finished | ended) & choice.used
        return Slots(beams.tokens, beams.log_probs, beams.rows, total, beams.length + grown, finished)

    def _refuse_nan(self, choice: Choice) -> None:
        wrong = (choice.log_prob.isnan() & choice.grown).any(dim=1)
        if bool(wrong.any()):
            raise not_a_number(self._images[wrong].tolist())

    def _retire(self, step: int) -> None:
        """Take hypotheses out of the beams where the rule says so, and images out of the search."""
        last = step + 1 == self._arguments.max_length
        if self._options.rule == "earlier":
            self._collect(last)
        done = torch.ones_like(self._images, dtype=torch.bool) if last else self._done(step)
        if not bool(done.any()):
            return
        found = self._pool if self._options.rule == "earlier" else self._ready(last)
        best = found.of_images(done).sorted(self._options.length_penalty)
        lost = ~best.used[:, 0]
        if bool(lost.any()):
            raise self._arguments.dead_end(self._images[done][lost].tolist())
        kept = self._results.total.shape[1]
        self._results.write(self._images[done], best.take(torch.arange(kept, device=done.device).expand(len(lost), -1)))
        self._images, self._row = self._images[~done], self._row[~done]
        self._beams, self._pool = self._beams.of_images(~done), self._pool.of_images(~done)

    def _ready(self, last: bool) -> Slots:
        """The hypotheses that can be returned: finished or, in the last step, all that say what is required.

        `[A, G · W]`.
        """
        places = torch.arange(self._selector.places, device=self._images.device)
        wanted = places[self._selector.states_of(places) == self._selector.states - 1]
        complete = self._beams.take(wanted.expand(len(self._images), -1))
        return complete if last else complete.emptied(~complete.finished)

    def _collect(self, last: bool) -> None:
        """Earlier rule: move finished hypotheses (in the last step, all) to the pool of their group."""
        ready, width = self._ready(last), self._options.width
        pools = []
        for first in range(0, self._pool.total.shape[1], width):
            part = torch.arange(first, first + width, device=self._images.device).expand(len(self._images), -1)
            both = self._pool.take(part).beside(ready.take(part)).sorted(self._options.length_penalty)
            pools.append(both.take(torch.arange(width, device=part.device).expand_as(part)))
        self._pool = pools[0]
        for pool in pools[1:]:
            self._pool = self._pool.beside(pool)
        self._beams = self._beams.emptied(self._beams.finished)

    def _done(self, step: int) -> Tensor:
        """`[A]` bool: images whose result no live beam can change."""
        live, alpha = self._beams.live, self._options.length_penalty
        # The best a live beam can still become: its score now, at the length that suits it best.
        most = max(float(step + 2) ** alpha, float(self._arguments.max_length) ** alpha)
        hope = (self._beams.total / self._beams.total.new_tensor(most)).masked_fill(~live, IMPOSSIBLE)
        if self._options.rule == "earlier":
            images, groups = len(live), self._options.groups
            enough = 0 if self._options.best_only else self._options.width - 1
            worst = self._pool.ranks(alpha).view(images, groups, -1)[:, :, enough]
            return (worst >= hope.view(images, groups, -1).amax(dim=2)).all(dim=1)
        if not self._options.best_only:
            return ~live.any(dim=1)
        outlook = torch.where(live, hope, self._beams.ranks(alpha))
        return ~live.gather(1, outlook.argmax(dim=1, keepdim=True)).squeeze(1)

    def _renumber(self) -> Tensor | None:
        """Renumber live beams; returns which rows of the state continue (`[R']`), or None when all do, in order."""
        self._live = self._beams.live.flatten().nonzero().squeeze(1)
        kept = self._row.flatten()[self._live]
        numbers = torch.arange(len(kept), device=kept.device)
        row = torch.full_like(self._row, -1).flatten()
        row[self._live] = numbers
        self._row = row.view(self._row.shape)
        return None if len(kept) == self._rows and torch.equal(kept, numbers) else kept
