"""The search over numpy arrays finds what the search over tensors finds, ties included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import (
    Forbid,
    MinLength,
    NoBadEnding,
    Require,
    SuppressUnknown,
    alternatives,
    beam_search,
    sample,
)
from xlan.engines.interface import SearchRequest
from xlan.engines.numpy_search import largest, runners_up, score, search
from xlan.errors import DecodingError
from xlan.types import SpecialIds, StepTrace

SPECIAL = SpecialIds(pad=0, bos=1, eos=2, unk=3)
ONE_ID = SpecialIds(pad=0, bos=0, eos=0, unk=8)  # as in the released checkpoints


@dataclass(frozen=True)
class ToyRows:
    """`key` `[R]` stands for the image and all words so far."""

    key: np.ndarray
    spatial: np.ndarray | None = None
    channel: np.ndarray | None = None


class Toy:
    """Log-probabilities that look random, from the image and every word so far; `levels` makes ties abound."""

    regions: ClassVar[int] = 3

    def __init__(self, vocab_size: int, seed: int, *, levels: int = 0, end: float = 0.0, eos: int = 2) -> None:
        self.vocab_size, self.seed, self.levels, self.end, self.eos = vocab_size, seed, levels, end, eos

    def start(self, images: int) -> ToyRows:
        return ToyRows(_mixed(np.arange(images, dtype=np.int64) * 7919 + self.seed))

    def select(self, rows: ToyRows, index: np.ndarray) -> ToyRows:
        return ToyRows(rows.key[index])

    def step(self, tokens: np.ndarray, rows: ToyRows) -> tuple[np.ndarray, ToyRows]:
        assert tokens.shape == rows.key.shape
        key = _mixed(rows.key * 31 + tokens + 1)
        logits = _noise(key, self.vocab_size) * (self.levels or 12)
        logits = np.floor(logits) if self.levels else logits
        logits[:, self.eos] += self.end
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return log_probs.astype(np.float32), ToyRows(key, _noise(key + 1, self.regions), _noise(key + 2, 2))


def _mixed(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        for factor in (-7046029254386353131, -4658895280553007687):
            x = (x ^ (x >> 29)) * np.int64(factor)
    return x ^ (x >> 32)


def _noise(key: np.ndarray, size: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        each = _mixed(key[:, None] + np.arange(size, dtype=np.int64) * 1000003)
    return (((each >> 11) & 0xFFFFF) / 0x100000).astype(np.float32)


@dataclass(frozen=True)
class TensorState:
    """The same rows for the search over tensors."""

    toy: ToyRows
    trace: StepTrace | None = None
    device: ClassVar[torch.device] = torch.device("cpu")

    @property
    def rows(self) -> int:
        return len(self.toy.key)

    def select(self, index: torch.Tensor) -> TensorState:
        return TensorState(ToyRows(self.toy.key[index.numpy()]))


class TensorToy:
    """The same model for the search over tensors; `encoded` is a number of images."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.vocab_size = toy, toy.vocab_size

    def start(self, encoded: int, *, trace: bool = False) -> TensorState:
        return TensorState(self.toy.start(encoded))

    def step(self, tokens: torch.Tensor, state: TensorState) -> tuple[torch.Tensor, TensorState]:
        log_probs, rows = self.toy.step(tokens.numpy(), state.toy)
        trace = StepTrace(torch.from_numpy(rows.spatial), torch.from_numpy(rows.channel))
        return torch.from_numpy(log_probs), TensorState(rows, trace)


def controls_of(request: SearchRequest) -> list:
    some = [SuppressUnknown(), NoBadEnding(request.bad_endings), MinLength(1), Forbid(sorted(request.forbidden))]
    return [*some, Require(request.required)] if request.required else some


def ours(toy: Toy, images: int, request: SearchRequest, special: SpecialIds):
    return [
        [(one.ids, one.finished) for one in image] for image in search(toy, toy.start(images), images, special, request)
    ]


