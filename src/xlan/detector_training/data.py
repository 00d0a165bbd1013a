"""Pictures with boxes in batches: random views with the boxes that are visible in them, decoded ahead, memory flat.

Everything random about a picture comes from the seed, the epoch and the picture's number, so a run that is resumed at
step n sees what an uninterrupted run would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlan.adapt.data import BoxLabels, View, ViewLoader
from xlan.vision.sources import Picture

Floats = npt.NDArray[np.float32]
# A box counts when this share of it is in view; below that, but above the second number, it is neither thing nor
# background. Boxes smaller than a pixel or two cannot be found and are treated the same way.
_IN_VIEW, _PARTLY_IN_VIEW = 0.4, 0.1
_SMALLEST_PIXELS = 3.0


@dataclass(frozen=True)
class Sample:
    """One picture as the network sees it.

    Attributes:
        number: which picture.
        pixels: `[S, S, 3]`.
        boxes: `[G, 4]` in pixels of the view.
        labels: `[G]`.
        unsure: `[U, 4]` boxes of which it is unknown whether they hold a thing.
        by_people: people marked the boxes, so that where none is, nothing is.
    """

    number: int
    pixels: npt.NDArray[np.uint8]
    boxes: Floats
    labels: npt.NDArray[np.int64]
    unsure: Floats
    by_people: bool = False


def boxes_in_view(
    rows: Floats, view: View, *, size: int, min_score: float
) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """Boxes `[n, 6]` (class, score, corners as fractions of the picture) → boxes, labels and unsure boxes in pixels.

    Args:
        rows: of the picture.
        view: which part of it is seen.
        size: side of the view in pixels.
        min_score: boxes that a machine was less sure of are unsure.
    """
    x0, y0, x1, y1 = view.box
    corners = rows[:, 2:].astype(np.float64)
    corners = (corners - [x0, y0, x0, y0]) / [x1 - x0, y1 - y0, x1 - x0, y1 - y0]
    if view.mirrored:
        corners = corners[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [1, 0, 1, 0]
    area = np.prod(np.maximum(corners[:, 2:] - corners[:, :2], 1e-9), axis=1)
    seen = np.clip(corners, 0, 1)
    sides = np.maximum(seen[:, 2:] - seen[:, :2], 0)
    share = np.prod(sides, axis=1) / area
    pixels = (seen * size).astype(np.float32)
    findable = (sides * size).min(axis=1, initial=np.inf) >= _SMALLEST_PIXELS
    sure = (share >= _IN_VIEW) & findable & (rows[:, 1] >= min_score)
    unsure = ~sure & (share >= _PARTLY_IN_VIEW)
    return pixels[sure], rows[sure, 0].astype(np.int64), pixels[unsure]


class DetectionLoader(ViewLoader[Sample]):
    """Pictures with boxes.

    Args:
        pictures: what to load; each must be listed among the boxes (with none, if it shows nothing).
        boxes: by picture id.
        size: side of the square views.
        min_score: see `boxes_in_view`.
        min_area: smallest view in training, as a share of the picture.
        threads: decoding threads.
        seed: of everything random.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        boxes: BoxLabels,
        *,
        size: int,
        min_score: float = 0.45,
        min_area: float = 0.5,
        threads: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__(pictures, size=size, threads=threads, min_area=min_area, seed=seed)
        self.boxes, self.min_score = boxes, min_score

    def sample(self, picture: Picture, number: int, pixels: npt.NDArray[np.uint8], view: View) -> Sample:
        """With the boxes that are in view."""
        rows = self.boxes.boxes[picture.id]
        boxes, labels, unsure = boxes_in_view(rows, view, size=self.size, min_score=self.min_score)
        return Sample(number, pixels, boxes, labels, unsure, picture.id in self.boxes.by_people)
