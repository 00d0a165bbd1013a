"""One weight gradient for all time steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from xlan.model.recurrent_linear import RecurrentLinear


def run(linear, steps, weight, bias, x):
    hidden = x
    for _ in range(steps):
        hidden = torch.tanh(linear(hidden, weight, bias))
    return hidden.square().sum()


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("steps", [1, 4])
def test_gradients_equal_those_of_plain_layers(with_bias, steps):
    torch.manual_seed(0)
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True) if with_bias else None
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    tensors = [weight, x] + ([bias] if with_bias else [])
    expected = torch.autograd.grad(run(F.linear, steps, weight, bias, x), tensors)
    for ours, theirs in zip(
        torch.autograd.grad(run(RecurrentLinear(), steps, weight, bias, x), tensors), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_backward_may_run_twice():
    weight = torch.randn(3, 3, requires_grad=True)
    loss = run(RecurrentLinear(), 3, weight, None, torch.randn(2, 3))
    first = torch.autograd.grad(loss, weight, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], first)


def test_a_pass_for_an_input_alone_leaves_nothing_behind():
    weight, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    loss = run(RecurrentLinear(), 3, weight, None, x)
    torch.autograd.grad(loss, x, retain_graph=True)
    expected = torch.autograd.grad(run(F.linear, 3, weight, None, x), weight)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], expected)


def test_several_weights_keep_apart():
    a, b = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    x = torch.randn(2, 3)
    linear = RecurrentLinear()
    grads = torch.autograd.grad((linear(linear(x, a), b)).sum(), [a, b])
    expected = torch.autograd.grad((F.linear(F.linear(x, a), b)).sum(), [a, b])
    for ours, theirs in zip(grads, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_frozen_weights_and_no_grad_are_plain():
    weight = torch.randn(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    assert torch.equal(RecurrentLinear()(x, weight), F.linear(x, weight))
    with torch.no_grad():
        assert RecurrentLinear()(x, weight.requires_grad_()).grad_fn is None
