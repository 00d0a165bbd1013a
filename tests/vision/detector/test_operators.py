"""Anchors, box coding, suppression and pooling: against stored numbers, plain versions and onnxruntime's operators."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from xlan.vision.detector import pooling
from xlan.vision.detector.anchors import caffe_shapes, centred_shapes, place
from xlan.vision.detector.boxes import clip, decode, encode, iou
from xlan.vision.detector.nms import kept_by_class, nms, nms_reference
from xlan.vision.detector.pooling import roi_align, roi_align_reference, roi_mean, roi_pool, roi_pool_reference

# The machine may be busy: no deadline.
DRAWN = settings(max_examples=40, deadline=None)
OPS = Path(__file__).parents[2] / "fixtures" / "frcnn" / "ops.safetensors"


@pytest.fixture(scope="module")
def ops() -> dict[str, Tensor]:
    """Numbers made with plain versions of the public implementations' operators."""
    return load_file(OPS)


def test_centred_anchors(ops: dict[str, Tensor]) -> None:
    shapes = centred_shapes((64, 128, 256, 512), (0.5, 1, 2))
    torch.testing.assert_close(torch.from_numpy(shapes), ops["anchors.cell"])
    torch.testing.assert_close(torch.from_numpy(place(shapes, 3, 4, 16)), ops["anchors.grid_3x4"])


def test_caffe_anchors(ops: dict[str, Tensor]) -> None:
    shapes = caffe_shapes((4, 8, 16, 32), (0.5, 1, 2))
    assert torch.equal(torch.from_numpy(shapes), ops["anchors_caffe.cell"])
    assert torch.equal(torch.from_numpy(place(shapes, 3, 4, 16)), ops["anchors_caffe.grid_3x4"])


@pytest.mark.parametrize("weights", [(10.0, 10.0, 5.0, 5.0), (1.0, 1.0, 1.0, 1.0)])
def test_decoding_and_clipping(ops: dict[str, Tensor], weights: tuple[float, float, float, float]) -> None:
    name = "decode." + "_".join(str(int(w)) for w in weights)
    decoded = decode(ops["decode.boxes"], ops["decode.deltas"], weights=weights)
    torch.testing.assert_close(decoded, ops[name], rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(
        clip(ops[name], height=180, width=240), ops[f"{name}.clipped_180x240"], rtol=1e-6, atol=1e-4
    )


def test_decoding_and_clipping_as_caffe_does(ops: dict[str, Tensor]) -> None:
    decoded = decode(ops["decode.boxes"], ops["decode.deltas"], offset=1, max_log_growth=None)
    torch.testing.assert_close(decoded, ops["decode_caffe"], rtol=1e-5, atol=1e-4)
    clipped = clip(ops["decode_caffe"], height=180, width=240, offset=1)
    torch.testing.assert_close(clipped, ops["decode_caffe.clipped_180x240"], rtol=1e-6, atol=1e-4)


@given(st.integers(0, 2**32 - 1))
@DRAWN
def test_encoding_is_the_inverse_of_decoding(seed: int) -> None:
    boxes, targets = (_boxes(seed + i, 20) for i in range(2))
    weights = (10.0, 10.0, 5.0, 5.0)
    back = decode(boxes, encode(boxes, targets, weights=weights), weights=weights)
    torch.testing.assert_close(back, targets, rtol=1e-4, atol=1e-2)


def test_overlap_of_boxes_without_area_is_zero() -> None:
    empty = torch.tensor([[3.0, 3.0, 3.0, 3.0]])
    assert iou(empty, empty).tolist() == [[0.0]]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_suppression_keeps_the_same_boxes(ops: dict[str, Tensor], threshold: float) -> None:
    boxes, scores = ops["nms.boxes"], ops["nms.scores"]
    assert nms(boxes, scores, threshold).tolist() == ops[f"nms.keep.{threshold}"].tolist()
    caffe = nms(boxes, scores, threshold, offset=1, inclusive=True)
    assert caffe.tolist() == ops[f"nms_caffe.keep.{threshold}"].tolist()


def test_suppression_at_exactly_the_threshold(ops: dict[str, Tensor]) -> None:
    kept = nms(ops["nms_ties.boxes"], ops["nms_ties.scores"], 0.5)
    assert kept.tolist() == ops["nms_ties.keep.0.5"].tolist()
    kept = nms(ops["nms_ties_caffe.boxes"], ops["nms_ties_caffe.scores"], 0.5, offset=1, inclusive=True)
    assert kept.tolist() == ops["nms_ties_caffe.keep.0.5"].tolist()


def _boxes(seed: int, count: int, *, side: float = 100.0, whole: bool = False) -> Tensor:
    random = np.random.default_rng(seed)
    low = random.uniform(0, side, (count, 2))
    boxes = np.concatenate([low, low + random.uniform(1, side / 2, (count, 2))], axis=1)
    return torch.from_numpy(np.rint(boxes) if whole else boxes).float()


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 60),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]),
    offset=st.sampled_from([0, 1]),
    inclusive=st.booleans(),
    levels=st.sampled_from([3, 1000]),
)
@DRAWN
def test_fast_suppression_equals_the_plain_one(
    seed: int, count: int, threshold: float, offset: int, inclusive: bool, levels: int
) -> None:
    boxes = _boxes(seed, count, side=30, whole=True)  # whole corners and few scores: many ties
    scores = torch.from_numpy(np.random.default_rng(seed).integers(0, levels, count) / levels).float()
    fast = nms(boxes, scores, threshold, offset=offset, inclusive=inclusive)
    assert fast.tolist() == nms_reference(boxes, scores, threshold, offset=offset, inclusive=inclusive)


