"""Small models of every architecture, and their graphs in a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from xlan.export.graph import Graph
from xlan.model.build import build_model
from xlan.model.captioner import CaptionModel

FEATURES, WORDS = 20, 23
SMALL_PAPER = {"dim": 32, "hidden_dim": 8}
MODELS: dict[str, dict[str, Any]] = {
    "xlan-tiny": {"dim": 128, "hidden_dim": 16},
    "xtransformer-tiny": {},
    "transformer-tiny": {},
    "xlan-paper": SMALL_PAPER,
    "ablation-base": SMALL_PAPER,
    "ablation-0x": SMALL_PAPER,
    "ablation-1x": SMALL_PAPER,
    "lstm-tiny": {},
    "show-tell-tiny": {},
    "lstm-a3-tiny": {},
    "att2in-tiny": {},
    "att2all-tiny": {"embed": False},
    "updown-tiny": {},
    "updown-lb-tiny": {},
    "aoanet-tiny": {},
}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def small_model():
    return make_model


@pytest.fixture
def session():
    return Session


def make_model(name: str) -> tuple[CaptionModel, dict[str, np.ndarray]]:
    """A model whose weights, biases and norms included, are all random; and its weights as arrays."""
    torch.manual_seed(0)
    model = build_model(name, **{"vocab_size": WORDS, "feature_dim": FEATURES, **MODELS[name]}).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


class Session:
    """A graph that can be run: arrays in by name, arrays out by name."""

    def __init__(self, graph: Graph | bytes) -> None:
        content = graph if isinstance(graph, bytes) else graph.model("test", {})
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value.shape for value in self._session.get_inputs()}
        self.names = [value.name for value in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self._session.run(None, dict(inputs)), strict=True))
