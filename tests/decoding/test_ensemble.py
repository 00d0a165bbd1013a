from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import Ensemble, beam_search, diverse_beam_search, greedy, sample
from xlan.errors import DecodingError
from xlan.types import StepTrace


@given(st.integers(0, 10_000), st.sampled_from(["released", "earlier"]))
@settings(deadline=None, max_examples=20)
def test_an_ensemble_of_one_is_the_model(random_model, aliased, seed, rule) -> None:
    model, images = random_model(seed=seed, end=1.0), torch.arange(3)
    alone = beam_search(model, images, aliased, rule=rule, max_length=8, trace=True)
    ensemble = beam_search(Ensemble([model]), (images,), aliased, rule=rule, max_length=8, trace=True)
    for name in ("ids", "log_probs", "scores", "spatial", "channel"):
        assert torch.equal(getattr(alone, name), getattr(ensemble, name)), name


def test_probabilities_are_averaged_at_every_step(random_model, aliased) -> None:
    models = [random_model(seed=seed, end=1.0) for seed in (1, 2, 3)]
    images = torch.arange(4)
    for image, found in enumerate(beam_search(Ensemble(models), (images,) * 3, aliased).hypotheses()):
        for hypothesis in found:
            each = torch.tensor([model.replay(image, hypothesis.ids, aliased.bos)[0] for model in models])
            assert hypothesis.log_probs == pytest.approx(each.double().exp().mean(0).log().tolist(), abs=1e-6)


def test_the_order_of_the_models_does_not_matter(random_model, aliased) -> None:
    models = [random_model(seed=seed, end=1.0) for seed in (1, 2, 3)]
    images = (torch.arange(4),) * 3
    one, other = (beam_search(Ensemble(some), images, aliased) for some in (models, models[::-1]))
    assert torch.equal(one.ids, other.ids)


@pytest.mark.parametrize("method", [greedy, sample, diverse_beam_search])
def test_every_search_takes_an_ensemble(random_model, aliased, method) -> None:
    ensemble = Ensemble([random_model(seed=1), random_model(seed=2)])
    result = method(ensemble, (torch.arange(3),) * 2, aliased, trace=True)
    assert result.ids.shape[0] == 3
    assert torch.allclose(result.spatial.sum(-1)[result.mask], torch.ones((), dtype=torch.float64))


def test_encode_asks_every_model(random_model, aliased) -> None:
    ensemble = Ensemble([random_model(seed=1), random_model(seed=2)])
    features = torch.arange(3.0).view(3, 1, 1)
    encoded = ensemble.encode(features)
    assert [one.tolist() for one in encoded] == [[0, 1, 2]] * 2


def test_a_gate_that_not_all_have_is_left_out(random_model, aliased) -> None:
    one, other = random_model(seed=1), random_model(seed=2)
    other.look = lambda key: StepTrace(other.noise(key, other.regions), None)
    result = greedy(Ensemble([one, other]), (torch.arange(2),) * 2, aliased, trace=True)
    assert result.spatial is not None
    assert result.channel is None


def test_different_vocabularies_are_refused(random_model) -> None:
    with pytest.raises(DecodingError, match="need the same vocabulary, got 9,488, 6 words"):
        Ensemble([random_model(vocab_size=9488), random_model(vocab_size=6)])


def test_no_models_are_refused() -> None:
    with pytest.raises(DecodingError, match="at least one model, got none"):
        Ensemble([])


def test_encodings_must_match_the_models(random_model, aliased) -> None:
    ensemble = Ensemble([random_model(), random_model()])
    with pytest.raises(DecodingError, match="an ensemble of 2 needs one encoding per model, in the same order, got 1"):
        greedy(ensemble, (torch.arange(3),), aliased)
    with pytest.raises(DecodingError, match=r"must be of the same images, got \[3, 2\] images"):
        greedy(ensemble, (torch.arange(3), torch.arange(2)), aliased)
