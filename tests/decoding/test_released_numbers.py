"""Searches over both released models give the sentences and log-probabilities the released code gave."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from xlan.decoding import Ensemble, beam_reference, beam_search, greedy, sample
from xlan.model.build import build_model
from xlan.model.released import convert_released
from xlan.types import SpecialIds

FIXTURES = Path(__file__).parent.parent / "fixtures" / "reference"
SPECIAL = SpecialIds(pad=0, bos=0, eos=0, unk=49)


def load(tag: str):
    spec, weights = convert_released(load_file(FIXTURES / f"{tag}_weights.safetensors"))
    model = build_model(spec).double().eval()
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()})
    inputs = load_file(FIXTURES / f"{tag}_inputs.safetensors")
    with torch.no_grad():
        encoded = model.encode(inputs["att_feats"].double(), inputs["att_mask"].bool())
    return model, encoded, load_file(FIXTURES / f"{tag}_outputs_f64.safetensors")


@pytest.fixture(scope="module", params=["xlan", "xtransformer"])
def released(request):
    return load(request.param)


def agree(result, numbers, name: str) -> None:
    """The first hypotheses of `result` are those of the released code; behind `eos` it has leftovers."""
    ids, log_probs = numbers[f"{name}_seq"], numbers[f"{name}_logprobs"]
    for image, found in enumerate(result.best()):
        length = len(found.ids)
        assert list(found.ids) + [SPECIAL.pad] * (17 - length) == ids[image].tolist()
        assert found.log_probs == pytest.approx(log_probs[image, :length].tolist(), abs=1e-9)
        assert found.total == pytest.approx(float(log_probs[image, :length].sum()), abs=1e-9)


def test_greedy(released) -> None:
    model, encoded, numbers = released
    agree(greedy(model, encoded, SPECIAL), numbers, "greedy")


@pytest.mark.parametrize("best_only", [False, True])
@pytest.mark.parametrize("width", [2, 3, 5])
def test_beam(released, width: int, best_only: bool) -> None:
    model, encoded, numbers = released
    agree(beam_search(model, encoded, SPECIAL, width=width, best_only=best_only), numbers, f"beam{width}")


def test_earlier_beam_rule() -> None:
    model, encoded, numbers = load("xlan")  # the earlier search never was used with X-Transformer
    result = beam_search(model, encoded, SPECIAL, width=3, rule="earlier")
    for image, found in enumerate(result.best()):
        length = len(found.ids)
        assert list(found.ids) + [SPECIAL.pad] * (17 - length) == numbers["legacy_beam3_seq"][image].tolist()
        # The earlier code rounded log-probabilities to float32 before it used them.
        rounded = torch.tensor(found.log_probs, dtype=torch.float64).float().double()
        assert rounded.tolist() == pytest.approx(numbers["legacy_beam3_logprobs"][image, :length].tolist(), abs=1e-9)
        assert found.score == pytest.approx(float(numbers["legacy_beam3_score"][image]), abs=1e-6)
        # Where both rules find the same sentence, the fixture of the released rule has all digits.
        assert found.log_probs == pytest.approx(numbers["beam3_logprobs"][image, :length].tolist(), abs=1e-9)


@pytest.mark.parametrize("rule", ["released", "earlier"])
def test_all_beams_equal_the_reference(released, rule) -> None:
    model, encoded, _ = released
    found = beam_search(model, encoded, SPECIAL, width=3, rule=rule).hypotheses()
    expected = beam_reference(model, encoded, SPECIAL, width=3, rule=rule)
    assert [[h.ids for h in image] for image in found] == [[h.ids for h in image] for image in expected]
    for ours, theirs in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-9)


def test_an_ensemble_of_one_is_the_model(released) -> None:
    model, encoded, numbers = released
    agree(beam_search(Ensemble([model]), (encoded,), SPECIAL, width=3), numbers, "beam3")


def test_attention_is_what_the_model_shows_for_the_sentence(released) -> None:
    model, encoded, _ = released
    for image, found in enumerate(beam_search(model, encoded, SPECIAL, width=3, trace=True).hypotheses()):
        for hypothesis in found:
            with torch.no_grad():
                state = model.start(encoded, trace=True).select(torch.tensor([image]))
                for step, token in enumerate((SPECIAL.bos, *hypothesis.ids[:-1])):
                    _, state = model.step(torch.tensor([token]), state)
                    assert torch.allclose(hypothesis.spatial[step], state.trace.spatial[0], atol=1e-9)
                    assert torch.allclose(hypothesis.channel[step], state.trace.channel[0], atol=1e-9)


def test_samples_can_be_trained_through(released) -> None:
    model, encoded, _ = released
    generator = torch.Generator().manual_seed(0)
    result = sample(model, encoded, SPECIAL, n=3, generator=generator, grad=True)
    result.scores.sum().backward()
    gradient = next(model.decoder.parameters()).grad
    model.zero_grad()
    assert gradient is not None
    assert float(gradient.abs().sum()) > 0


def test_other_images_in_the_batch_change_nothing(released) -> None:
    model, encoded, _ = released
    together = beam_search(model, encoded, SPECIAL, width=3).hypotheses()
    for image, expected in enumerate(together):
        one = slice(image, image + 1)
        mask = None if encoded.mask is None else encoded.mask[one]
        alone = type(encoded)(encoded.summary[one], encoded.regions[one], mask)
        found = beam_search(model, alone, SPECIAL, width=3).hypotheses()[0]
        assert [h.ids for h in found] == [h.ids for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-9)