@given(seed=st.integers(0, 2**32 - 1), limit=st.integers(1, 400))
@DRAWN
def test_suppression_across_blocks_and_with_a_limit(seed: int, limit: int) -> None:
    boxes, scores = _boxes(seed, 700), torch.rand(700, generator=torch.Generator().manual_seed(seed % 2**31))
    whole = nms(boxes, scores, 0.5)
    assert nms(boxes, scores, 0.5, limit=limit).tolist() == whole[:limit].tolist()
    by_hand: list[int] = []
    overlaps = iou(boxes, boxes)
    for candidate in torch.argsort(scores, descending=True, stable=True).tolist():  # equal scores occur
        if not by_hand or float(overlaps[by_hand, candidate].max()) <= 0.5:
            by_hand.append(candidate)
    assert whole.tolist() == by_hand


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 60))
@DRAWN
def test_classes_do_not_suppress_each_other(seed: int, count: int) -> None:
    boxes = _boxes(seed, count, side=30)
    random = np.random.default_rng(seed)
    scores, classes = torch.from_numpy(random.random(count)).float(), torch.from_numpy(random.integers(0, 3, count))
    together = nms(boxes, scores, 0.4, groups=classes)
    apart = []
    for label in range(3):
        chosen = torch.nonzero(classes == label)[:, 0]
        apart += [int(chosen[i]) for i in nms_reference(boxes[chosen], scores[chosen], 0.4)]
    assert together.tolist() == sorted(apart, key=lambda i: -float(scores[i]))


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 40), inclusive=st.booleans())
@DRAWN
def test_suppression_of_all_classes_at_once(seed: int, count: int, inclusive: bool) -> None:
    boxes = _boxes(seed, count, side=30, whole=True)
    scores = torch.from_numpy(np.random.default_rng(seed).integers(0, 9, (count, 5)) / 9).float()
    kept = kept_by_class(iou(boxes, boxes, offset=1), scores, 0.5, inclusive=inclusive)
    for label in range(5):
        expected = nms_reference(boxes, scores[:, label], 0.5, offset=1, inclusive=inclusive)
        assert torch.nonzero(kept[:, label])[:, 0].tolist() == sorted(expected)


