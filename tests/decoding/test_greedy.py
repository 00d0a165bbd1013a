from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import MinLength, beam_search, greedy
from xlan.errors import DecodingError
from xlan.types import SpecialIds


def test_takes_the_most_likely_word_until_the_end(table_model, apart) -> None:
    #          pad  bos  eos  unk   a    b
    rows = {1: [0.0, 0.0, 0.1, 0.0, 0.6, 0.3], 4: [0.0, 0.0, 0.2, 0.0, 0.2, 0.6], 5: [0.0, 0.0, 0.9, 0.0, 0.1, 0.0]}
    model = table_model([rows.get(i, [1, 0, 0, 0, 0, 0]) for i in range(6)])
    (found,) = greedy(model, torch.tensor([7]), apart).best()
    assert found.ids == (4, 5, 2)
    assert found.words == (4, 5)
    assert found.finished
    assert found.log_probs == pytest.approx(torch.tensor([0.6, 0.6, 0.9]).double().log().tolist())
    assert found.score == found.total == pytest.approx(sum(found.log_probs))


def test_of_equal_words_the_lower_id_is_taken(uniform_model, apart) -> None:
    (found,) = greedy(uniform_model(6), torch.tensor([1]), apart, max_length=4).best()
    assert found.ids == (0, 0, 0, 0)
    assert not found.finished


@given(st.integers(0, 10_000), st.sampled_from([0, 2, 3]), st.integers(1, 7))
@settings(deadline=None, max_examples=60)
def test_equals_a_beam_of_one(random_model, aliased, seed: int, levels: int, max_length: int) -> None:
    model = random_model(seed=seed, levels=levels, end=1.0)
    images = torch.arange(5)
    one = greedy(model, images, aliased, max_length=max_length, trace=True)
    beam = beam_search(model, images, aliased, width=1, max_length=max_length, trace=True)
    for name in ("ids", "lengths", "log_probs", "scores", "finished", "spatial", "channel"):
        assert torch.equal(getattr(one, name), getattr(beam, name)), name


def test_finished_rows_are_no_longer_computed(random_model, aliased) -> None:
    model = random_model(end=1.5)
    result = greedy(model, torch.arange(40), aliased)
    alive = [int((result.lengths > step).sum()) for step in range(result.ids.shape[2])]
    assert model.rows_asked == alive
    assert alive[-1] < 40


def test_runs_in_inference_mode_and_returns_ordinary_tensors(random_model, aliased) -> None:
    model = random_model()
    result = greedy(model, torch.arange(2), aliased)
    assert all(model.modes)
    assert not result.ids.is_inference()
    table = torch.nn.Embedding(6, 2)
    table(result.ids).sum().backward()


def test_a_dead_end_names_the_image(table_model, apart) -> None:
    model = table_model([[0, 0, 1, 0, 0, 0]] * 6)
    with pytest.raises(DecodingError, match="no sentence of at most 17 words satisfies the controls for image 0, 1"):
        greedy(model, torch.tensor([5, 6]), apart, controls=[MinLength(1)])


def test_nan_is_reported_as_such(table_model, apart) -> None:
    model = table_model([[float("nan")] * 6] * 6)
    with pytest.raises(DecodingError, match="NaN instead of log-probabilities for image 0"):
        greedy(model, torch.tensor([5]), apart)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 0}, "maximum length: expected at least 1 step, got 0"),
        ({"special": SpecialIds(0, 9, 0, 0)}, r"special id bos=9 is outside the model's vocabulary \(0 to 5\)"),
    ],
)
def test_refuses_what_cannot_be(random_model, aliased, arguments, message) -> None:
    special = arguments.pop("special", aliased)
    with pytest.raises(DecodingError, match=message):
        greedy(random_model(), torch.arange(2), special, **arguments)
