"""With several threads, the same step gives the same gradients, bit for bit."""

from __future__ import annotations

import pytest
import torch

from xlan import build_model
from xlan.decoding import sample
from xlan.types import SpecialIds

REPEATS = 8
NAMES = [
    "xlan-tiny",
    "xtransformer-tiny",
    "transformer-tiny",
    "lstm-tiny",
    "lstm-a3-tiny",
    "att2in-tiny",
    "updown-lb-tiny",
    "gcn-lstm-spatial-tiny",
    "aoanet-tiny",
]
BOXES = torch.rand(2, 9, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def teacher_forced(model, images=2, captions=3, words=4):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(images, 9, 16, generator=generator)
    mask = torch.arange(9) < torch.randint(1, 10, (images, 1), generator=generator)
    tokens = torch.randint(0, 40, (images * captions, words), generator=generator)
    lengths = torch.randint(1, words + 1, (images * captions,), generator=generator)
    return model(features, mask, tokens, lengths, boxes=BOXES).square().mean()


def sampled(model, images=2, captions=3):
    special = SpecialIds(pad=0, bos=1, eos=2, unk=3)
    encoded = model.encode(torch.randn(images, 9, 16), None, BOXES)
    return sample(model, encoded, special, n=captions, max_length=4, grad=True).log_probs.sum()


def assert_repeats(model, loss):
    names, parameters = zip(*model.named_parameters(), strict=True)
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    for _ in range(REPEATS):
        again = torch.autograd.grad(loss, parameters, retain_graph=True)
        assert [name for name, a, b in zip(names, first, again, strict=True) if not torch.equal(a, b)] == []


@pytest.mark.parametrize(("captions", "dim"), [(100, 64), (30, 192)])
@pytest.mark.parametrize("name", NAMES[:2])
def test_gradients_of_teacher_forcing_repeat(name, captions, dim):
    torch.manual_seed(0)
    model = build_model(name, vocab_size=40, feature_dim=16, dim=dim)
    assert_repeats(model, teacher_forced(model, captions=captions))


@pytest.mark.parametrize("name", NAMES[:2])
def test_gradients_through_samples_repeat(name):
    torch.manual_seed(0)
    model = build_model(name, vocab_size=40, feature_dim=16, dim=192)
    assert_repeats(model, sampled(model, captions=30))


@pytest.mark.parametrize("loss", [teacher_forced, sampled])
@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_is_added_up_by_indexing(name, loss):
    """Whether threads collide is chance; that nothing can make them collide is not."""
    model = build_model(name, vocab_size=40, feature_dim=16)
    seen, waiting = set(), [loss(model).grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        if node.name() == "IndexBackward0":
            indices = [index for index in node._saved_indices if index is not None]
            if indices[0].dtype == torch.bool:  # a mask picks everything once
                continue
            places = torch.stack([index.flatten() for index in indices])
            assert places.shape[1] == places.unique(dim=1).shape[1], "tensor[index] with a repeated index"
