"""The X-Linear block against the paper, and against everything that may be done to it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from xlan import XLinearAttention
from xlan.errors import ModelError, ShapeError
from xlan.model import bilinear
from xlan.model.dropout import draw_dropped
from xlan.model.xlinear_reference import xlinear_reference

PAPER = {"heads": 1, "activation": "relu", "normalise": False, "bias": False}
PAPER_ELU = {"heads": 1, "activation": "elu", "normalise": False, "bias": False}
RELEASED = {"heads": 4, "activation": "celu", "normalise": True, "bias": True}
FORMS = {"paper": PAPER, "paper+elu": PAPER_ELU, "released": RELEASED}


def make(form: str, **other) -> XLinearAttention:
    torch.manual_seed(1)
    arguments = {"bilinear_dim": 8, "hidden_dim": 3, **FORMS[form], **other}
    block = XLinearAttention(6, 5, 7, **arguments).double().eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return block


def inputs(images: int = 2, queries: int = 3, regions: int = 4):
    generator = torch.Generator().manual_seed(2)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return draw(images, queries, 6), draw(images, regions, 5), draw(images, regions, 7)


def test_two_regions_by_hand():
    """D_q = D_k = D_v = D_B = 2, D_c = 1, all worked out on paper."""
    block = XLinearAttention(2, bilinear_dim=2, hidden_dim=1, **PAPER).double()
    with torch.no_grad():
        block.keys.linear.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        block.query_for_keys.linear.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        block.values.linear.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        block.query_for_values.linear.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        block.W_B.weight.copy_(torch.tensor([[1.0, 0.5]]))
        block.W_b.weight.copy_(torch.tensor([[0.25]]))
        block.W_e.weight.copy_(torch.tensor([[0.1], [-0.2]], dtype=torch.float64))
    query = torch.tensor([[3.0, 1.0]]).double()
    regions = torch.tensor([[[1.0, 2.0], [4.0, -1.0]]]).double()
    found = block(query, block.project(regions), return_attention=True)

    # σ(W_q^k Q) = (4, 2); σ(W_k k_1) = (1, 4), σ(W_k k_2) = (4, 0), the -2 being cut off by ReLU
    # Eq. 2: B_1 = (4, 8), B_2 = (16, 0); Eq. 3: B'_1 = 4 + 4 = 8, B'_2 = 16; b = (2, 4)
    first = 1 / (1 + math.exp(2))
    assert found.spatial[0, 0].tolist() == pytest.approx([first, 1 - first], rel=1e-12)
    # Eq. 4: mean 12; Eq. 5: sigmoid(1.2), sigmoid(-2.4)
    gate = [1 / (1 + math.exp(-1.2)), 1 / (1 + math.exp(2.4))]
    assert found.channel[0].tolist() == pytest.approx(gate, rel=1e-12)
    # Eq. 6: σ(W_q^v Q) = (6, 1); σ(W_v v_1) = (2, 1), σ(W_v v_2) = (0, 4)
    expected = [gate[0] * (first * 2 * 6), gate[1] * (first * 1 + (1 - first) * 4)]
    assert found.feature[0].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_obvious_version(form):
    block = make(form)
    query, keys, values = inputs()
    found = block(query, block.project(keys, values), return_attention=True)
    for image in range(2):
        for q in range(3):
            feature, spatial, channel = xlinear_reference(block, query[image, q], keys[image], values[image])
            torch.testing.assert_close(found.feature[image, q], feature, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(found.spatial[image, q], spatial, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(found.channel[image, q], channel, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    block = make(form)
    query, keys, values = (x.requires_grad_() for x in inputs(2, 2, 3))
    mask = torch.tensor([[True, True, True], [True, False, True]])

    def run(query, keys, values, *_):
        return block(query, block.project(keys, values, mask=mask)).feature

    assert torch.autograd.gradcheck(run, (query, keys, values, *block.parameters()))


def test_one_query_equals_a_sequence_of_one():
    block = make("released")
    query, keys, values = inputs(queries=1)
    cache = block.project(keys, values)
    many, one = block(query, cache, return_attention=True), block(query[:, 0], cache, return_attention=True)
    for a, b in zip(many, one, strict=True):
        assert torch.equal(a[:, 0], b)


@pytest.mark.parametrize("garbage", [0.0, 1e30, float("nan"), float("inf")])
def test_padded_regions_have_exactly_no_effect(garbage):
    block = make("released")
    query, keys, values = inputs(images=1, regions=3)
    padded_keys = torch.cat([keys, torch.full((1, 2, 5), garbage, dtype=torch.float64)], 1)
    padded_values = torch.cat([values, torch.full((1, 2, 7), garbage, dtype=torch.float64)], 1)
    mask = torch.tensor([[True, True, True, False, False]])
    plain = block(query, block.project(keys, values, mask=mask[:, :3]), return_attention=True)
    found = block(query, block.project(padded_keys, padded_values, mask=mask), return_attention=True)
    torch.testing.assert_close(found.feature, plain.feature, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(found.channel, plain.channel, rtol=1e-14, atol=1e-15)
    assert torch.equal(found.spatial[..., 3:], torch.zeros(1, 3, 4, 2, dtype=torch.float64))
    found.feature.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in block.parameters())


def test_order_of_regions_does_not_matter():
    block = make("released")
    query, keys, values = inputs()
    order = torch.tensor([2, 0, 3, 1])
    here = block(query, block.project(keys, values), return_attention=True)
    there = block(query, block.project(keys[:, order], values[:, order]), return_attention=True)
    torch.testing.assert_close(there.feature, here.feature, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(there.spatial, here.spatial[..., order], rtol=1e-12, atol=1e-14)


def test_spatial_attention_adds_up_and_the_gate_is_a_gate():
    block = make("released")
    query, keys, values = inputs()
    found = block(query, block.project(keys, values), return_attention=True)
    torch.testing.assert_close(found.spatial.sum(-1), torch.ones(2, 3, 4, dtype=torch.float64))
    assert ((found.channel > 0) & (found.channel < 1)).all()


def test_causal_queries_do_not_see_the_future():
    block = make("released", bilinear_dim=8)
    query, keys, values = inputs(queries=4, regions=4)
    allowed = torch.ones(4, 4, dtype=torch.bool).tril()
    before = block(query, block.project(keys, values), allowed=allowed).feature
    keys[:, 3], values[:, 3] = 9.0, 9.0
    after = block(query, block.project(keys, values), allowed=allowed).feature
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


def plain_scores(query, keys, mean, weight, bias, score_weight, score_bias):
    hidden = torch.relu((query.unsqueeze(3) * keys.unsqueeze(2)) @ weight.t() + bias)
    return (hidden @ score_weight.t() + score_bias).squeeze(-1), (mean.unsqueeze(3) @ hidden).squeeze(3)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 5), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_chunks_of_any_size_give_the_same(groups, queries, regions, chunk):
    generator = torch.Generator().manual_seed(groups * 100 + queries * 10 + regions)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    mean = torch.rand(1, 1, queries, regions, generator=generator, dtype=torch.float64)
    query, keys = draw(1, groups, queries, 4), draw(1, groups, regions, 4)
    weights = [draw(3, 4), draw(3), draw(1, 3), draw(1)]
    tensors = [query, keys, *weights]
    plain = plain_scores(query, keys, mean, *weights)
    wanted = torch.autograd.grad(sum(x.square().sum() for x in plain), tensors)
    original, bilinear.CPU_CHUNK = bilinear.CPU_CHUNK, chunk
    try:
        found = bilinear.bilinear_scores(query, keys, mean, tuple(weights[:2]), tuple(weights[2:]))
        gradients = torch.autograd.grad(sum(x.square().sum() for x in found), tensors)
    finally:
        bilinear.CPU_CHUNK = original
    for ours, theirs in zip((*found, *gradients), (*plain, *wanted), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("chunk", [64, 1 << 19])
def test_dropout_inside_the_chunks_equals_dropout_outside(chunk, monkeypatch):
    monkeypatch.setattr(bilinear, "CPU_CHUNK", chunk)
    torch.manual_seed(0)
    shapes = [(2, 3, 4, 8), (2, 3, 5, 8), (6, 8), (6,), (1, 6), (1,)]
    query, keys, *weights = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes)
    mean = torch.full((2, 1, 4, 5), 0.2, dtype=torch.float64)
    torch.manual_seed(1)
    found = bilinear.bilinear_scores(query, keys, mean, tuple(weights[:2]), tuple(weights[2:]), dropout=0.3)
    torch.manual_seed(1)
    dropped, scale = draw_dropped((6, 4, 5, 6), 0.3, query.device)
    hidden = torch.relu((query.unsqueeze(3) * keys.unsqueeze(2)) @ weights[0].t() + weights[1])
    hidden = hidden.masked_fill(dropped.view(hidden.shape), 0.0) * scale
    plain = (hidden @ weights[2].t() + weights[3]).squeeze(-1), (mean.unsqueeze(3) @ hidden).squeeze(3)
    tensors = [query, keys, *weights]
    ours = torch.autograd.grad(sum(x.square().sum() for x in found), tensors)
    theirs = torch.autograd.grad(sum(x.square().sum() for x in plain), tensors)
    for a, b in zip((*found, *ours), (*plain, *theirs), strict=True):
        torch.testing.assert_close(a, b)


class LargestTensor(TorchDispatchMode):
    """Watches every tensor that any operation, forwards or backwards, returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def test_neither_the_query_key_product_nor_its_hidden_layer_is_materialised(monkeypatch):
    images, queries, regions, heads, width, hidden = 4, 30, 20, 2, 32, 4
    monkeypatch.setattr(bilinear, "CPU_CHUNK", 1 << 12)
    block = XLinearAttention(64, bilinear_dim=heads * width, hidden_dim=hidden, heads=heads, bias=True)
    query = torch.randn(images, queries, 64, requires_grad=True)
    with LargestTensor() as watch:
        block(query, block.project(torch.randn(images, regions, 64))).feature.sum().backward()
    product = images * heads * queries * regions * width
    assert watch.elements < images * heads * queries * regions * hidden < product


