"""A detector from an ONNX file that the test writes: it cuts the picture in quarters and pools their colours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from xlan.errors import ImageError, ModelError, WeightsError
from xlan.vision.onnx_detector import OnnxDetector
from xlan.vision.regions import RegionExtractor, extract_regions

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

QUARTERS = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]], dtype=np.float32)


def write_detector(
    path: Path,
    *,
    side: int | str = 16,
    boxes: np.ndarray = QUARTERS,
    scores: np.ndarray | None = None,
    batch: bool = False,
    outputs: tuple[str, str] = ("boxes", "features"),
) -> Path:
    """Boxes and scores are constants; features `[4, 3]` are mean colours of the quarters."""
    from onnx import TensorProto, helper, numpy_helper

    lead = [1] if batch else []
    nodes = [
        helper.make_node("AveragePool", ["image"], ["pooled"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Reshape", ["pooled", "flat"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["rows"], perm=[1, 0]),
        helper.make_node("Reshape", ["rows", "shape"], [outputs[1]]),
        helper.make_node("Identity", ["box_values"], [outputs[0]]),
    ]
    constants = {
        "flat": np.array([3, -1]),
        "shape": np.array([*lead, -1, 3]),
        "box_values": boxes[None] if batch else boxes,
    }
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    if scores is not None:
        nodes.append(helper.make_node("Identity", ["score_values"], ["scores"]))
        constants["score_values"] = scores[None] if batch else scores
        results.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, None))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, side, side])
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "detector", [image], results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


def quarters() -> np.ndarray:
    """A picture whose quarters are red, green, blue and white."""
    picture = np.full((32, 64, 3), 255, dtype=np.uint8)
    picture[:16, :32] = (255, 0, 0)
    picture[:16, 32:] = (0, 255, 0)
    picture[16:, :32] = (0, 0, 255)
    return picture


COLOURS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=np.float32)


@pytest.mark.parametrize("batch", [False, True])
def test_boxes_and_features_come_out(tmp_path: Path, batch: bool) -> None:
    detector: RegionExtractor = OnnxDetector(write_detector(tmp_path / "d.onnx", batch=batch))
    assert detector.feature_dim == 3
    (regions,) = extract_regions(detector, [quarters()])
    assert np.allclose(regions.features, COLOURS, atol=0.1)
    assert np.array_equal(regions.boxes, QUARTERS)
    assert regions.scores is None
    assert (regions.width, regions.height) == (64, 32)


def test_best_scores_first_and_no_more_than_asked(tmp_path: Path) -> None:
    scores = np.array([0.1, 0.9, 0.05, 0.5], dtype=np.float32)
    path = write_detector(tmp_path / "d.onnx", scores=scores)
    (regions,) = extract_regions(OnnxDetector(path, max_regions=3, min_score=0.1), [quarters()])
    assert regions.scores is not None
    assert np.allclose(regions.scores, [0.9, 0.5, 0.1])
    assert np.allclose(regions.features, COLOURS[[1, 3, 0]], atol=0.1)
    (one,) = extract_regions(OnnxDetector(path, min_score=0.99), [quarters()])
    assert len(one) == 1  # never all of them
    (two,) = extract_regions(OnnxDetector(path, max_regions=2), [quarters()])
    assert len(two) == 2


def test_pixel_boxes_become_fractions_inside_the_picture(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "d.onnx", boxes=QUARTERS * 16 + np.float32([[-3, 0, 0, 5]]))
    (regions,) = extract_regions(OnnxDetector(path, box_units="pixel"), [quarters()])
    assert np.allclose(regions.boxes[0], [0, 0, 0.5, 13 / 16])
    assert regions.boxes.max() <= 1


def test_colours_are_normalised_and_ordered_as_asked(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "d.onnx")
    detector = OnnxDetector(path, mean=(127, 127, 127), scale=(128, 128, 128), bgr=True)
    (regions,) = extract_regions(detector, [np.full((16, 16, 3), (255, 127, 127), dtype=np.uint8)])
    assert np.allclose(regions.features, [[0, 0, 1]] * 4)


def test_an_open_input_size_must_be_given(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "d.onnx", side="s")
    with pytest.raises(WeightsError, match=r"leaves the size of its input open; give input_size"):
        OnnxDetector(path)
    assert OnnxDetector(path, input_size=(16, 16)).min_side == 16


def test_description_tells_files_apart(tmp_path: Path) -> None:
    a = OnnxDetector(write_detector(tmp_path / "a.onnx"))
    b = OnnxDetector(write_detector(tmp_path / "b.onnx", boxes=QUARTERS / 2))
    assert a.description != b.description
    assert a.description == OnnxDetector(tmp_path / "a.onnx").description


def test_nothing_found_is_an_image_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = OnnxDetector(write_detector(tmp_path / "d.onnx"))
    empty = {"boxes": np.zeros((0, 4), np.float32), "features": np.zeros((0, 3), np.float32)}
    monkeypatch.setattr(detector, "_run", lambda pixels: empty)
    with pytest.raises(ImageError, match="the detector found nothing"):
        extract_regions(detector, [quarters()])


def bad_file(path: Path) -> Path:
    path.write_bytes(b"not onnx at all")
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "no such file"),
        (bad_file, "is not an ONNX file this runtime can load"),
        (lambda path: write_detector(path, outputs=("b", "f")), "expected outputs 'boxes' and 'features', got b, f"),
        (lambda path: write_detector(path, boxes=QUARTERS[:3]), "as many features and scores, got"),
        (lambda path: write_detector(path, boxes=QUARTERS[:, :3].copy()), r"expected boxes \[N, 4\]"),
        (
            lambda path: write_detector(path, boxes=QUARTERS * np.float32(np.nan)),
            "'boxes' has values that are not finite",
        ),
        (lambda path: write_detector(path, scores=np.zeros((4, 1), np.float32)), r"'scores' has shape \[4, 1\]"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        OnnxDetector(make(tmp_path / "d.onnx"))


def test_max_regions_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="max_regions must be at least 1, got 0"):
        OnnxDetector(tmp_path / "d.onnx", max_regions=0)


def test_without_the_runtime_the_message_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="ONNX file needs onnxruntime; type: pip install onnxruntime"):
        OnnxDetector(tmp_path / "d.onnx")
