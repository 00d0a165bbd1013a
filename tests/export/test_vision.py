"""The vision graph computes what the PyTorch network computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from xlan.errors import WeightsError
from xlan.export.vision import grid_side, vision_graph
from xlan.vision.efficientnet import EfficientNetLite
from xlan.vision.grid import GridExtractor
from xlan.vision.grid_settings import GridSettings, VisionFile, read_vision
from xlan.vision.lite import SPECS, LiteSpec
from xlan.vision.regions import PreparedImage


@pytest.fixture
def tiny_extractor(monkeypatch):
    """A small network with folded weights of reasonable size."""
    monkeypatch.setitem(SPECS, "tiny", LiteSpec("tiny", width=0.25, depth=0.5, input_size=64, head=24))

    def make(**settings) -> GridExtractor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = EfficientNetLite(SPECS["tiny"])
            for module in network.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.momentum = None
            network.train()(torch.randn(8, 3, 64, 64))
        return GridExtractor(network.eval(), GridSettings("tiny", **settings))

    return make


def saved(extractor, tmp_path) -> VisionFile:
    extractor.save(tmp_path / "vision.safetensors")
    return read_vision(tmp_path / "vision.safetensors")


@pytest.mark.parametrize(
    "settings",
    [
        {"input_size": 64},
        {"input_size": 75, "levels": (16, 32)},  # odd sides: the padding differs from layer to layer
        {"input_size": 100, "levels": (16,), "cells": 5, "image_region": False},
        {"input_size": 64, "levels": (16, 32), "cells": 3},
    ],
)
def test_regions_equal_pytorch(settings, tiny_extractor, tmp_path, session):
    file = saved(tiny_extractor(**settings), tmp_path)
    theirs = GridExtractor.load(tmp_path / "vision.safetensors")
    size = settings["input_size"]
    pixels = np.random.default_rng(0).integers(0, 256, (3, size, size, 3), np.uint8)
    expected = theirs.extract([PreparedImage(picture, 1, 1) for picture in pixels])
    got = session(vision_graph(file))({"pixels": pixels})["features"]
    np.testing.assert_allclose(got, np.stack([r.features for r in expected]), atol=1e-4, rtol=1e-4)
    side = grid_side(file.settings)
    regions = file.settings.regions(got, (side, side), [PreparedImage(picture, 1, 1) for picture in pixels])
    np.testing.assert_array_equal(regions[0].boxes, expected[0].boxes)


def test_the_graph_passes_the_checker_in_both_precisions(tiny_extractor, tmp_path):
    file = saved(tiny_extractor(), tmp_path)
    sizes = []
    for precision in ("float32", "float16"):
        content = vision_graph(file, precision=precision).model("vision", {})
        onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
        sizes.append(len(content))
    assert sizes[1] < 0.7 * sizes[0]


def test_weights_that_do_not_fit_are_named(tiny_extractor, tmp_path):
    file = saved(tiny_extractor(), tmp_path)
    with pytest.raises(WeightsError, match=r"vision\.safetensors: does not fit this network; unexpected: extra"):
        vision_graph(VisionFile({**file.weights, "extra": np.zeros(1)}, file.settings, ""))
    del file.weights["head.conv.bias"]
    with pytest.raises(WeightsError, match=r"missing: head\.conv\.bias"):
        vision_graph(file)
