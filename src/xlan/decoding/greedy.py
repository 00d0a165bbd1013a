"""The most likely word at every step; also the baseline of self-critical training.

Of equally likely words the one with the lower id is taken. The same as a beam of width 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from xlan.decoding.arguments import check_arguments
from xlan.decoding.beam import beam_search
from xlan.decoding.controls import Control
from xlan.decoding.result import DecodingResult
from xlan.decoding.sentences import Sentences
from xlan.decoding.step import MAX_LENGTH, State, Stepper
from xlan.types import SpecialIds

EncodedT = TypeVar("EncodedT")
StateT = TypeVar("StateT", bound=State)


def greedy(
    stepper: Stepper[EncodedT, StateT],
    encoded: EncodedT,
    special: SpecialIds,
    *,
    max_length: int = MAX_LENGTH,
    controls: Sequence[Control] = (),
    trace: bool = False,
) -> DecodingResult:
    """Caption every image with the most likely word at each step.

    Args:
        stepper: the model, or an `Ensemble`.
        encoded: what the model made of B images.
        special: the special ids of the vocabulary.
        max_length: steps, the one that emits `eos` included.
        controls: see `xlan.decoding.controls`. With required words this is a beam of width 1 for each combination of
            words mentioned, since the most likely word alone would put them off until the end.
        trace: also return the attention of each step.

    Raises:
        DecodingError: something impossible was asked for.
    """
    arguments = check_arguments(stepper.vocab_size, special, max_length=max_length, controls=controls)
    if arguments.required is not None:
        return beam_search(stepper, encoded, special, width=1, max_length=max_length, controls=controls, trace=trace)
    with torch.inference_mode():
        state = stepper.start(encoded, trace=trace)
        sentences = Sentences(arguments, images=state.rows, per_image=1, device=state.device)
        for _ in range(max_length):
            raw, state = stepper.step(sentences.last_tokens(), state)
            log_probs = arguments.apply(raw, sentences.prefix())
            best, words = log_probs.max(dim=1)
            sentences.refuse_impossible(best)
            kept = sentences.append(words, best, state.trace)
            if not sentences.alive.numel():
                break
            if kept is not None:
                state = state.select(kept)
        result = sentences.result()
    return result.usable_in_autograd()