def outcome(run):
    """What a search found, or that it found nothing."""
    try:
        return run()
    except DecodingError as error:
        return str(error)


def ids(low: int, high: int, most: int):
    return st.frozensets(st.integers(low, high), max_size=most)


@st.composite
def requests(draw, *, vocab: int, special: SpecialIds) -> SearchRequest:
    words = st.integers(4, vocab - 1).filter(lambda i: i not in (special.unk, special.eos))
    phrases = st.lists(words, min_size=1, max_size=2).map(tuple)
    required = st.lists(st.lists(phrases, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple)
    return SearchRequest(
        beams=draw(st.integers(1, 4)),
        rule=draw(st.sampled_from(["released", "earlier"])),
        max_length=draw(st.integers(1, 6)),
        required=draw(required),
        bad_endings=frozenset(draw(st.lists(words, max_size=2))),
        forbidden=frozenset({special.pad, special.bos} - {special.eos}),
        attention=draw(st.booleans()),
    )


@st.composite
def cases(draw):
    special = draw(st.sampled_from([SPECIAL, ONE_ID]))
    vocab = draw(st.integers(9, 12))
    levels = draw(st.sampled_from([0, 2, 3]))
    toy = Toy(vocab, draw(st.integers(0, 99)), levels=levels, end=draw(st.floats(-2, 8)), eos=special.eos)
    return toy, draw(st.integers(1, 3)), special, draw(requests(vocab=vocab, special=special))


def over_tensors(toy: Toy, images: int, request: SearchRequest, special: SpecialIds):
    found = beam_search(
        TensorToy(toy),
        images,
        special,
        width=request.beams,
        rule=request.rule,
        max_length=request.max_length,
        controls=controls_of(request),
    )
    return [[(one.ids, one.finished) for one in image] for image in found.hypotheses()]


@settings(deadline=None)
@given(cases())
def test_beams_equal_those_of_the_search_over_tensors(case):
    toy, images, special, request = case
    expected = outcome(lambda: over_tensors(toy, images, request, special))
    assert outcome(lambda: ours(toy, images, request, special)) == expected


@pytest.mark.parametrize("rule", ["released", "earlier"])
def test_images_are_not_given_up_too_early(rule):
    """Sharp models whose sentences end early or late: a search that stops too soon differs in some of them."""
    for seed in range(150):
        toy = Toy(11, seed, end=seed % 8)
        request = SearchRequest(beams=3, rule=rule, max_length=6, forbidden=frozenset({0, 1}))
        assert ours(toy, 2, request, SPECIAL) == over_tensors(toy, 2, request, SPECIAL)


@settings(deadline=None)
@given(cases(), st.integers(1, 3), st.sampled_from([None, 0.5, 0.9]), st.floats(0.5, 2), st.integers(0, 9))
def test_draws_equal_those_of_the_search_over_tensors(case, samples, top_p, temperature, seed):
    toy, images, special, request = case
    request = replace(request, samples=samples, top_p=top_p, temperature=temperature, seed=seed)

    def theirs():
        found = sample(
            TensorToy(toy),
            images,
            special,
            n=samples,
            temperature=temperature,
            top_p=top_p,
            uniform=torch.from_numpy(request.chances()).repeat(images, 1),
            max_length=request.max_length,
            controls=controls_of(request),
        )
        return [[(one.ids, one.finished) for one in image] for image in found.hypotheses()]

    assert outcome(lambda: ours(toy, images, request, special)) == outcome(theirs)


@pytest.mark.parametrize("samples", [0, 2])
def test_log_probabilities_and_attention_belong_to_the_words(samples):
    toy = Toy(9, 5)
    request = SearchRequest(beams=3, samples=samples, max_length=5, attention=True)
    for image, found in enumerate(search(toy, toy.start(2), 2, SPECIAL, request)):
        for one in found:
            rows, token = toy.select(toy.start(2), np.array([image])), SPECIAL.bos
            for t, word in enumerate(one.ids):
                log_probs, rows = toy.step(np.array([token]), rows)
                assert one.log_probs[t] == log_probs[0, word]
                np.testing.assert_array_equal(one.spatial[t], rows.spatial[0])
                np.testing.assert_array_equal(one.channel[t], rows.channel[0])
                token = word
            assert one.total == pytest.approx(sum(one.log_probs), abs=1e-5)


def test_attention_is_kept_only_when_asked_for():
    toy = Toy(9, 5)
    (one, *_), *_ = search(toy, toy.start(1), 1, SPECIAL, SearchRequest(max_length=4))
    assert one.spatial is None
    assert one.channel is None


def test_runners_up_equal_those_over_tensors():
    toy = Toy(9, 5)
    request = SearchRequest(max_length=5, runners_up=3, never_named=frozenset({0, 1, 2, 3}))
    captions = [image[0] for image in search(toy, toy.start(3), 3, SPECIAL, request)]
    got = runners_up(toy, toy.start(3), SPECIAL, captions, request)
    longest = max(len(caption.ids) for caption in captions)
    padded = torch.tensor([[*caption.ids, *[0] * (longest - len(caption.ids))] for caption in captions])
    names, values = alternatives(TensorToy(toy), 3, SPECIAL, padded, count=3, without=request.never_named)
    for image, caption in enumerate(captions):
        assert len(got[image]) == len(caption.ids)
        for t, place in enumerate(got[image]):
            assert [i for i, _ in place] == names[image, t].tolist()
            assert [p for _, p in place] == values[image, t].tolist()


def test_scores_are_those_of_the_search_that_found_a_sentence():
    toy = Toy(9, 6)
    rows = toy.start(2)
    captions = [image[0] for image in search(toy, rows, 2, SPECIAL, SearchRequest(max_length=6))]
    finished = [one for one in captions if one.finished]
    assert finished
    got = score(toy, rows, SPECIAL, [one.words for one in captions])
    for one, values in zip(captions, got, strict=True):
        assert len(values) == len(one.words) + 1
        np.testing.assert_array_equal(values[: len(one.ids)], np.array(one.log_probs, np.float32))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=4), st.integers(1, 6))
