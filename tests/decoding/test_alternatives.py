from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import alternatives, greedy
from xlan.errors import DecodingError
from xlan.types import SpecialIds

SPECIAL = SpecialIds(pad=0, bos=1, eos=2, unk=3)


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 6), images=st.integers(1, 3))
def test_they_are_the_likeliest_words_but_the_chosen_one(random_model: type, count: int, images: int) -> None:
    model = random_model(12)
    encoded = torch.arange(images) + 5
    ids = greedy(model, encoded, SPECIAL, max_length=6).ids[:, 0]
    found, log_probs = alternatives(model, encoded, SPECIAL, ids, count=count, without={0, 1, 3})
    state, tokens = model.start(encoded), torch.full_like(ids[:, 0], SPECIAL.bos)
    for t in range(ids.shape[1]):
        expected, state = model.step(tokens, state)
        for b in range(images):
            order = expected[b].argsort(descending=True).tolist()
            wanted = [i for i in order if i not in {0, 1, 3, int(ids[b, t])}][:count]
            assert found[b, t].tolist() == wanted
            assert log_probs[b, t].tolist() == expected[b, wanted].tolist()
        tokens = ids[:, t]


@pytest.mark.parametrize("count", [0, 9])
def test_a_count_that_cannot_be_had_is_refused(random_model: type, count: int) -> None:
    ids = torch.tensor([[4, 2]])
    with pytest.raises(DecodingError, match="expected 1 to 8 alternatives"):
        alternatives(random_model(12), torch.tensor([1]), SPECIAL, ids, count=count, without={0, 1, 3})
