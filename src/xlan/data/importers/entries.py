"""What every importer yields: one entry per image, read only when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from xlan.errors import FeatureError
from xlan.types import Regions
from xlan.vision.regions import grid_boxes

MAX_ARRAY_BYTES = 256 << 20  # features of one image; a hundred regions of 2048 numbers are under one megabyte
MAX_SIDE = (1 << 31) - 1  # pixels of a picture that a shard can note


@dataclass(frozen=True)
class Found:
    """Arrays of one image as a file gave them, before they are checked.

    Attributes:
        features: `[N, D]`, or `[height, width, D]` for a grid.
        boxes: `[N, 4]` x0 y0 x1 y1, in pixels or as fractions; None when there are none.
        scores: `[N]` or None.
        width: of the picture in pixels, 0 when unknown.
        height: likewise.
    """

    features: npt.NDArray[np.floating]
    boxes: npt.NDArray[np.floating] | None = None
    scores: npt.NDArray[np.floating] | None = None
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Entry:
    """One image of a source.

    Attributes:
        image_id: its id in the store.
        where: file or line, for messages.
        read: reads the arrays; raises `FeatureError` when they are damaged. May run on another thread.
        progress: bytes of the source that are done once this entry is.
    """

    image_id: str
    where: str
    read: Callable[[], Found]
    progress: int


@dataclass(frozen=True)
class Bad:
    """A place in a source that has no usable entry, and why."""

    where: str
    reason: str


class Source(Protocol):
    """Feature files of one form."""

    form: str
    parallel: bool

    @property
    def total_bytes(self) -> int:
        """Size of the source, for progress."""

    def entries(self) -> Iterator[Entry | Bad]:
        """Entries in a fixed order, without reading the arrays of any."""


def to_regions(found: Found, *, max_regions: int | None) -> tuple[Regions, bool]:
    """Regions with boxes as fractions of the picture, and whether the file's boxes could be used.

    Boxes in pixels of a picture of unknown size cannot be used; such regions, like those without boxes, get
    the whole picture as their box.
    """
    features, boxes = found.features, found.boxes
    if features.dtype.kind != "f":
        raise FeatureError(f"features must be floats, got {features.dtype}")
    for name, array, rank in (("boxes", boxes, 2), ("scores", found.scores, 1)):
        if array is not None and (array.dtype.kind not in "fiu" or array.ndim != rank):
            raise FeatureError(f"{name} must be numbers in {rank} dimensions, got {array.dtype} {array.shape}")
    if not 0 <= found.width <= MAX_SIDE or not 0 <= found.height <= MAX_SIDE:
        raise FeatureError(f"picture size {found.width} × {found.height} is impossible")
    if features.ndim == 3:
        boxes = grid_boxes(features.shape[0], features.shape[1]) if boxes is None else boxes
        features = features.reshape(-1, features.shape[2])
    if features.ndim == 2 and boxes is not None and len(boxes) == features.shape[1] != features.shape[0]:
        features = features.T  # one line of tools writes [D, N]
    if features.ndim != 2:
        raise FeatureError(f"features must be [regions, width] or [height, width, channels], got {features.shape}")
    count = len(features)
    if boxes is not None and boxes.shape != (count, 4):
        raise FeatureError(f"expected {count} boxes of 4 numbers for {count} regions, got {boxes.shape}")
    fractions = _fractions(boxes, found.width, found.height)
    usable = fractions is not None
    if fractions is None:
        fractions = np.tile(np.array([0, 0, 1, 1], dtype=np.float32), (count, 1))
    scores = None if found.scores is None else np.asarray(found.scores, dtype=np.float32)[:max_regions]
    return Regions(features[:max_regions], fractions[:max_regions], scores, found.width, found.height), usable


def _fractions(boxes: npt.NDArray[np.floating] | None, width: int, height: int) -> npt.NDArray[np.float32] | None:
    if boxes is None or not boxes.size:
        return None
    values = np.asarray(boxes, dtype=np.float32)
    if not np.isfinite(values).all():
        raise FeatureError("boxes hold values that are not finite")
    if values.max() > 1.5:  # pixels; no picture of one pixel has regions
        if not (width > 0 and height > 0):
            return None
        values = np.divide(values, np.array([width, height, width, height]), dtype=np.float32)
    # Detectors round outwards and some number pixels from 1; farther off, it is another picture's box.
    if values.min() < -0.05 or values.max() > 1.05:
        raise FeatureError(
            f"boxes reach {values.max():.2f} picture widths or heights; size {width} × {height} is wrong"
        )
    return np.clip(values, 0.0, 1.0)
