"""Random captions: temperature, top-k, top-p, several per image.

The log-probabilities in the result are the model's own of the words drawn, whatever temperature, truncation or control
shaped the draw: it is the quantity self-critical training needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from xlan.decoding.arguments import SearchArguments, check_arguments
from xlan.decoding.controls import Control, Prefix
from xlan.decoding.ranking import top_indices
from xlan.decoding.result import DecodingResult
from xlan.decoding.sentences import Sentences
from xlan.decoding.step import MAX_LENGTH, State, Stepper
from xlan.errors import DecodingError
from xlan.types import SpecialIds, StepTrace

EncodedT = TypeVar("EncodedT")
StateT = TypeVar("StateT", bound=State)


def sample(
    stepper: Stepper[EncodedT, StateT],
    encoded: EncodedT,
    special: SpecialIds,
    *,
    n: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    uniform: Tensor | None = None,
    max_length: int = MAX_LENGTH,
    controls: Sequence[Control] = (),
    trace: bool = False,
    grad: bool = False,
) -> DecodingResult:
    """Draw `n` captions for every image; images are encoded once, and the first step is computed once per image.

    Args:
        stepper: the model, or an `Ensemble`.
        encoded: what the model made of B images.
        special: the special ids of the vocabulary.
        n: captions per image; they are drawn independently.
        temperature: log-probabilities are divided by it: below 1 is safer, above 1 more varied.
        top_k: draw only from the k most likely words.
        top_p: draw only from the smallest set of most likely words whose probabilities sum to `top_p` or more; with
            `top_k`, within those.
        generator: source of randomness; the same seed and the same arguments give the same captions.
        uniform: `[B·n, max_length]` numbers from 0 to below 1 that decide the draws instead of `generator`, one for
            each caption and step: what is drawn for an image then does not depend on the rest of the batch. A negative
            number takes the most likely word, so that greedy captions can be made along with the samples.
        max_length: steps, the one that emits `eos` included.
        controls: see `xlan.decoding.controls`.
        trace: also return the attention of each step.
        grad: keep gradients, so that `result.log_probs` can be trained through; otherwise everything runs in inference
            mode.

    Returns:
        A result with K = n, in the order drawn. `ids.flatten(0, 1)` is `[B·n, T]`, the captions of an image together.

    Raises:
        DecodingError: something impossible was asked for.
    """
    _check(n, temperature=temperature, top_k=top_k, top_p=top_p)
    arguments = check_arguments(stepper.vocab_size, special, max_length=max_length, controls=controls)
    with contextlib.nullcontext() if grad else torch.inference_mode():
        state = stepper.start(encoded, trace=trace)
        images = torch.arange(state.rows, device=state.device)
        sentences = Sentences(arguments, images=state.rows, per_image=n, device=state.device)
        tokens = torch.full_like(images, special.bos)
        for step in range(max_length):
            log_probs, state = stepper.step(tokens, state)
            attention = state.trace
            if step == 0:  # one row per image until here, one per caption from here on
                each = images.repeat_interleave(n)
                log_probs, attention = log_probs.index_select(0, each), _select(attention, each)
                state = state.select(each)
            with torch.no_grad():
                weights = _allowed(arguments, log_probs.detach(), sentences.prefix())
                sentences.refuse_impossible(weights.amax(dim=1))
                chance = None if uniform is None else uniform[sentences.alive, step]
                words = _draw(weights / temperature, top_k, top_p, generator, chance)
            kept = sentences.append(words, log_probs.gather(1, words.unsqueeze(1)).squeeze(1), attention)
            if not sentences.alive.numel():
                break
            if kept is not None:
                state = state.select(kept)
            tokens = sentences.last_tokens()
        result = sentences.result()
    return result.usable_in_autograd()


def _check(n: int, *, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if n < 1:
        raise DecodingError(f"samples per image: expected at least 1, got {n}")
    if not 0 < temperature < float("inf"):
        raise DecodingError(f"temperature: expected a number above 0, got {temperature}; for 0, decode greedily")
    if top_k is not None and top_k < 1:
        raise DecodingError(f"top_k: expected at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise DecodingError(f"top_p: expected a number above 0 and up to 1, got {top_p}")


def _allowed(arguments: SearchArguments, log_probs: Tensor, prefix: Prefix) -> Tensor:
    log_probs = arguments.apply(log_probs, prefix)
    if arguments.required is not None:
        log_probs = arguments.required(log_probs if arguments.controls else log_probs.clone(), prefix)
    return log_probs


def _draw(
    weights: Tensor, top_k: int | None, top_p: float | None, generator: torch.Generator | None, chance: Tensor | None
) -> Tensor:
    """One word for each row of `weights` (`[R, V]`, unnormalised log-probabilities): `[R]`."""
    words = None
    if top_k is not None:
        words = top_indices(weights, top_k)
        weights = weights.gather(1, words)
    probs = torch.softmax(weights, dim=1)
    if top_p is not None:
        probs, order = probs.sort(dim=1, descending=True, stable=True)
        before = probs.cumsum(dim=1) - probs  # probability of the words ahead of each
        probs = probs.masked_fill(before >= top_p, 0.0)
        words = order if words is None else words.gather(1, order)
    if chance is None:
        # With replacement only because torch then inverts one cumulative sum per row instead of drawing V numbers.
        drawn = torch.multinomial(probs, 1, replacement=True, generator=generator)
    else:
        # The first word at which the cumulative probability exceeds the number given; never one of probability 0.
        reached = probs.double().cumsum(dim=1)
        drawn = torch.searchsorted(reached, chance.double().clamp_min(0)[:, None] * reached[:, -1:], right=True)
        drawn = torch.where(chance[:, None] < 0, weights.argmax(dim=1, keepdim=True), drawn)
    return (drawn if words is None else words.gather(1, drawn)).squeeze(1)


def _select(trace: StepTrace | None, index: Tensor) -> StepTrace | None:
    if trace is None:
        return None
    return StepTrace(trace.spatial[index], None if trace.channel is None else trace.channel[index])
