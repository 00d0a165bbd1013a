"""Small versions of every named model."""

from __future__ import annotations

import pytest
import torch

from xlan import build_model
from xlan.model.spec import MODELS, XLANSpec

VOCAB, FEATURES = 23, 12


def shrink(name: str) -> dict[str, int]:
    spec = MODELS[name]
    small = {"vocab_size": VOCAB, "feature_dim": FEATURES, "dim": 16, "hidden_dim": 4}
    small["heads"] = min(spec.heads, 4)
    if isinstance(spec, XLANSpec):
        return small
    return small | {"encoder_layers": 2, "decoder_layers": 2, "ff_dim": 24}


@pytest.fixture(params=list(MODELS))
def small_model(request):
    """Every named model with its form and depth kept and its widths cut down, float64, evaluation mode."""
    torch.manual_seed(3)
    return build_model(request.param, **shrink(request.param)).double().eval()


@pytest.fixture
def images():
    """Features `[3, 5, 12]` and their mask."""
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(3, 5, FEATURES, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False], [True] + [False] * 4])
    return features, mask


@pytest.fixture
def captions():
    """Ids `[6, 7]`, two captions per image, and their lengths."""
    tokens = torch.randint(0, VOCAB, (6, 7), generator=torch.Generator().manual_seed(5))
    return tokens, torch.tensor([7, 3, 5, 5, 1, 6])
