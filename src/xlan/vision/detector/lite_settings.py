"""The small detector, whatever computes it: its sizes, which of its boxes stay, and the border. Without torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from xlan.errors import ModelError
from xlan.types import Regions, Thing
from xlan.vision.detector.anchors import centred_shapes, place
from xlan.vision.detector.detections import Detections
from xlan.vision.detector.suppression import suppress
from xlan.vision.image import original_size, square_pixels
from xlan.vision.lite import SPECS
from xlan.vision.regions import PreparedImage, grid_boxes
from xlan.vision.values import check_flags, check_lists, check_numbers, check_objects, check_text, check_whole

Floats = npt.NDArray[np.float32]
LITE_EXTRACTOR = "lite-detector"  # its name in descriptions of features
STRIDES = (8, 16)
RATIOS = (0.5, 1.0, 2.0)
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
POOLED, SAMPLES = 7, 2  # cells per side of a pooled box, samples per side of a cell
FEATURE_SAMPLES = 6  # samples per side of a box, of which a region's feature is the mean
GROUPS = 8  # of channels that are normalised together
_SMALLEST_SIDE = 1.0
# Boxes with sides below this, four cells of stride 16, are pooled from the finer map; at an input of 256 pixels.
_FINE_BELOW = 4.0 * STRIDES[1]
# Boxes that the second stage looks at, how many times as many anchors they are chosen from, and by which overlap.
PROPOSALS, BEFORE, PROPOSAL_OVERLAP = 100, 6, 0.7
OVERLAP = 0.5  # of two detections of one class


@dataclass(frozen=True)
class LiteDetectorSpec:
    """Sizes.

    Attributes:
        network: a name of `xlan.vision.lite.SPECS`.
        classes: names of the objects.
        input_size: side in pixels of the square that pictures are squashed to.
        channels: of the neck; a multiple of 8.
        rounds: of the neck.
        hidden: width of the second stage.
        fine_sizes: sides of anchors on the map of stride 8, at an input of 256 pixels.
        coarse_sizes: sides of anchors on the map of stride 16.
        score_slope: see `calibrated`.
        score_offset: see `calibrated`.
    """

    network: str
    classes: tuple[str, ...]
    input_size: int = 256
    channels: int = 96
    rounds: int = 3
    hidden: int = 512
    fine_sizes: tuple[float, ...] = (9.0, 18.0, 36.0)
    coarse_sizes: tuple[float, ...] = (64.0, 112.0, 192.0)
    score_slope: float = 1.0
    score_offset: float = 0.0

    def __post_init__(self) -> None:
        check_text(network=self.network)
        check_whole(input_size=self.input_size, channels=self.channels, rounds=self.rounds, hidden=self.hidden)
        check_numbers(score_slope=self.score_slope, score_offset=self.score_offset)
        for name in self.classes:
            check_text(**{"a name in classes": name})
        for side in (*self.fine_sizes, *self.coarse_sizes):
            check_numbers(**{"a side in fine_sizes or coarse_sizes": side})
            if not 0 < side <= 4096:
                raise ModelError(f"fine_sizes and coarse_sizes must be above 0 and at most 4096, got {side}")
        if self.network not in SPECS:
            raise ModelError(f"unknown vision network {self.network!r}; there are: {', '.join(sorted(SPECS))}")
        if not 64 <= self.input_size <= 1024:
            raise ModelError(f"input_size must be from 64 to 1024 pixels, got {self.input_size}")
        if not 1 <= len(self.classes) <= 10_000:
            raise ModelError(f"expected from 1 to 10000 classes, got {len(self.classes)}")
        if len(self.fine_sizes) != len(self.coarse_sizes) or not self.fine_sizes:
            raise ModelError("expected as many fine_sizes as coarse_sizes, at least one")
        if not all(8 <= value <= 4096 for value in (self.channels, self.hidden)):
            raise ModelError(f"channels and hidden must be from 8 to 4096, got {self.channels} and {self.hidden}")
        if self.channels % GROUPS:
            raise ModelError(f"channels must be a multiple of {GROUPS}, got {self.channels}")
        if not 1 <= self.rounds <= 16:
            raise ModelError(f"rounds must be from 1 to 16, got {self.rounds}")
        if not (0 < self.score_slope < 100 and abs(self.score_offset) < 100):
            raise ModelError(
                f"expected a score_slope from 0 to 100 and a score_offset within ±100, "
                f"got {self.score_slope} and {self.score_offset}"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, what: str) -> LiteDetectorSpec:
        """Read what `to_dict` wrote; errors begin with `what`."""
        try:
            check_objects(spec=values)
            lists = {name: values[name] for name in ("classes", "fine_sizes", "coarse_sizes")}
            check_lists(**lists)
            return cls(**{**values, **{name: tuple(value) for name, value in lists.items()}})
        except (ModelError, TypeError, KeyError, ValueError) as error:
            raise ModelError(f"{what}: its sizes cannot be read: {error}") from None

    @property
    def fine_below(self) -> float:
        """Boxes with sides below this (the root of their area) are pooled from the finer map."""
        return _FINE_BELOW * self.input_size / 256

    @property
    def anchors_per_cell(self) -> int:
        """Boxes that start from one cell of a map."""
        return len(RATIOS) * len(self.fine_sizes)

    def calibrated(self, scores: Floats) -> Floats:
        """Scores → the share of such detections that proved right.

        Both stages learn from samples with more things than pictures have, so what `joined` gives promises too much;
        slope and offset of its logits were fitted on pictures with known boxes.
        """
        likely = np.clip(scores.astype(np.float64), 1e-9, 1 - 1e-9)
        logits = self.score_slope * np.log(likely / (1 - likely)) + self.score_offset
        right: Floats = (1 / (1 + np.exp(-logits))).astype(np.float32)
        return right

    def anchors(self) -> Floats:
        """All boxes that proposals start from, `[A, 4]`: those of the fine map, then those of the coarse map."""
        parts = []
        for sizes, stride in zip((self.fine_sizes, self.coarse_sizes), STRIDES, strict=True):
            shapes = centred_shapes([side * self.input_size / 256 for side in sizes], RATIOS)
            cells = math.ceil(self.input_size / stride)
            parts.append(place(shapes + np.float32(stride / 2), cells, cells, stride))
        return np.concatenate(parts)


class Boxes(NamedTuple):
    """Detections of one picture, best first.

    Attributes:
        boxes: `[n, 4]` in pixels of the input.
        scores: `[n]`.
        classes: `[n]`.
    """

    boxes: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]


def kept_proposals(boxes: Floats, *, count: int, overlap: float = PROPOSAL_OVERLAP) -> npt.NDArray[np.int64]:
    """Which of decoded anchors `[n, 4]`, best first, are neither empty nor overlap a better one; at most `count`."""
    large = np.flatnonzero(((boxes[:, 2:] - boxes[:, :2]) >= _SMALLEST_SIDE).all(axis=1))
    kept: npt.NDArray[np.int64] = large[suppress(boxes[large], overlap, limit=count)]
    return kept


def joined(probabilities: Floats, objectness: Floats) -> Floats:
    """The geometric mean of class probabilities `[R, classes]` and objectness `[R]`: what both stages think."""
    mean: Floats = np.sqrt(probabilities * objectness[:, None])
    return mean


def kept_detections(scores: Floats, corners: Floats, *, min_score: float, most: int, overlap: float = OVERLAP) -> Boxes:
    """Detections of a picture.

    Args:
        scores: `[R, classes]` of each proposal.
        corners: `[R, 4]`, where each lies exactly.
        min_score: drop detections with a lower score.
        most: how many at most.
        overlap: threshold of the suppression within a class.
    """
    proposal, label = np.nonzero(scores >= min_score)
    found = scores[proposal, label]
    order = np.argsort(-found, kind="stable")
    proposal, label, found = proposal[order], label[order], found[order]
    keep = suppress(corners[proposal], overlap, groups=label, limit=most)
    return Boxes(corners[proposal[keep]], found[keep], label[keep].astype(np.int64))


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
    confidence: float = 0.02
    image_region: bool = True
    grid: bool = False

    def __post_init__(self) -> None:
        check_whole(fewest=self.fewest, most=self.most)
        check_numbers(confidence=self.confidence)
        check_flags(image_region=self.image_region, grid=self.grid)
        if not 0 <= self.fewest <= self.most or self.most < 1:
            raise ModelError(f"expected 0 <= fewest <= most regions, got {self.fewest} and {self.most}")
        if not 0 <= self.confidence <= 1:
            raise ModelError(f"confidence must be from 0 to 1, got {self.confidence}")

    @classmethod
    def of(cls, regions: tuple[int, int] | None, confidence: float | None, *, grid: bool) -> LiteSelection:
        """With these values; None leaves the usual one."""
        fewest, most = regions or (cls.fewest, cls.most)
        return cls(fewest, most, cls.confidence if confidence is None else confidence, grid=grid)

    def chosen(self, found: Boxes) -> Boxes:
        """The first of all detections."""
        likely = int((found.scores >= self.confidence).sum())
        count = min(self.most, max(self.fewest, likely))
        return Boxes(found.boxes[:count], found.scores[:count], found.classes[:count])


# Before calibration. Far below anything that is shown, but not so low that suppression sees thousands of boxes.
LEAST_SCORE = 0.02


class Seen(NamedTuple):
    """What the network saw in one picture.

    Attributes:
        found: the chosen detections.
        features: `[n, D]` of them.
        cells: `[h, w, D]`, the backbone's last map.
    """

    found: Boxes
    features: Floats
    cells: Floats


class LiteFront(ABC):
    """The small detector behind the extractor interface: detected regions, grid cells, or both, from one pass.

    Args:
        spec: sizes.
        selection: which regions.
        weights_name: which weights these are, for `description`.
    """

    def __init__(self, spec: LiteDetectorSpec, selection: LiteSelection | None, weights_name: str) -> None:
        self.spec, self.selection, self.weights_name = spec, selection or LiteSelection(), weights_name

    @abstractmethod
    def see(self, images: Sequence[PreparedImage]) -> list[Seen]:
        """Run the network on each picture."""

    @property
    def feature_dim(self) -> int:
        """Channels of the backbone's last map."""
        return SPECS[self.spec.network].head

    @property
    def min_side(self) -> int:
        """Twice the input size: details lost by decoding a JPEG at reduced size would be lost by squashing anyway."""
        return 2 * self.spec.input_size

    @property
    def description(self) -> dict[str, Any]:
        """Settings and weights, as JSON values."""
        sizes = {"network": self.spec.network, "input_size": self.spec.input_size}
        return {"extractor": LITE_EXTRACTOR, "weights": self.weights_name, **sizes, **asdict(self.selection)}

    @property
    def most_found(self) -> int:
        """Detections of a picture to choose from."""
        return max(100, self.selection.most)

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Squash an upright RGB image to the input size."""
        width, height = original_size(image)
        return PreparedImage(square_pixels(image, self.spec.input_size), width, height)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image: the image itself (if set), detections by score, grid cells (if set)."""
        return [self._regions(seen, image) for seen, image in zip(self.see(images), images, strict=True)]

    def detect(self, images: Sequence[PreparedImage]) -> list[Detections]:
        """Named detections of each image, best first; an image without any is one region as a whole."""
        result = []
        for (found, features, cells), image in zip(self.see(images), images, strict=True):
            if len(found.boxes):
                boxes, scores, labels = self._fractions(found.boxes), found.scores, found.classes
            else:
                features, boxes = cells.mean(axis=(0, 1))[None], _WHOLE
                scores, labels = np.zeros(1, np.float32), np.array([-1])
            names = tuple("image" if label < 0 else self.spec.classes[label] for label in labels)
            regions = Regions(features, boxes, scores, width=image.width, height=image.height)
            result.append(Detections(regions, labels, names))
        return result

    def _regions(self, seen: Seen, image: PreparedImage) -> Regions:
        found, features, cells = seen
        parts, boxes, scores = [features], [self._fractions(found.boxes)], [found.scores]
        numbers = [np.arange(len(features))]
        if self.selection.image_region or not (len(features) or self.selection.grid):
            parts.insert(0, cells.mean(axis=(0, 1))[None])
            boxes.insert(0, _WHOLE)
            scores.insert(0, np.ones(1, np.float32))
            numbers.insert(0, np.array([-1]))
        if self.selection.grid:
            rows, columns, width = cells.shape
            parts.append(cells.reshape(-1, width))
            boxes.append(grid_boxes(rows, columns))
            scores.append(np.ones(rows * columns, np.float32))
            numbers.append(np.full(rows * columns, -1))
        return Regions(
            np.concatenate(parts),
            np.concatenate(boxes),
            np.concatenate(scores),
            width=image.width,
            height=image.height,
            things=self._things(found),
            thing_of=np.concatenate(numbers).astype(np.int64),
        )

    def _things(self, found: Boxes) -> tuple[Thing, ...]:
        rows = self._fractions(found.boxes).tolist()
        return tuple(
            Thing(self.spec.classes[label], (row[0], row[1], row[2], row[3]), min(1.0, score))
            for label, row, score in zip(found.classes.tolist(), rows, found.scores.tolist(), strict=True)
        )

    def _fractions(self, boxes: Floats) -> Floats:
        fractions: Floats = np.clip(boxes / np.float32(self.spec.input_size), 0, 1)
        return fractions


_WHOLE = np.array([[0, 0, 1, 1]], dtype=np.float32)
