"""The small detector on onnxruntime finds what it finds on PyTorch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from xlan.engines.load import open_detector
from xlan.engines.onnx_detector import OnnxLiteDetector
from xlan.errors import WeightsError
from xlan.vision.detector.directory import load_detector, save_lite
from xlan.vision.detector.lite import LiteDetector, LiteHeads
from xlan.vision.detector.lite_extractor import LiteExtractor
from xlan.vision.detector.lite_settings import LiteDetectorSpec
from xlan.vision.efficientnet import EfficientNetLite, folded
from xlan.vision.lite import LITE0

CLASSES = ("dog", "cat", "car", "kite")


@pytest.fixture(scope="module", params=[64, 72, 160])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector with made-up weights; 72 gives maps whose sides are odd."""
    torch.manual_seed(request.param)
    spec = LiteDetectorSpec("efficientnet-lite0", CLASSES, input_size=request.param, channels=16, rounds=2, hidden=32)
    heads = LiteHeads(spec)
    with torch.no_grad():  # scores and boxes that differ from each other
        for layer in (heads.rpn_logits, heads.rpn_deltas, heads.class_of_hidden, heads.boxes):
            layer.weight.normal_(std=0.3)
    made = tmp_path_factory.mktemp("detector") / "made"
    save_lite(made, LiteDetector(folded(EfficientNetLite(LITE0).eval()), heads))
    return made


def pictures() -> list[Image.Image]:
    random = np.random.default_rng(0)
    noise = [Image.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)).resize((90, 70)) for _ in range(3)]
    return [*noise, Image.new("RGB", (40, 50), "navy")]


@pytest.mark.parametrize("grid", [False, True])
def test_both_engines_give_the_same_regions(directory: Path, grid: bool) -> None:
    torch_one = load_detector(directory, grid=grid, confidence=0.25)
    onnx_one = open_detector(directory, engine="onnx", grid=grid, confidence=0.25)
    assert isinstance(torch_one, LiteExtractor)
    assert isinstance(onnx_one, OnnxLiteDetector)
    assert onnx_one.description == torch_one.description
    assert onnx_one.feature_dim == torch_one.feature_dim
    prepared = [torch_one.prepare(image) for image in pictures()]
    for expected, found in zip(torch_one.extract(prepared), onnx_one.extract(prepared), strict=True):
        assert len(expected.things) >= 10
        assert [thing.name for thing in found.things] == [thing.name for thing in expected.things]
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-4)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
        np.testing.assert_allclose(found.features, expected.features, atol=1e-3)
        assert (found.thing_of == expected.thing_of).all()


def test_both_engines_give_the_same_detections(directory: Path) -> None:
    torch_one, onnx_one = (open_detector(directory, engine=engine) for engine in ("torch", "onnx"))  # type: ignore[arg-type]
    prepared = [torch_one.prepare(image) for image in pictures()]
    for expected, found in zip(torch_one.detect(prepared), onnx_one.detect(prepared), strict=True):
        assert found.names == expected.names
        np.testing.assert_allclose(found.regions.boxes, expected.regions.boxes, atol=1e-4)


def damaged(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target)
    return target


def test_weights_that_do_not_fit_are_named(directory: Path, tmp_path: Path) -> None:
    made = damaged(directory, tmp_path / "made")
    settings = json.loads((made / "detector.json").read_text())
    settings["spec"]["hidden"] = 40
    (made / "detector.json").write_text(json.dumps(settings))
    with pytest.raises(WeightsError, match=r"hidden1.weight has shape .* instead of"):
        open_detector(made, engine="onnx")


def test_weights_that_are_not_finite_are_refused(directory: Path, tmp_path: Path) -> None:
    made = damaged(directory, tmp_path / "made")
    detector = load_detector(made)
    assert isinstance(detector, LiteExtractor)
    with torch.inference_mode():
        detector.detector.heads.boxes.bias[0] = float("nan")
    save_lite(made, detector.detector, vision=directory / "vision.safetensors")
    with pytest.raises(WeightsError, match=r"boxes.bias holds values that are not finite"):
        open_detector(made, engine="onnx")


def test_another_backbone_is_refused(directory: Path, tmp_path: Path) -> None:
    made = damaged(directory, tmp_path / "made")
    (made / "vision.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(WeightsError, match="is not the vision network"):
        open_detector(made, engine="onnx")
