"""Batched beam search, for any model that can be stepped.

Rules (`beam_reference` does the same in plain Python, and tests compare the two):

- A hypothesis is ranked by the sum of its log-probabilities; there is no length normalisation unless asked for. A
  length penalty α ranks by `sum / length ** α`, where length counts `eos`, wherever hypotheses compete.
- `rule="released"`, the search the released code runs: a finished hypothesis stays in its beam and competes, as it
  is, with longer ones.
- `rule="earlier"`, the search that made the published X-LAN results: a finished hypothesis leaves the beam, which is
  filled up with the next best; in the end the finished ones are ranked. This rule also suppresses the unknown word.
- `max_length` counts emitted ids with `eos`. After that many steps hypotheses without `eos` are taken as they are, and
  compete with the finished ones.
- Ties are broken by lower index: the lower beam first, then the lower id (of two words of one beam whose sums round to
  the same number, the likelier one). Of hypotheses finished at different steps with equal scores (earlier rule) the one
  finished first is ahead.

Cost: the first step computes one row per image, later steps only live beams of unfinished images. An image is finished
when no live beam could change its result any more (log-probabilities only ever lower a score): under the released rule
when all beams are finished, under the earlier one as soon as the finished ones beat all live ones. With `best_only` the
other beams are not waited for, which changes nothing about the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from xlan.decoding.arguments import check_arguments
from xlan.decoding.controls import Control, SuppressUnknown
from xlan.decoding.result import DecodingResult
from xlan.decoding.search import BeamOptions, BeamSearch
from xlan.decoding.step import MAX_LENGTH, State, Stepper
from xlan.types import Rule, SpecialIds

EncodedT = TypeVar("EncodedT")
StateT = TypeVar("StateT", bound=State)


def beam_search(
    stepper: Stepper[EncodedT, StateT],
    encoded: EncodedT,
    special: SpecialIds,
    *,
    width: int = 3,
    rule: Rule = "released",
    length_penalty: float = 0.0,
    max_length: int = MAX_LENGTH,
    controls: Sequence[Control] = (),
    best_only: bool = False,
    trace: bool = False,
) -> DecodingResult:
    """Find the `width` best captions of every image.

    Args:
        stepper: the model, or an `Ensemble`.
        encoded: what the model made of B images.
        special: the special ids of the vocabulary.
        width: number of beams. With required words, of each combination of words mentioned.
        rule: what happens to finished beams, see the top of this file.
        length_penalty: α, above 0 favours longer captions.
        max_length: steps, the one that emits `eos` included.
        controls: see `xlan.decoding.controls` and `xlan.decoding.required`.
        best_only: return one hypothesis per image, the best, and stop as soon as it is known.
        trace: also return the attention of each step.

    Returns:
        K = `width` hypotheses per image (1 with `best_only`), from best to worst.

    Raises:
        DecodingError: something impossible was asked for.
    """
    options = BeamOptions(width, 1, 0.0, rule, length_penalty, best_only=best_only, trace=trace)
    return _run(stepper, encoded, special, options, max_length, controls)


def diverse_beam_search(
    stepper: Stepper[EncodedT, StateT],
    encoded: EncodedT,
    special: SpecialIds,
    *,
    groups: int = 3,
    width: int = 1,
    diversity: float = 0.5,
    rule: Rule = "released",
    length_penalty: float = 0.0,
    max_length: int = MAX_LENGTH,
    controls: Sequence[Control] = (),
    trace: bool = False,
) -> DecodingResult:
    """Find captions that differ (Vijayakumar et al., 2018): groups of beams that avoid each other's words.

    In every step the groups choose one after the other; a word costs a group `diversity` for each time the groups
    before it chose that word in the same step. The cost guides the choice; scores remain the model's own.

    Args:
        stepper: the model, or an `Ensemble`.
        encoded: what the model made of B images.
        special: the special ids of the vocabulary.
        groups: number of groups G.
        width: number of beams of each group.
        diversity: cost of a word another group chose, in natural log units; 0 makes all groups find the same.
        rule: what happens to finished beams, see the top of this file.
        length_penalty: α, above 0 favours longer captions.
        max_length: steps, the one that emits `eos` included.
        controls: see `xlan.decoding.controls` and `xlan.decoding.required`.
        trace: also return the attention of each step.

    Returns:
        K = `groups * width` hypotheses per image from best to worst; of equals, the earlier group's first.

    Raises:
        DecodingError: something impossible was asked for.
    """
    options = BeamOptions(width, groups, diversity, rule, length_penalty, best_only=False, trace=trace)
    return _run(stepper, encoded, special, options, max_length, controls)


def _run(
    stepper: Stepper[EncodedT, StateT],
    encoded: EncodedT,
    special: SpecialIds,
    options: BeamOptions,
    max_length: int,
    controls: Sequence[Control],
) -> DecodingResult:
    if options.rule == "earlier":
        controls = (*controls, SuppressUnknown())
    arguments = check_arguments(stepper.vocab_size, special, max_length=max_length, controls=controls)
    with torch.inference_mode():
        state = stepper.start(encoded, trace=options.trace)
        result = BeamSearch(arguments, options, images=state.rows, device=state.device).run(stepper, state)
    return result.usable_in_autograd()
