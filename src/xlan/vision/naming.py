"""A detector beside an extractor: the regions stay the extractor's, the detector says what is where in the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from PIL import Image

from xlan.types import Regions
from xlan.vision.regions import PreparedImage, RegionExtractor

if TYPE_CHECKING:
    from xlan.vision.detector.detections import Detector

LEAST_SCORE, MOST = 0.3, 36  # what a detector is less sure of is not named; nor is more than this


class NamingExtractor:
    """Regions of one extractor, with the things that a detector finds in the same pictures.

    Args:
        extractor: makes the regions that a captioner was trained on.
        detector: names what it sees.

    Pictures without `PreparedImage.beside` get their regions alone.
    """

    def __init__(self, extractor: RegionExtractor, detector: Detector) -> None:
        self.extractor, self.detector = extractor, detector

    @property
    def feature_dim(self) -> int:
        """The extractor's."""
        return self.extractor.feature_dim

    @property
    def min_side(self) -> int | None:
        """What both need; all pixels where one wants all."""
        sides = (self.extractor.min_side, self.detector.min_side)
        return None if sides[0] is None or sides[1] is None else max(sides[0], sides[1])

    @property
    def description(self) -> Mapping[str, Any]:
        """The extractor's: names do not change the features."""
        return self.extractor.description

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Bring an upright RGB image to both input sizes."""
        return replace(self.extractor.prepare(image), beside=self.detector.prepare(image))

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """The extractor's regions, with `Regions.things`."""
        regions = self.extractor.extract(images)
        places = [i for i, image in enumerate(images) if image.beside is not None]
        beside = [image.beside for image in images if image.beside is not None]
        for i, found in zip(places, self.detector.detect(beside) if beside else [], strict=True):
            likely = sorted((thing for thing in found.things() if thing.score >= LEAST_SCORE), key=lambda t: -t.score)
            regions[i] = replace(regions[i], things=tuple(likely[:MOST]))
        return regions


def unnamed(image: PreparedImage) -> PreparedImage:
    """A picture of which only the regions are wanted."""
    return image if image.beside is None else replace(image, beside=None)
