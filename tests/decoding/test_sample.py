from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import MinLength, greedy, sample
from xlan.errors import DecodingError


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_words_are_drawn_as_often_as_they_are_likely(table_model, apart) -> None:
    #                     pad bos eos  unk  a    b
    model = table_model([[0, 0, 0.1, 0.2, 0.3, 0.4]] * 6)
    drawn = sample(model, torch.zeros(50), apart, n=400, max_length=1, generator=seeded(0)).ids.flatten()
    share = torch.bincount(drawn, minlength=6) / len(drawn)
    assert share.tolist() == pytest.approx([0, 0, 0.1, 0.2, 0.3, 0.4], abs=0.015)


def test_temperature_sharpens_as_a_power(table_model, apart) -> None:
    model = table_model([[0, 0, 0.2, 0.8]] * 4)
    drawn = sample(model, torch.zeros(50), apart, n=400, max_length=1, temperature=0.5, generator=seeded(0)).ids
    assert float((drawn == 3).double().mean()) == pytest.approx(0.64 / (0.64 + 0.04), abs=0.015)


def test_samples_of_an_image_differ_after_a_shared_first_step(random_model, aliased) -> None:
    model = random_model(vocab_size=50, end=-2.0)
    result = sample(model, torch.arange(3), aliased, n=5, generator=seeded(0))
    assert model.rows_asked[:2] == [3, 15 - int((result.lengths == 1).sum())]
    assert len({h.ids for h in result.hypotheses()[0]}) == 5


@given(
    st.integers(0, 10_000), st.sampled_from([None, 3]), st.sampled_from([None, 0.7]), st.sampled_from([0.5, 1.0, 2.0])
)
@settings(deadline=None, max_examples=40)
def test_log_probabilities_are_the_models_own(random_model, aliased, seed, top_k, top_p, temperature) -> None:
    model = random_model(seed=seed, end=1.0)
    result = sample(
        model, torch.arange(2), aliased, n=2, generator=seeded(seed), top_k=top_k, top_p=top_p, temperature=temperature
    )
    for image, found in enumerate(result.hypotheses()):
        for hypothesis in found:
            values, _ = model.replay(image, hypothesis.ids, aliased.bos)
            assert hypothesis.log_probs == pytest.approx(values, abs=1e-12)
            assert hypothesis.finished == (hypothesis.ids[-1] == aliased.eos)


def test_the_same_seed_gives_the_same_captions_and_another_seed_others(random_model, aliased) -> None:
    first, again, other = (
        sample(random_model(vocab_size=40), torch.arange(4), aliased, n=3, generator=seeded(s)).ids for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)


def test_top_k_draws_from_the_k_most_likely(table_model, apart) -> None:
    model = table_model([[0, 0, 0.1, 0.2, 0.3, 0.4]] * 6)
    drawn = sample(model, torch.zeros(20), apart, n=50, max_length=1, top_k=2, generator=seeded(0)).ids
    assert set(drawn.flatten().tolist()) == {4, 5}


@pytest.mark.parametrize(("top_p", "words"), [(0.3, {5}), (0.4, {5}), (0.41, {4, 5}), (0.95, {2, 3, 4, 5})])
def test_top_p_draws_from_the_smallest_sufficient_set(table_model, apart, top_p, words) -> None:
    model = table_model([[0, 0, 0.1, 0.2, 0.3, 0.4]] * 6)
    drawn = sample(model, torch.zeros(20), apart, n=100, max_length=1, top_p=top_p, generator=seeded(0)).ids
    assert set(drawn.flatten().tolist()) == words


def test_top_p_works_within_top_k(table_model, apart) -> None:
    model = table_model([[0, 0, 0.1, 0.2, 0.3, 0.4]] * 6)
    drawn = sample(model, torch.zeros(20), apart, n=50, max_length=1, top_k=3, top_p=0.5, generator=seeded(0)).ids
    assert set(drawn.flatten().tolist()) == {4, 5}


def test_top_1_is_greedy_even_among_equals(random_model, aliased) -> None:
    model = random_model(levels=2, end=0.5)
    drawn = sample(model, torch.arange(6), aliased, top_k=1, generator=seeded(0), trace=True)
    best = greedy(model, torch.arange(6), aliased, trace=True)
    assert torch.equal(drawn.ids, best.ids)
    assert torch.equal(drawn.log_probs, best.log_probs)
    assert torch.equal(drawn.spatial, best.spatial)


def test_attention_belongs_to_the_words_drawn(random_model, aliased) -> None:
    model = random_model(end=1.0)
    result = sample(model, torch.arange(3), aliased, n=2, generator=seeded(3), trace=True)
    for image, found in enumerate(result.hypotheses()):
        for hypothesis in found:
            _, traces = model.replay(image, hypothesis.ids, aliased.bos)
            assert torch.equal(hypothesis.spatial, torch.cat([trace.spatial for trace in traces]))
            assert torch.equal(hypothesis.channel, torch.cat([trace.channel for trace in traces]))


def test_finished_captions_are_no_longer_computed(random_model, aliased) -> None:
    model = random_model(end=1.5)
    result = sample(model, torch.arange(10), aliased, n=4, generator=seeded(0))
    alive = [int((result.lengths > step).sum()) for step in range(result.ids.shape[2])]
    assert model.rows_asked == [10, *alive[1:]]


def test_tensors_fit_training(random_model, aliased) -> None:
    result = sample(random_model(end=1.0), torch.arange(3), aliased, n=5, generator=seeded(0))
    assert result.ids.flatten(0, 1).shape == (15, int(result.lengths.max()))
    assert torch.equal(result.mask.sum(-1), result.lengths)
    assert (result.log_probs[~result.mask] == 0).all()
    assert (result.ids[~result.mask] == aliased.pad).all()
    assert not result.ids.is_inference()
    assert torch.allclose(result.log_probs.sum(-1), result.scores)


def test_gradients_flow_when_asked_for(random_model, aliased) -> None:
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    model = random_model(end=1.0)
    plain = model.logits
    model.logits = lambda state: plain(state) * weight
    result = sample(model, torch.arange(3), aliased, n=2, generator=seeded(0), grad=True, controls=[MinLength(2)])
    (gradient,) = torch.autograd.grad(result.scores.sum(), weight)
    assert not any(model.modes)

    def log_likelihood(scale: float) -> float:
        model.logits = lambda state: plain(state) * scale
        found = enumerate(result.hypotheses())
        return sum(sum(model.replay(image, h.ids, aliased.bos)[0]) for image, some in found for h in some)

    slope = (log_likelihood(1 + 1e-6) - log_likelihood(1 - 1e-6)) / 2e-6
    assert float(gradient) == pytest.approx(slope, rel=1e-6)


def test_without_gradients_everything_runs_in_inference_mode(random_model, aliased) -> None:
    model = random_model()
    sample(model, torch.arange(2), aliased)
    assert all(model.modes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "samples per image: expected at least 1, got 0"),
        ({"temperature": 0.0}, "temperature: expected a number above 0, got 0.0; for 0, decode greedily"),
        ({"temperature": float("nan")}, "temperature: expected a number above 0, got nan"),
        ({"top_k": 0}, "top_k: expected at least 1, got 0"),
        ({"top_p": 1.5}, "top_p: expected a number above 0 and up to 1, got 1.5"),
    ],
)
def test_refuses_what_cannot_be(random_model, aliased, arguments, message) -> None:
    with pytest.raises(DecodingError, match=message):
        sample(random_model(), torch.arange(2), aliased, **arguments)