@pytest.mark.parametrize("size", [7, 14])
@pytest.mark.parametrize("pool", [roi_pool, roi_pool_reference])
def test_pooling_equals_the_stored_numbers(ops: dict[str, Tensor], size: int, pool: Any) -> None:
    assert torch.equal(pool(ops["roi.features"], ops["roi.boxes"], size, 1 / 16), ops[f"roi_pool.{size}"])


@pytest.mark.parametrize("sampling", [0, 2])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("align", [roi_align, roi_align_reference])
def test_aligning_equals_the_stored_numbers(ops: dict[str, Tensor], sampling: int, aligned: bool, align: Any) -> None:
    found = align(ops["roi.features"], ops["roi.boxes"], 7, 1 / 16, sampling=sampling, aligned=aligned)
    expected = ops[f"roi_align.7.sampling{sampling}.{'aligned' if aligned else 'legacy'}"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def _rois(seed: int, count: int, images: int, *, height: int, width: int) -> Tensor:
    """RoIs inside and partly outside a picture, half of them on multiples of 8: where the rounding has ties."""
    random = np.random.default_rng(seed)
    x, y = (np.sort(random.uniform(-40, side + 40, (count, 2)), axis=1) for side in (width, height))
    corners = np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1)
    corners[::2] = np.rint(corners[::2] / 8) * 8
    return torch.from_numpy(np.concatenate([random.integers(0, images, (count, 1)), corners], axis=1)).float()


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 3, 7, 14]), height=st.integers(1, 9))
@DRAWN
def test_fast_pooling_equals_the_plain_one(seed: int, size: int, height: int) -> None:
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, height, 11))).float()
    rois = _rois(seed, 10, 2, height=16 * height, width=176)
    assert torch.equal(roi_pool(features, rois, size, 1 / 16), roi_pool_reference(features, rois, size, 1 / 16))


@given(seed=st.integers(0, 2**32 - 1), sampling=st.integers(0, 3), aligned=st.booleans(), height=st.integers(1, 8))
@DRAWN
def test_fast_aligning_equals_the_plain_one(seed: int, sampling: int, aligned: bool, height: int) -> None:
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, height, 9))).float()
    rois = _rois(seed, 5, 2, height=16 * height, width=144)
    fast = roi_align(features, rois, 3, 1 / 16, sampling=sampling, aligned=aligned)
    plain = roi_align_reference(features, rois, 3, 1 / 16, sampling=sampling, aligned=aligned)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=2e-5)


@given(seed=st.integers(0, 2**32 - 1), sampling=st.integers(0, 3), aligned=st.booleans())
@DRAWN
def test_aligning_on_a_large_map_equals_that_on_a_small_one(seed: int, sampling: int, aligned: bool) -> None:
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, 6, 9))).float()
    rois = _rois(seed, 7, 2, height=96, width=144)
    expected = roi_align(features, rois, 3, 1 / 16, sampling=sampling, aligned=aligned)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "_LARGE_MAP", 0)
        found = roi_align(features, rois, 3, 1 / 16, sampling=sampling, aligned=aligned)
        assert roi_align(features, rois[:0], 3, 1 / 16).shape == (0, 3, 3, 3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@given(seed=st.integers(0, 2**32 - 1), samples=st.integers(1, 4))
@DRAWN
def test_the_mean_of_a_region_is_aligning_with_one_cell(seed: int, samples: int) -> None:
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, 6, 9))).float()
    rois = _rois(seed, 7, 2, height=96, width=144)
    expected = roi_align(features, rois, 1, 1 / 16, sampling=samples)[:, :, 0, 0]
    torch.testing.assert_close(roi_mean(features, rois, 1 / 16, samples=samples), expected, rtol=1e-4, atol=2e-5)


