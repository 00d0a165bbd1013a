"""Beam search as one would explain it: one image at a time, one hypothesis at a time, plain lists and a sort.

Slow on purpose. Read it to know what `beam_search` means; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from xlan.decoding.arguments import SearchArguments, check_arguments
from xlan.decoding.controls import Control, SuppressUnknown
from xlan.decoding.result import Hypothesis
from xlan.decoding.step import IMPOSSIBLE, MAX_LENGTH, State, Stepper
from xlan.types import Rule, SpecialIds

EncodedT = TypeVar("EncodedT")
StateT = TypeVar("StateT", bound=State)


@dataclass(frozen=True)
class _Beam(Generic[StateT]):
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    total: float
    finished: bool
    state: StateT

    def rank(self, length_penalty: float) -> float:
        return self.total / math.pow(max(1, len(self.ids)), length_penalty)


def beam_reference(
    stepper: Stepper[EncodedT, StateT],
    encoded: EncodedT,
    special: SpecialIds,
    *,
    width: int = 3,
    rule: Rule = "released",
    length_penalty: float = 0.0,
    max_length: int = MAX_LENGTH,
    controls: Sequence[Control] = (),
) -> list[list[Hypothesis]]:
    """The `width` best captions of every image, from best to worst; arguments as for `beam_search`."""
    if rule == "earlier":
        controls = (*controls, SuppressUnknown())
    arguments = check_arguments(stepper.vocab_size, special, max_length=max_length, controls=controls)
    with torch.inference_mode():
        start = stepper.start(encoded)
        found = []
        for image in range(start.rows):
            state = start.select(torch.tensor([image], device=start.device))
            best = _search_one(stepper, state, arguments, image, width, rule, length_penalty)
            if not best:
                raise arguments.dead_end([image])
            found.append([Hypothesis(b.ids, b.rank(length_penalty), b.total, b.log_probs, b.finished) for b in best])
    return found


def _search_one(
    stepper: Stepper[EncodedT, StateT],
    state: StateT,
    arguments: SearchArguments,
    image: int,
    width: int,
    rule: Rule,
    length_penalty: float,
) -> list[_Beam[StateT]]:
    """Search one image. A beam is kept for every state of the required words; without any there is one state."""
    goal = arguments.required.states - 1 if arguments.required else 0
    beams = {0: [_Beam((), (), 0.0, False, state)]}
    left_the_beam: list[_Beam[StateT]] = []

    def best(some: list[_Beam[StateT]]) -> list[_Beam[StateT]]:
        # Python's sort keeps the order of equals: lower beam, then likelier word, then lower id.
        return sorted(some, key=lambda beam: -beam.rank(length_penalty))[:width]

    for step in range(arguments.max_length):
        candidates: dict[int, list[_Beam[StateT]]] = {}
        for mentioned in sorted(beams):
            for beam in beams[mentioned]:
                if beam.finished:
                    candidates.setdefault(mentioned, []).append(beam)
                else:
                    grown = _continuations(stepper, beam, arguments, image)
                    for following, new in zip(_mentioned(arguments, grown), grown, strict=True):
                        candidates.setdefault(following, []).append(new)
        beams = {mentioned: best(some) for mentioned, some in candidates.items()}
        if rule == "earlier" and step + 1 < arguments.max_length:
            left_the_beam += [beam for beam in beams.get(goal, []) if beam.finished]
            beams = {mentioned: [beam for beam in some if not beam.finished] for mentioned, some in beams.items()}
    return best([*left_the_beam, *beams.get(goal, [])])


def _continuations(
    stepper: Stepper[EncodedT, StateT], beam: _Beam[StateT], arguments: SearchArguments, image: int
) -> list[_Beam[StateT]]:
    """`beam` with every possible next word, from the likeliest on."""
    device = beam.state.device
    token = beam.ids[-1] if beam.ids else arguments.special.bos
    log_probs, state = stepper.step(torch.tensor([token], device=device), beam.state)
    said = torch.tensor([beam.ids], dtype=torch.int64, device=device).view(1, -1)
    prefix = arguments.prefix(said, torch.tensor([image], device=device))
    log_probs = arguments.apply(log_probs, prefix)
    if arguments.required is not None:
        log_probs = arguments.required(log_probs.clone(), prefix)
    words = sorted(enumerate(log_probs[0].tolist()), key=lambda item: -item[1])
    return [
        _Beam((*beam.ids, word), (*beam.log_probs, value), beam.total + value, word == arguments.special.eos, state)
        for word, value in words
        if value > IMPOSSIBLE
    ]


def _mentioned(arguments: SearchArguments, beams: list[_Beam[StateT]]) -> list[int]:
    """State of the required words of beams of the same length."""
    if arguments.required is None or not beams:
        return [0] * len(beams)
    states: list[int] = arguments.required.state_of(torch.tensor([beam.ids for beam in beams])).tolist()
    return states
