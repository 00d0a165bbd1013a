"""Conventional attention, Eq. 1."""

from __future__ import annotations

import math

import pytest
import torch

from xlan import ConventionalAttention


def test_two_regions_by_hand():
    layer = ConventionalAttention(1, 1, hidden_dim=1).double()
    with torch.no_grad():
        for linear, value in ((layer.W_k, 2.0), (layer.W_q, 0.5), (layer.W_a, 3.0)):
            linear.weight.fill_(value)
        layer.W_q.bias.zero_()
    regions = torch.tensor([[[0.1], [-0.2]]], dtype=torch.float64)
    found = layer(torch.tensor([[0.4]], dtype=torch.float64), layer.project(regions), return_attention=True)
    scores = [3 * math.tanh(2 * 0.1 + 0.2), 3 * math.tanh(2 * -0.2 + 0.2)]
    first = 1 / (1 + math.exp(scores[1] - scores[0]))
    assert found.spatial[0, 0].tolist() == pytest.approx([first, 1 - first], rel=1e-12)
    assert found.feature.item() == pytest.approx(first * 0.1 - (1 - first) * 0.2, rel=1e-12)
    assert found.channel is None


def test_gradients_and_mask():
    torch.manual_seed(0)
    layer = ConventionalAttention(3, 4, hidden_dim=2).double()
    query = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    regions = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])

    def run(query, regions, *_):
        return layer(query, layer.project(regions, mask=mask)).feature

    assert torch.autograd.gradcheck(run, (query, regions, *layer.parameters()))
    gradient = torch.autograd.grad(run(query, regions).sum(), regions)[0]
    assert torch.equal(gradient[0, 2], torch.zeros(4, dtype=torch.float64))


def test_sequence_of_queries_equals_one_after_the_other():
    torch.manual_seed(0)
    layer = ConventionalAttention(3, 4, hidden_dim=2).double()
    query, regions = torch.randn(2, 5, 3).double(), torch.randn(2, 3, 4).double()
    cache = layer.project(regions)
    together = layer(query, cache).feature
    for q in range(5):
        torch.testing.assert_close(together[:, q], layer(query[:, q], cache).feature)
