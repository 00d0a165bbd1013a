from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from xlan.errors import WeightsError
from xlan.training.state import (
    load_model_tensors,
    load_optimizer_tensors,
    model_tensors,
    optimizer_tensors,
    whole_weights,
)


def trained(kind: type[torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(5, 3)).pow(2).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam])
def test_training_goes_on_as_if_nothing_had_happened(kind: type[torch.optim.Optimizer]) -> None:
    model, optimizer = trained(kind)
    weights = {name: value.clone() for name, value in model_tensors(model).items()}
    slots = {name: value.clone() for name, value in optimizer_tensors(model, optimizer).items()}
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fresh = kind(other.parameters(), lr=0.1)  # type: ignore[call-arg]
    load_model_tensors(other, weights)
    load_optimizer_tensors(other, fresh, slots)
    for _ in range(3):
        step(model, optimizer)
        step(other, fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_before_the_first_step_there_is_no_state() -> None:
    model = nn.Linear(2, 2)
    assert optimizer_tensors(model, torch.optim.Adam(model.parameters())) == {}


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(WeightsError, match=r"do not fit the model: .*weight") as caught:
        load_model_tensors(nn.Linear(2, 3), {"weight": torch.zeros(2, 2), "bias": torch.zeros(3)})
    assert "\n" not in str(caught.value)


def test_missing_optimiser_state_is_an_error() -> None:
    model, optimizer = trained(torch.optim.Adam)
    slots = optimizer_tensors(model, optimizer)
    some = {name: value for name, value in slots.items() if not name.startswith("1.bias")}
    other = copy.deepcopy(model)
    with pytest.raises(WeightsError, match="the optimiser state does not fit"):
        load_optimizer_tensors(other, torch.optim.Adam(other.parameters()), some)


def test_an_ordinary_model_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    with whole_weights(model):
        assert model.weight.shape == (2, 2)
