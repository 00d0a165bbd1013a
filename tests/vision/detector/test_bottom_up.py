"""The bottom-up network against numbers of the public implementations, for both conventions.

The numbers were made with weights and pictures that `made_up` re-creates. Tolerances are five times what one thread
instead of two changed in the implementation that made them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from made_up import FULL, SALTS, SIZES, TINY, picture, weights
from safetensors.torch import load_file
from torch import Tensor

from xlan.vision.detector import resize, selection
from xlan.vision.detector.bottom_up import BottomUp, BottomUpSpec
from xlan.vision.detector.boxes import clip
from xlan.vision.detector.conventions import CAFFE, LXMERT, Convention, Selection
from xlan.vision.detector.weights import change_convention, convert

FIXTURES = Path(__file__).parents[2] / "fixtures" / "frcnn"
SMALL = {"short_side": 200, "long_side": 270, "proposals_before": 1000, "proposals": 50}
AS_LXMERT = replace(LXMERT, selection=Selection("regressed", 33, 36, (0.5, 0.6, 0.7)), **SMALL)
AS_CAFFE = replace(CAFFE, **SMALL)


@dataclass(frozen=True)
class Stored:
    """One size of the network: its weights under LXMERT's names, where its numbers are, and how exact they are."""

    spec: BottomUpSpec
    weights: dict[str, Tensor]
    folder: Path
    name: str
    tolerance: dict[str, float]

    def network(self, convention: Convention) -> BottomUp:
        spec, ours = convert(self.weights, source="made up")
        assert spec == self.spec
        network = BottomUp(spec, convention).eval()
        ours = change_convention(ours, native=LXMERT, wanted=convention)
        network.load_state_dict({"shapes": network.shapes, **ours})
        return network


TOLERANCES = {
    "tiny": {"map": 5e-5, "logits": 5e-5, "features": 2e-5, "boxes": 1e-3, "scores": 1e-5},
    "full": {"map": 1e-3, "logits": 1.5e-3, "features": 4.5e-4, "boxes": 0.055, "scores": 1e-4},
}


@pytest.fixture(scope="module", params=["tiny", pytest.param("full", marks=pytest.mark.slow)])
def stored(request: pytest.FixtureRequest) -> Iterator[Stored]:
    name = request.param
    if name == "tiny":
        yield Stored(TINY, weights(TINY, background=5.0), FIXTURES, name, TOLERANCES[name])
        return
    shared = os.environ.get("XLAN_SHARED_DIR")
    if not shared:
        pytest.skip("set XLAN_SHARED_DIR to a folder with vectors/frcnn/full_0.safetensors")
    yield Stored(FULL, weights(FULL, background=11.0), Path(shared) / "vectors" / "frcnn", name, TOLERANCES[name])


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("number", range(3))
def test_lxmert_convention(stored: Stored, number: int) -> None:
    expected = load_file(stored.folder / f"{stored.name}_{number}.safetensors")
    tolerance, tiny = stored.tolerance, stored.name == "tiny"
    image = picture(*SIZES[number], SALTS[stored.name][number])
    network = stored.network(AS_LXMERT)
    values = resize.to_input(image, AS_LXMERT)
    height, width = values.shape[:2]
    with torch.inference_mode():
        batch = resize.to_batch(values)
        step = 4 if tiny else 16
        close(batch[0, :, ::step, ::step], expected["input.slice"], 2e-4)
        res4 = network.backbone(batch)
        close(*((res4[0], expected["res4"]) if tiny else (res4[0, ::64], expected["res4.slice"])), tolerance["map"])
        logits, deltas = network.rpn(res4)
        close(logits[0], expected["rpn.logits"], tolerance["logits"])
        close(deltas[0], expected["rpn.deltas"], tolerance["logits"])
        close(network.shapes, expected["anchors"][:12], 1e-4)
        proposals = network.propose(logits, deltas, height=height, width=width, scale=1.0)
        close(proposals.boxes, expected["proposals.boxes"], tolerance["boxes"])
        close(proposals.logits, expected["proposals.logits"], tolerance["logits"])
        heads = network.look(res4, proposals.boxes)
        close(heads.features, expected["features"], tolerance["features"])
        close(heads.class_logits, expected["class_logits"], tolerance["logits"])
        assert heads.attribute_logits is not None
        close(heads.attribute_logits, expected["attr_logits"], tolerance["logits"])
        best = heads.class_logits[:, :-1].argmax(dim=1)
        chosen = heads.box_deltas.unflatten(1, (-1, 4))[torch.arange(len(best)), best]
        close(chosen, expected["box_deltas.best_class"], tolerance["logits"])
        scale_y, scale_x = resize.picture_scales(image.height, image.width, AS_LXMERT)
        factors = torch.tensor([scale_x, scale_y, scale_x, scale_y])
        found = network.choose(proposals.boxes, heads, height=height, width=width, picture_per_input=factors)
    assert found.keep.tolist() == expected["final.keep"].tolist()
    assert found.classes.tolist() == expected["final.classes"].tolist()
    assert found.attributes is not None
    assert found.attribute_scores is not None
    assert found.attributes.tolist() == expected["final.attrs"].tolist()
    close(found.boxes * factors, expected["final.boxes"], tolerance["boxes"])
    fractions = factors / torch.tensor([image.width, image.height] * 2)
    close(found.boxes * fractions, expected["final.normalized_boxes"], tolerance["boxes"] / 90)
    close(found.scores, expected["final.scores"], tolerance["scores"])
    close(found.attribute_scores, expected["final.attr_scores"], tolerance["scores"])


