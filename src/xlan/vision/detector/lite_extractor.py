"""The small detector behind the extractor interface: detected regions, grid cells, or both, from one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from xlan.errors import ModelError
from xlan.types import Regions, Thing
from xlan.vision.detector.detections import Detections
from xlan.vision.detector.lite import Boxes, LiteDetector, as_rois, region_features
from xlan.vision.efficientnet import FeatureMaps
from xlan.vision.grid import normalise
from xlan.vision.image import original_size, square_pixels
from xlan.vision.regions import PreparedImage, grid_boxes


@dataclass(frozen=True)
class LiteSelection:
    """Which regions a picture has.

    Attributes:
        fewest: at least this many detections, however unlikely, if there are as many.
        most: at most this many.
        confidence: detections that are at least this likely count beyond `fewest`.
        image_region: the whole image as the first region.
        grid: the cells of the last map after the detections.
    """

    fewest: int = 10
    most: int = 36
    confidence: float = 0.2
    image_region: bool = True
    grid: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.fewest <= self.most or self.most < 1:
            raise ModelError(f"expected 0 <= fewest <= most regions, got {self.fewest} and {self.most}")
        if not 0 <= self.confidence <= 1:
            raise ModelError(f"confidence must be from 0 to 1, got {self.confidence}")


# Far below any confidence that is shown, but not so low that the suppression sees thousands of boxes.
_LEAST_SCORE = 0.005
_PER_PASS = 4
LITE_EXTRACTOR = "lite-detector"  # its name in descriptions of features


class LiteExtractor:
    """Regions of the small detector.

    Args:
        detector: backbone and heads; brought into evaluation mode.
        selection: which regions.
        weights_name: which weights these are, for `description`.
    """

    def __init__(
        self, detector: LiteDetector, selection: LiteSelection | None = None, *, weights_name: str = ""
    ) -> None:
        self.detector: LiteDetector = detector.eval().requires_grad_(False)
        self.detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.selection = selection or LiteSelection()
        self.weights_name = weights_name

    @property
    def feature_dim(self) -> int:
        """Channels of the backbone's last map."""
        return self.detector.network.stride32_channels

    @property
    def min_side(self) -> int:
        """Twice the input size: details lost by decoding a JPEG at reduced size would be lost by squashing anyway."""
        return 2 * self.detector.spec.input_size

    @property
    def description(self) -> dict[str, Any]:
        """Settings and weights, as JSON values."""
        spec = self.detector.spec
        sizes = {"network": spec.network, "input_size": spec.input_size}
        return {"extractor": LITE_EXTRACTOR, "weights": self.weights_name, **sizes, **asdict(self.selection)}

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Squash an upright RGB image to the input size."""
        width, height = original_size(image)
        return PreparedImage(square_pixels(image, self.detector.spec.input_size), width, height)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image: the image itself (if set), detections by score, grid cells (if set)."""
        result: list[Regions] = []
        for maps, found, part in self._passes(images):
            for number, (boxes, image) in enumerate(zip(found, part, strict=True)):
                result.append(self._regions(maps.stride32[number : number + 1], boxes, image))
        return result

    def detect(self, images: Sequence[PreparedImage]) -> list[Detections]:
        """Named detections of each image, best first; an image without any is one region as a whole."""
        result: list[Detections] = []
        names = self.detector.spec.classes
        for maps, found, part in self._passes(images):
            for number, (boxes, image) in enumerate(zip(found, part, strict=True)):
                if not len(boxes.boxes):
                    result.append(self._whole(maps.stride32[number : number + 1], image))
                    continue
                features = region_features(maps.stride32[number : number + 1], as_rois([boxes.boxes]))
                regions = self._as_regions(features, boxes.boxes, boxes.scores, image)
                labels = boxes.classes.numpy()
                result.append(Detections(regions, labels, tuple(names[label] for label in labels)))
        return result

    def _passes(
        self, images: Sequence[PreparedImage]
    ) -> list[tuple[FeatureMaps, list[Boxes], Sequence[PreparedImage]]]:
        passes = []
        with torch.inference_mode():
            for i in range(0, len(images), _PER_PASS):
                part = images[i : i + _PER_PASS]
                maps = self.detector.network(normalise([image.pixels for image in part]))
                found = self.detector.detect(maps, min_score=_LEAST_SCORE, most=max(100, self.selection.most))
                passes.append((maps, [self._chosen(boxes) for boxes in found], part))
        return passes

    def _chosen(self, found: Boxes) -> Boxes:
        likely = int((found.scores >= self.selection.confidence).sum())
        count = min(self.selection.most, max(self.selection.fewest, likely))
        return Boxes(*(part[:count] for part in found))

    def _regions(self, stride32: Tensor, found: Boxes, image: PreparedImage) -> Regions:
        with torch.inference_mode():
            cells = stride32[0].flatten(1).t()  # [h * w, D]
            parts = [region_features(stride32, as_rois([found.boxes]))]
            boxes = [self._fractions(found.boxes)]
            scores = [found.scores]
            numbers = [np.arange(len(found.boxes))]
            if self.selection.image_region or not (len(found.boxes) or self.selection.grid):
                numbers.insert(0, np.array([-1]))
                parts.insert(0, cells.mean(dim=0, keepdim=True))
                boxes.insert(0, torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
                scores.insert(0, torch.ones(1))
            if self.selection.grid:
                parts.append(cells)
                boxes.append(torch.from_numpy(grid_boxes(*stride32.shape[-2:])))
                scores.append(torch.ones(len(cells)))
                numbers.append(np.full(len(cells), -1))
            return Regions(
                torch.cat(parts).numpy(),
                torch.cat(boxes).numpy(),
                torch.cat(scores).numpy(),
                width=image.width,
                height=image.height,
                things=self._things(found),
                thing_of=np.concatenate(numbers).astype(np.int64),
            )

    def _things(self, found: Boxes) -> tuple[Thing, ...]:
        names, rows = self.detector.spec.classes, self._fractions(found.boxes).tolist()
        return tuple(
            Thing(names[label], (row[0], row[1], row[2], row[3]), min(1.0, score))
            for label, row, score in zip(found.classes.tolist(), rows, found.scores.tolist(), strict=True)
        )

    def _whole(self, stride32: Tensor, image: PreparedImage) -> Detections:
        features = stride32.mean(dim=(2, 3)).numpy()
        boxes, scores = np.array([[0, 0, 1, 1]], dtype=np.float32), np.zeros(1, dtype=np.float32)
        regions = Regions(features, boxes, scores, width=image.width, height=image.height)
        return Detections(regions, np.array([-1]), ("image",))

    def _as_regions(self, features: Tensor, boxes: Tensor, scores: Tensor, image: PreparedImage) -> Regions:
        fractions = self._fractions(boxes).numpy()
        return Regions(features.numpy(), fractions, scores.numpy(), width=image.width, height=image.height)

    def _fractions(self, boxes: Tensor) -> Tensor:
        return (boxes / self.detector.spec.input_size).clamp(0, 1)
