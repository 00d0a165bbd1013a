"""The bottom-up network as an extractor: regions of pictures of any shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import TINY, picture, weights
from PIL import Image

from xlan.vision.detector.bottom_up import BottomUp
from xlan.vision.detector.conventions import AIRSPLAY, CAFFE, LXMERT, Convention
from xlan.vision.detector.extractor import BottomUpExtractor
from xlan.vision.detector.weights import change_convention, convert
from xlan.vision.extract import extract_to_store
from xlan.vision.sources import find_pictures
from xlan.vision.store import FeatureStore, FeatureStoreWriter


def extractor(convention: Convention, **changes: object) -> BottomUpExtractor:
    small = {"short_side": 120, "long_side": 160, "proposals_before": 300, "proposals": 40, **changes}
    convention = replace(convention, **small)
    spec, ours = convert(weights(TINY, background=5.0), source="made up")
    network = BottomUp(spec, convention)
    network.load_state_dict({"shapes": network.shapes, **change_convention(ours, native=LXMERT, wanted=convention)})
    return BottomUpExtractor(network, objects=[f"thing{i}" for i in range(20)], weights_name="made-up")


@pytest.mark.parametrize("convention", [CAFFE, LXMERT, AIRSPLAY], ids=lambda c: c.name)
@pytest.mark.parametrize("size", [(1, 1), (10000, 3), (3, 10000), (40, 30), (200, 150)], ids=str)
def test_pictures_of_any_shape_have_regions(convention: Convention, size: tuple[int, int]) -> None:
    detector = extractor(convention)
    image = Image.new("RGB", size, (90, 120, 200))
    found = detector.detect([detector.prepare(image)])[0]
    rule = detector.network.convention.selection
    assert 1 <= len(found) <= rule.most
    regions = found.regions
    assert regions.features.shape == (len(found), 256)
    assert np.isfinite(regions.features).all()
    assert ((regions.boxes >= 0) & (regions.boxes <= 1)).all()
    assert (regions.boxes[:, 2:] >= regions.boxes[:, :2]).all()
    assert (regions.width, regions.height) == size


def test_without_any_proposal_the_whole_image_is_the_region() -> None:
    detector = extractor(CAFFE, min_side=10_000.0)
    found = detector.detect([detector.prepare(picture(96, 96, 2))])[0]
    assert len(found) == 1
    assert found.regions.boxes[0] == pytest.approx([0, 0, 1, 1], abs=0.01)
    assert found.regions.features.any()


def test_a_picture_has_the_same_regions_alone_and_in_company() -> None:
    detector = extractor(CAFFE)
    images = [detector.prepare(picture(80, 100, salt)) for salt in (1, 2)]
    both = detector.extract(images)
    for one, image in zip(both, images, strict=True):
        alone = detector.extract([image])[0]
        assert np.array_equal(alone.features, one.features)
        assert np.array_equal(alone.boxes, one.boxes)


def test_records_are_plain_values() -> None:
    detector = extractor(LXMERT)
    found = detector.detect([detector.prepare(picture(96, 96, 2))])[0]
    record = found.records()[0]
    assert record.keys() == {"name", "box", "score", "attribute", "attribute_score"}
    assert record["name"].startswith("thing")
    assert record["attribute"].startswith("attribute ")  # no names of attributes were given
    assert all(isinstance(value, float) for value in record["box"])


def test_extraction_into_a_store_resumes(tmp_path: Path) -> None:
    for number in range(3):
        picture(60, 80, number).save(tmp_path / f"{number}.png")
    detector = extractor(CAFFE)
    pictures = find_pictures([tmp_path])
    for wanted, written in ((pictures[:2], 2), (pictures, 1)):
        with FeatureStoreWriter(tmp_path / "store", dtype="float32", extractor=detector.description) as writer:
            assert extract_to_store(detector, wanted, writer).written == written
    store = FeatureStore(tmp_path / "store")
    expected = detector.extract([detector.prepare(picture(60, 80, 1))])[0]
    torch.testing.assert_close(torch.from_numpy(store["1"].features.copy()), torch.from_numpy(expected.features))
    assert store.extractor["extractor"] == "bottom-up"
    assert store.extractor["weights"] == "made-up"
