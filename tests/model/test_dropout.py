"""Dropout that decides for four elements at a time."""

from __future__ import annotations

import pytest
import torch

from xlan.errors import ModelError
from xlan.model.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_share_and_scale(p):
    torch.manual_seed(0)
    x = torch.ones(1000, 1001)
    y = Dropout(p)(x)
    kept = y != 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=4 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-5)
    assert y[kept].unique().numel() == 1
    assert y[kept][0].item() == pytest.approx(1 / (1 - p), rel=1e-3)


def test_neighbours_are_independent():
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(4_000_000)) != 0).float().view(-1, 4)
    correlation = torch.corrcoef(kept.t())
    assert (correlation - torch.eye(4)).abs().max() < 5e-3


def test_gradient_goes_where_the_value_went():
    torch.manual_seed(0)
    x = torch.randn(100, 101, requires_grad=True)
    y = Dropout(0.3)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_same_seed_same_choice():
    layer, x = Dropout(0.5), torch.ones(9999)
    torch.manual_seed(5)
    first = layer(x)
    torch.manual_seed(5)
    assert torch.equal(layer(x), first)


def test_evaluation_and_zero_change_nothing():
    x = torch.randn(9999)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, 2])
def test_impossible_probability(p):
    with pytest.raises(ModelError, match="expected a probability from 0 to below 1"):
        Dropout(p)