def test_training_remembers_less_than_the_hidden_layer():
    """What autograd keeps of a block, dropout's choices included, is less than half of B' in single precision."""
    images, queries, regions, heads, width, hidden = 2, 60, 50, 4, 96, 48
    block = XLinearAttention(
        heads * width, bilinear_dim=heads * width, hidden_dim=hidden, heads=heads, bias=True, dropout=0.1
    )
    kept: dict[int, int] = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = sum(parameter.numel() * 4 for parameter in block.parameters())
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        block(torch.randn(images, queries, heads * width), block.project(torch.randn(images, regions, heads * width)))
    assert sum(kept.values()) - weights < images * heads * queries * regions * hidden * 4 / 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(2, 4, 9)}, "keys: expected shape [images, regions, 5], got [2, 4, 9]"),
        ({"keys": torch.zeros(2, 0, 5)}, "keys: expected at least one region per image, got shape [2, 0, 5]"),
        ({"values": torch.zeros(2, 3, 7)}, "values: expected one per key [2, 4], got [2, 3]"),
        ({"mask": torch.ones(2, 4)}, "mask: expected a boolean tensor (True = region exists), got torch.float32"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, "mask: expected shape [2, 4], got [2, 5]"),
        ({"mask": torch.tensor([[True] * 4, [False] * 4])}, "mask: image 1 of the batch has no valid region"),
        ({"query": torch.zeros(3, 6)}, "query: expected shape [2, 6] or [2, queries, 6], got [3, 6]"),
        ({"query": torch.zeros(2, 9)}, "query: expected shape [2, 6] or [2, queries, 6], got [2, 9]"),
        ({"allowed": torch.ones(1, 4)}, "allowed: expected a boolean tensor [1, 4] or [2, 1, 4], got torch.float32"),
        ({"allowed": torch.ones(1, 5, dtype=torch.bool)}, "got torch.bool [1, 5]"),
        ({"allowed": torch.zeros(1, 4, dtype=torch.bool)}, "allowed: a query may see no region at all"),
    ],
)
def test_bad_input_is_refused_in_words(change, message):
    block = make("released").float()
    given = {"query": torch.zeros(2, 6), "keys": torch.zeros(2, 4, 5), "values": torch.zeros(2, 4, 7), "mask": None}
    given |= {"allowed": None} | change

    def attend():
        cache = block.project(given["keys"], given["values"], mask=given["mask"])
        return block(given["query"], cache, allowed=given["allowed"])

    with pytest.raises(ShapeError) as error:
        attend()
    assert message in str(error.value)


def test_impossible_arguments_are_refused_in_words():
    with pytest.raises(ShapeError, match="heads: expected a divisor of bilinear_dim 10, got 4"):
        XLinearAttention(4, bilinear_dim=10, heads=4)
    with pytest.raises(ShapeError, match="heads: expected a divisor of bilinear_dim 10, got 0"):
        XLinearAttention(4, bilinear_dim=10, heads=0)
    with pytest.raises(ModelError, match="activation: expected one of relu, elu, celu, got 'gelu'"):
        XLinearAttention(4, activation="gelu")


def test_keys_and_values_are_projected_once_for_many_queries():
    block = make("released")
    query, keys, values = inputs()
    cache = block.project(keys, values)

    class Count(TorchFunctionMode):
        linears = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.nn.functional.linear and args[0].shape[-1] in (5, 7):
                Count.linears += 1
            return func(*args, **(kwargs or {}))

    with Count():
        block(query, cache)
        block(query + 1, cache)
    assert Count.linears == 0
