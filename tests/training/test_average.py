from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from xlan.training.average import AveragedWeights


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.floats(0.5, 0.9999))
def test_it_is_the_running_average_of_the_formula(values: list[float], decay: float) -> None:
    weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    average = AveragedWeights([("w", weight)], decay)
    expected = 2.0
    for step, value in enumerate(values, start=1):
        weight.data.fill_(value)
        average.update(step)
        keep = min(decay, (step + 1) / (step + 10))
        expected = keep * expected + (1 - keep) * value
    torch.testing.assert_close(average.tensors["w"], torch.tensor([expected], dtype=torch.float64))


def test_applied_exchanges_weights_and_gives_them_back() -> None:
    layer = nn.Linear(2, 2)
    average = AveragedWeights(layer.named_parameters(), 0.9)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for parameter in layer.parameters():
        parameter.data += 1
    trained = {name: value.clone() for name, value in layer.state_dict().items()}
    with average.applied():
        assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(torch.equal(value, trained[name]) for name, value in layer.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in average.tensors.items())
    average.reset()
    assert all(torch.equal(value, trained[name]) for name, value in average.tensors.items())