def test_of_equals_the_lower_id_comes_first(rows, count):
    scores = np.array(rows, np.float32)
    tokens, values = largest(scores.copy(), count)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, expected, axis=1))


def test_a_model_that_returns_nan_is_reported():
    class Broken(Toy):
        def step(self, tokens, rows):
            log_probs, rows = super().step(tokens, rows)
            log_probs[-1] = np.nan
            return log_probs, rows

    toy = Broken(9, 0)
    for samples in (0, 1):
        with pytest.raises(DecodingError, match="NaN instead of log-probabilities for image 1"):
            search(toy, toy.start(2), 2, SPECIAL, SearchRequest(max_length=3, samples=samples))


def test_impossible_requests_are_refused():
    toy = Toy(9, 0)
    with pytest.raises(DecodingError, match="they take at least 3 words, but a sentence may have at most 2"):
        search(toy, toy.start(1), 1, SPECIAL, SearchRequest(max_length=2, required=(((4, 5, 6),),)))
    with pytest.raises(DecodingError, match="id 4 is required and forbidden"):
        search(toy, toy.start(1), 1, SPECIAL, SearchRequest(required=(((4,),),), forbidden=frozenset({4})))
    with pytest.raises(DecodingError, match="expected at least 1 step, got 0"):
        search(toy, toy.start(1), 1, SPECIAL, SearchRequest(max_length=0))
    everything = frozenset(range(9)) - {2}
    with pytest.raises(DecodingError, match="no sentence of at most 5 words satisfies the controls for image 0, 1"):
        search(toy, toy.start(2), 2, SPECIAL, SearchRequest(max_length=5, forbidden=everything))