def test_no_region_gives_no_map() -> None:
    features, none = torch.zeros(1, 4, 5, 6), torch.zeros(0, 5)
    assert roi_pool(features, none, 7, 1 / 16).shape == (0, 4, 7, 7)
    assert roi_align(features, none, 7, 1 / 16).shape == (0, 4, 7, 7)
    assert nms(none[:, 1:], none[:, 0], 0.5).tolist() == []


def test_gradients_reach_the_map_through_aligning() -> None:
    features = torch.randn(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor([[0.0, 3.0, 5.0, 60.0, 40.0]])
    assert torch.autograd.gradcheck(lambda x: roi_align(x, rois, 3, 1 / 16), (features,))


# onnxruntime's own operators, as one-node models.


@cache
def _session(kind: str, inputs: tuple[str, ...], outputs: int, attributes: tuple[tuple[str, Any], ...]) -> Any:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    helper, types = onnx.helper, onnx.TensorProto
    kinds = {"rois_index": types.INT64, "limit": types.INT64}
    values = [helper.make_tensor_value_info(name, kinds.get(name, types.FLOAT), None) for name in inputs]
    result = types.INT64 if kind == "NonMaxSuppression" else types.FLOAT
    node = helper.make_node(kind, list(inputs), ["out"], **dict(attributes))
    graph = helper.make_graph([node], "one", values, [helper.make_tensor_value_info("out", result, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9)
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 300), threshold=st.sampled_from([0.25, 0.5, 0.75]))
@DRAWN
def test_suppression_equals_onnxruntime(seed: int, count: int, threshold: float) -> None:
    boxes = _boxes(seed, count, whole=bool(seed % 2))
    scores = torch.from_numpy(np.random.default_rng(seed).permutation(count) + 1.0).float()
    session = _session("NonMaxSuppression", ("boxes", "scores", "limit", "threshold"), 1, ())
    feed = {
        "boxes": boxes[None, :, [1, 0, 3, 2]].numpy(),
        "scores": scores[None, None].numpy(),
        "limit": np.array([count]),
        "threshold": np.array([threshold], dtype=np.float32),
    }
    assert nms(boxes, scores, threshold).tolist() == session.run(None, feed)[0][:, 2].tolist()


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([2, 7, 14]))
@DRAWN
def test_pooling_equals_onnxruntime(seed: int, size: int) -> None:
    features = torch.from_numpy(np.random.default_rng(seed).random((2, 3, 12, 15))).float()
    rois = _rois(seed, 20, 2, height=192, width=240)
    attributes = (("pooled_shape", (size, size)), ("spatial_scale", 1 / 16))
    session = _session("MaxRoiPool", ("features", "rois"), 1, attributes)
    expected = session.run(None, {"features": features.numpy(), "rois": rois.numpy()})[0]
    assert np.array_equal(roi_pool(features, rois, size, 1 / 16).numpy(), expected)


@given(seed=st.integers(0, 2**32 - 1), sampling=st.integers(0, 3), aligned=st.booleans())
@DRAWN
def test_aligning_equals_onnxruntime(seed: int, sampling: int, aligned: bool) -> None:
    features = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, 12, 15))).float()
    rois = _rois(seed, 20, 2, height=192, width=240)
    mode = "half_pixel" if aligned else "output_half_pixel"
    attributes = (
        ("coordinate_transformation_mode", mode),
        ("output_height", 7),
        ("output_width", 7),
        ("sampling_ratio", sampling),
        ("spatial_scale", 1 / 16),
    )
    session = _session("RoiAlign", ("features", "rois", "rois_index"), 1, attributes)
    feed = {"features": features.numpy(), "rois": rois[:, 1:].numpy(), "rois_index": rois[:, 0].long().numpy()}
    found = roi_align(features, rois, 7, 1 / 16, sampling=sampling, aligned=aligned)
    np.testing.assert_allclose(found.numpy(), session.run(None, feed)[0], rtol=1e-3, atol=5e-5)
