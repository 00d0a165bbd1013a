"""Eq. 7: blocks in sequence, regions told what was found."""

from __future__ import annotations

import pytest
import torch

from xlan import XLinearStack
from xlan.errors import ModelError, ShapeError


def literal(update, attended, regions):
    """`LayerNorm(ReLU(W [v̂, x_i]) + x_i)`, region by region."""
    rows = []
    for i in range(regions.shape[1]):
        joined = torch.cat([attended, regions[:, i]], dim=-1)
        rows.append(update.norm(torch.relu(update.linear(joined)) + regions[:, i]))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("separate", [True, False])
def test_equals_the_recursion_of_the_paper(depth, separate):
    torch.manual_seed(0)
    stack = XLinearStack(8, depth=depth, hidden_dim=3, heads=2, separate_values=separate).double().eval()
    query, regions = torch.randn(2, 8).double(), torch.randn(2, 4, 8).double()
    found = stack(query, regions)
    keys = values = regions
    for m in range(depth):
        layer = stack.layers[m]
        query = layer.block(query, layer.block.project(keys, values)).feature
        torch.testing.assert_close(found.features[m], query)
        new_keys = literal(layer.update_keys, query, keys)
        values = literal(layer.update_values, query, values) if separate else new_keys
        keys = new_keys
    assert len(found.features) == depth
    torch.testing.assert_close(found.keys, keys)
    torch.testing.assert_close(found.values, values)


def test_keys_nobody_reads_have_no_update():
    stack = XLinearStack(8, depth=2, hidden_dim=3, update_last_keys=False)
    assert [layer.update_keys is None for layer in stack.layers] == [False, True]
    assert all(layer.update_values is not None for layer in stack.layers)


def test_one_tensor_for_keys_and_values_takes_no_values():
    stack = XLinearStack(8, depth=1, hidden_dim=3, separate_values=False)
    regions = torch.zeros(1, 2, 8)
    with pytest.raises(ModelError, match="built with separate_values=False, it takes keys only"):
        stack(torch.zeros(1, 8), regions, regions + 1)


def test_negative_depth_is_refused():
    with pytest.raises(ModelError, match="depth: expected 0 or more blocks, got -1"):
        XLinearStack(8, depth=-1, hidden_dim=3)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("regions", "mask", "message"),
    [
        (torch.zeros(2, 3, 7), None, "keys: expected shape [images, regions, 8], got [2, 3, 7]"),
        (torch.zeros(2, 3, 8), torch.ones(2, 4, dtype=torch.bool), "mask: expected shape [2, 3], got [2, 4]"),
        (torch.zeros(2, 3, 8), torch.ones(2, 3), "mask: expected a boolean tensor"),
        (torch.zeros(2, 3, 8), torch.zeros(2, 3, dtype=torch.bool), "image 0 of the batch has no valid region"),
    ],
)
def test_bad_regions_are_refused_in_words(depth, regions, mask, message):
    stack = XLinearStack(8, depth=depth, hidden_dim=3)
    with pytest.raises(ShapeError) as error:
        stack(torch.zeros(2, 8), regions, mask=mask)
    assert message in str(error.value)