@pytest.mark.parametrize("number", range(3))
def test_caffe_convention(stored: Stored, number: int) -> None:
    expected = load_file(stored.folder / f"{stored.name}_{number}.safetensors")
    tolerance = stored.tolerance
    image = picture(*SIZES[number], SALTS[stored.name][number])
    network = stored.network(AS_CAFFE)
    values = resize.to_input(image, AS_CAFFE)
    height, width = values.shape[:2]
    scale = resize.target_scale(image.height, image.width, AS_CAFFE)
    with torch.inference_mode():
        batch = resize.to_batch(values)
        close(batch[0, :, ::16, ::16], expected["caffe.input.slice"], 1e-4)
        res4 = network.backbone(batch)
        proposals = network.propose(*network.rpn(res4), height=height, width=width, scale=scale)
        close(proposals.boxes, expected["caffe.rois"], tolerance["boxes"])
        close(proposals.logits.sigmoid(), expected["caffe.roi_probs"], tolerance["scores"])
        heads = network.look(res4, proposals.boxes)
        close(heads.features, expected["caffe.features"], tolerance["features"])
        probabilities = heads.class_logits.softmax(dim=1)[:, :-1]
        _, confidence = selection.confident(proposals.boxes / scale, probabilities, AS_CAFFE)
        close(confidence, expected["caffe.max_conf"], tolerance["scores"])
        for fewest, most in ((10, 100), (36, 36), (5, 15)):
            rule = replace(AS_CAFFE.selection, fewest=fewest, most=most)
            network.convention = replace(AS_CAFFE, selection=rule)
            factors = torch.full((4,), 1 / scale)
            found = network.choose(proposals.boxes, heads, height=height, width=width, picture_per_input=factors)
            keep = expected[f"caffe.keep.{fewest}_{most}"]
            assert found.keep.tolist() == keep.tolist()
            assert found.attributes is not None
            assert found.attribute_scores is not None
            assert found.classes.tolist() == expected["caffe.classes"][keep].tolist()
            assert found.attributes.tolist() == expected["caffe.attrs"][keep].tolist()
            close(found.boxes / scale, expected["caffe.boxes"][keep], tolerance["boxes"])
            close(found.scores, expected["caffe.class_prob_top"][keep], tolerance["scores"])
            close(found.attribute_scores, expected["caffe.attr_prob_top"][keep], tolerance["scores"])


@pytest.fixture(scope="module")
def ops() -> dict[str, Tensor]:
    return load_file(FIXTURES / "ops.safetensors")


@pytest.mark.parametrize(("fewest", "most"), [(10, 100), (36, 36), (5, 12)])
def test_the_rule_of_confident_proposals(ops: dict[str, Tensor], fewest: int, most: int) -> None:
    convention = replace(CAFFE, selection=Selection("confident", fewest, most, (0.3,), confidence=0.4))
    probabilities = ops["select.class_prob_background_first"][:, 1:]
    keep, confidence = selection.confident(ops["select.boxes"], probabilities, convention)
    assert keep.tolist() == ops[f"select_caffe.keep.{fewest}_{most}.conf0.4"].tolist()
    close(confidence, ops["select_caffe.max_conf"], 1e-6)


def test_the_rule_of_regressed_boxes(ops: dict[str, Tensor]) -> None:
    scores, classes = ops["select.class_prob_background_first"][:, 1:].max(dim=1)
    boxes = ops["select_lxmert.boxes_per_class"].unflatten(1, (-1, 4))[torch.arange(40), classes]
    boxes = clip(boxes, height=180, width=240)
    count = len(ops["select_lxmert.keep"])
    keep = selection.regressed(boxes, scores, Selection("regressed", count, count, (0.5, 0.6, 0.7)))
    assert keep.tolist() == ops["select_lxmert.keep"].tolist()
    assert torch.equal(boxes[keep], ops["select_lxmert.boxes"])
    assert torch.equal(classes[keep], ops["select_lxmert.classes"])
    assert torch.equal(scores[keep], ops["select_lxmert.scores"])


def test_regressed_boxes_are_filled_up_where_no_threshold_leaves_enough() -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0]]).repeat(5, 1)
    keep = selection.regressed(boxes, torch.tensor([0.1, 0.5, 0.3, 0.4, 0.2]), Selection("regressed", 3, 4, (0.5,)))
    assert keep.tolist() == [1, 3, 2]


@pytest.mark.parametrize(("name", "size"), [("down_10x13", (10, 13)), ("up_40x50", (40, 50))])
def test_resizing_by_torch_and_pillow(ops: dict[str, Tensor], name: str, size: tuple[int, int]) -> None:
    from PIL import Image

    pixels = ops["resize.image"].numpy().astype("uint8")
    image = Image.fromarray(pixels)
    rows, columns = size
    for kind, key in (("torch", "torch_bilinear"), ("pillow", "pil_bilinear_uint8")):
        convention = replace(LXMERT, resize=kind, mean=(0.0, 0.0, 0.0), short_side=min(size), long_side=max(size))
        assert resize.target_size(image.height, image.width, convention) == (rows, columns)
        found = torch.from_numpy(resize.to_input(image, convention)[:, :, ::-1].copy())
        close(found, ops[f"resize.{name}.{key}"], 1e-4)


@pytest.mark.parametrize(("scale", "size"), [(0.43, (10, 13)), (1.7, (41, 51))])
def test_resizing_by_opencv(ops: dict[str, Tensor], scale: float, size: tuple[int, int]) -> None:
    found = resize.resize_opencv(ops["resize.image"].numpy(), *size, scale)
    close(torch.from_numpy(found), ops[f"resize.scale_{scale}.opencv_rule"], 1e-3)
