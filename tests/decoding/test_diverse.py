from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import beam_search, diverse_beam_search
from xlan.errors import DecodingError


def by_hand(model, image, special, *, groups, width, diversity, max_length):
    """Released rule, one image, one group after the other, lists and sorts."""
    start = model.start(torch.tensor([image]))
    beams = [[((), 0.0, start)] for _ in range(groups)]
    for _ in range(max_length):
        said = [0] * model.vocab_size
        for group in range(groups):
            candidates = []
            for ids, total, state in beams[group]:
                if ids and ids[-1] == special.eos:
                    candidates.append((total, ids, total, state, None))
                    continue
                log_probs, after = model.step(torch.tensor([ids[-1] if ids else special.bos]), state)
                for word, value in enumerate(log_probs[0].tolist()):
                    cost = diversity * said[word]
                    candidates.append((total + value - cost, (*ids, word), total + value, after, word))
            chosen = sorted(candidates, key=lambda c: -c[0])[:width]
            for *_, word in chosen:
                if word is not None:
                    said[word] += 1
            beams[group] = [(ids, total, state) for _, ids, total, state, _ in chosen]
    found = [(ids, total) for group in beams for ids, total, _ in group]
    return sorted(found, key=lambda item: -item[1])


@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 4),
    width=st.integers(1, 3),
    diversity=st.sampled_from([0.0, 0.3, 2.0]),
)
@settings(deadline=None, max_examples=30)
def test_equals_the_rule_by_hand(random_model, aliased, seed, groups, width, diversity) -> None:
    model = random_model(vocab_size=7, seed=seed, end=1.0)
    arguments = {"groups": groups, "width": width, "diversity": diversity, "max_length": 6}
    found = diverse_beam_search(model, torch.arange(3), aliased, **arguments).hypotheses()
    for image in range(3):
        expected = by_hand(model, image, aliased, **arguments)
        assert sorted(h.ids for h in found[image]) == sorted(ids for ids, _ in expected)
        assert [h.score for h in found[image]] == pytest.approx([total for _, total in expected])


@pytest.mark.parametrize("rule", ["released", "earlier"])
def test_one_group_is_a_beam_search(random_model, aliased, rule) -> None:
    model = random_model(end=1.0)
    one = diverse_beam_search(model, torch.arange(4), aliased, groups=1, width=3, rule=rule, trace=True)
    plain = beam_search(model, torch.arange(4), aliased, width=3, rule=rule, trace=True)
    assert torch.equal(one.ids, plain.ids)
    assert torch.equal(one.spatial, plain.spatial)


@pytest.mark.parametrize("rule", ["released", "earlier"])
def test_without_diversity_all_groups_find_the_same(random_model, aliased, rule) -> None:
    model = random_model(end=1.0)
    three = diverse_beam_search(model, torch.arange(4), aliased, groups=3, width=2, diversity=0.0, rule=rule)
    plain = beam_search(model, torch.arange(4), aliased, width=2, rule=rule)
    for image in range(4):
        expected = [h.ids for h in plain.hypotheses()[image] for _ in range(3)]
        assert [h.ids for h in three.hypotheses()[image]] == expected


def test_much_diversity_makes_groups_begin_differently(random_model, aliased) -> None:
    result = diverse_beam_search(random_model(vocab_size=20), torch.arange(4), aliased, groups=5, diversity=50.0)
    for found in result.hypotheses():
        assert len({h.ids[0] for h in found}) == 5


def test_groups_share_the_row_of_the_first_step(random_model, aliased) -> None:
    model = random_model(vocab_size=20, end=-5.0)
    diverse_beam_search(model, torch.arange(4), aliased, groups=3, width=2, max_length=3)
    assert model.rows_asked == [4, 24, 24]


def test_attention_follows_the_beams(random_model, aliased) -> None:
    model = random_model(end=1.0)
    result = diverse_beam_search(model, torch.arange(3), aliased, groups=2, width=2, trace=True)
    for image, found in enumerate(result.hypotheses()):
        for hypothesis in found:
            values, traces = model.replay(image, hypothesis.ids, aliased.bos)
            assert hypothesis.log_probs == pytest.approx(values, abs=1e-12)
            assert torch.equal(hypothesis.spatial, torch.cat([trace.spatial for trace in traces]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 0}, "groups: expected at least 1, got 0"),
        ({"diversity": -1.0}, "diversity: expected a number of at least 0, got -1.0"),
    ],
)
def test_refuses_what_cannot_be(random_model, aliased, arguments, message) -> None:
    with pytest.raises(DecodingError, match=message):
        diverse_beam_search(random_model(), torch.arange(2), aliased, **arguments)
