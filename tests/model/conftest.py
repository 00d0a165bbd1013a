"""Small versions of every named model."""

from __future__ import annotations

import pytest
import torch

from xlan import CaptionModel, build_model
from xlan.model.spec import MODELS, Spec, model_spec

VOCAB, FEATURES = 23, 12


SMALL = {
    "vocab_size": VOCAB,
    "feature_dim": FEATURES,
    "dim": 16,
    "hidden_dim": 4,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "ff_dim": 24,
    "attention_dim": 8,
    "attributes": 6,
}


def shrink(name: str) -> dict[str, int]:
    spec = MODELS[name]
    return {key: min(value, getattr(spec, key)) for key, value in SMALL.items() if hasattr(spec, key)}


class BoxesFromFeatures(CaptionModel):
    """A model that wants boxes and takes them from its features, so that all models can be tested alike."""

    def encode(self, features, mask=None, boxes=None):
        corner, size = features[..., :2].sigmoid() / 2, features[..., 2:4].sigmoid() / 3
        return super().encode(features, mask, torch.cat([corner, corner + size], dim=-1))


def build(spec: Spec) -> CaptionModel:
    model = build_model(spec)
    return BoxesFromFeatures(model.encoder, model.decoder, spec) if model.wants_boxes else model


# Names that differ in size alone are the same model once it is small.
KINDS = list({model_spec(name, **shrink(name)): name for name in reversed(MODELS)}.values())


@pytest.fixture(params=KINDS[::-1])
def small_model(request):
    """Every named model with its form and depth kept and its widths cut down, float64, evaluation mode."""
    torch.manual_seed(3)
    return build(build_model(request.param, **shrink(request.param)).spec).double().eval()


@pytest.fixture
def rebuild():
    """A function: spec → a fresh model like `small_model`."""
    return build


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
