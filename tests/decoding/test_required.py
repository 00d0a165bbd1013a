from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import Require, beam_reference, beam_search, greedy, sample
from xlan.errors import DecodingError

PHRASE = st.lists(st.integers(4, 6), min_size=1, max_size=3).map(tuple)
REQUIREMENTS = st.lists(st.lists(PHRASE, min_size=1, max_size=2), min_size=1, max_size=2)


def contains(words, phrase) -> bool:
    return any(tuple(words[i : i + len(phrase)]) == phrase for i in range(len(words)))


@given(REQUIREMENTS)
@settings(deadline=None, max_examples=60)
def test_the_automaton_knows_when_all_is_said(requirements) -> None:
    require = Require(requirements)
    sentences = list(itertools.product(range(3, 7), repeat=4))
    states = require.state_of(torch.tensor(sentences)).tolist()
    for words, state in zip(sentences, states, strict=True):
        said = all(any(contains(words, phrase) for phrase in alternatives) for alternatives in requirements)
        assert (state == require.states - 1) == said, (words, requirements)


@given(REQUIREMENTS)
@settings(deadline=None, max_examples=40)
def test_the_automaton_knows_the_shortest_sentence(requirements) -> None:
    require = Require(requirements)
    shortest = next(
        length
        for length in range(1, 7)
        if any(
            all(any(contains(words, phrase) for phrase in alternatives) for alternatives in requirements)
            for words in itertools.product(range(4, 7), repeat=length)
        )
    )
    assert require.fewest_words == shortest


@given(st.integers(0, 1000), REQUIREMENTS, st.sampled_from(["released", "earlier"]), st.sampled_from([0, 2]))
@settings(deadline=None, max_examples=20)
def test_the_batched_search_equals_the_reference(random_model, apart, seed, requirements, rule, levels) -> None:
    model = random_model(vocab_size=8, seed=seed, eos=2, end=1.0, levels=levels)
    arguments = {"width": 2, "max_length": 6, "rule": rule, "controls": [Require(requirements)]}
    found = beam_search(model, torch.arange(2), apart, **arguments).hypotheses()
    expected = beam_reference(model, torch.arange(2), apart, **arguments)
    assert [[h.ids for h in image] for image in found] == [[h.ids for h in image] for image in expected]


def test_words_come_where_they_fit_and_not_at_the_end(table_model, apart) -> None:
    #        pad bos  eos  unk  red  blue dog  runs
    table = {
        1: [0, 0, 0.01, 0, 0.35, 0.45, 0.18, 0.01],
        4: [0, 0, 0.01, 0, 0.01, 0.01, 0.96, 0.01],
        5: [0, 0, 0.01, 0, 0.01, 0.01, 0.96, 0.01],
        6: [0, 0, 0.10, 0, 0.01, 0.01, 0.01, 0.87],
        7: [0, 0, 0.97, 0, 0.01, 0.01, 0.01, 0.00],
    }
    model = table_model([table.get(i, [0, 0, 1, 0, 0, 0, 0, 0]) for i in range(8)])
    plain = greedy(model, torch.tensor([0]), apart).best()[0]
    forced = greedy(model, torch.tensor([0]), apart, controls=[Require([[4]])]).best()[0]
    assert plain.words == (5, 6, 7)
    assert forced.words == (4, 6, 7)


def test_alternatives_cost_no_more_than_the_cheapest(random_model, apart) -> None:
    model, images = random_model(vocab_size=9, eos=2, end=1.0), torch.arange(4)
    either, one, other = (
        beam_search(model, images, apart, width=200, max_length=4, controls=[Require(r)]).scores[:, 0]
        for r in ([[5, 6]], [[5]], [[6]])
    )
    assert torch.equal(either, torch.maximum(one, other))


@given(st.integers(0, 1000))
@settings(deadline=None, max_examples=20)
def test_samples_mention_what_is_required(random_model, apart, seed) -> None:
    model = random_model(vocab_size=30, seed=seed, eos=2, end=1.0)
    generator = torch.Generator().manual_seed(seed)
    result = sample(
        model, torch.arange(2), apart, n=4, generator=generator, max_length=7, controls=[Require([[20, 21], [(8, 9)]])]
    )
    for hypothesis in itertools.chain(*result.hypotheses()):
        assert {20, 21} & set(hypothesis.words)
        assert contains(hypothesis.words, (8, 9))


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(DecodingError, match="8 requirements make more than 128 combinations; require fewer"):
        Require([[word] for word in range(8)])


@pytest.mark.parametrize("nothing", [[], [[4], []]])
def test_a_requirement_without_words_is_refused(nothing) -> None:
    with pytest.raises(DecodingError, match="every requirement needs at least one word"):
        Require(nothing)
