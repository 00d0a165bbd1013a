"""A detector beside an extractor: regions stay as they are, things come on top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from xlan.types import Regions
from xlan.vision.detector.detections import Detections
from xlan.vision.naming import NamingExtractor, unnamed
from xlan.vision.regions import PreparedImage, grid_boxes

PICTURE = Image.new("RGB", (30, 20))


class Grid:
    feature_dim, min_side, description = 3, 16, {"extractor": "grid"}

    def prepare(self, image: Image.Image) -> PreparedImage:
        return PreparedImage(np.zeros((8, 8, 3), np.uint8), *image.size)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        return [Regions(np.zeros((4, 3), np.float32), grid_boxes(2, 2)) for _ in images]


class Finder(Grid):
    """Finds a dog (0.9), a cat (0.2) and a ball (0.5, red)."""

    min_side: Any = 32

    def detect(self, images: Sequence[PreparedImage]) -> list[Detections]:
        boxes = np.array([[0, 0, 0.5, 0.5], [0, 0, 1, 1], [0.5, 0.5, 1, 1]], np.float32)
        regions = Regions(np.zeros((3, 3), np.float32), boxes, np.array([0.5, 0.2, 0.9], np.float32))
        found = Detections(
            regions,
            np.array([2, 1, 0]),
            ("ball", "cat", "dog"),
            ("red", "wet", "big"),
            np.array([0.6, 0.5, 0.01], np.float32),
        )
        return [found for _ in images]


class Nothing(Finder):
    def detect(self, images: Sequence[PreparedImage]) -> list[Detections]:
        regions = Regions(np.zeros((1, 3), np.float32), np.array([[0, 0, 1, 1]], np.float32), np.zeros(1, np.float32))
        return [Detections(regions, np.array([-1]), ("image",)) for _ in images]


def test_likely_things_are_named_best_first() -> None:
    naming = NamingExtractor(Grid(), Finder())
    (regions,) = naming.extract([naming.prepare(PICTURE)])
    assert [(thing.label, thing.box) for thing in regions.things] == [
        ("dog", (0.5, 0.5, 1.0, 1.0)),  # "big" was hardly more than a guess
        ("red ball", (0.0, 0.0, 0.5, 0.5)),
    ]
    assert regions.thing_of is None
    assert regions.boxes.shape == (4, 4)


def test_where_nothing_is_found_nothing_is_named() -> None:
    naming = NamingExtractor(Grid(), Nothing())
    assert naming.extract([naming.prepare(PICTURE)])[0].things == ()


def test_pictures_are_named_only_where_that_is_wanted() -> None:
    naming = NamingExtractor(Grid(), Finder())
    image = naming.prepare(PICTURE)
    first, second = naming.extract([unnamed(image), image])
    assert (len(first.things), len(second.things)) == (0, 2)


def test_both_get_the_pixels_they_need() -> None:
    assert NamingExtractor(Grid(), Finder()).min_side == 32
    wants_all = Finder()
    wants_all.min_side = None
    assert NamingExtractor(Grid(), wants_all).min_side is None


def test_regions_of_a_detector_are_its_things() -> None:
    found = Finder().detect([Grid().prepare(PICTURE)])[0].named()
    assert found.thing_of is not None
    assert [found.things[i].name for i in found.thing_of] == ["ball", "cat", "dog"]
    nothing = Nothing().detect([Grid().prepare(PICTURE)])[0].named()
    assert nothing.thing_of is not None
    assert (nothing.things, nothing.thing_of.tolist()) == ((), [-1])
