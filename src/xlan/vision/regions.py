"""What every extractor looks like from outside: pictures in, regions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from xlan.errors import FeatureError, ShapeError
from xlan.types import Regions
from xlan.vision.image import DEFAULT_LIMITS, ImageLimits, ImageSource, open_image


@dataclass(frozen=True)
class PreparedImage:
    """A picture as an extractor wants it, small enough to wait in a queue.

    Attributes:
        pixels: `[H, W, 3]` at the extractor's own input size; uint8, or float32 where it resizes in floats.
        width: width in pixels of the picture it came from.
        height: its height in pixels.
        beside: the same picture as a detector beside the extractor wants it; None where there is no such.
    """

    pixels: npt.NDArray[Any]
    width: int
    height: int
    beside: PreparedImage | None = None


class RegionExtractor(Protocol):
    """Pictures → Regions, in two halves: `prepare` may run in many threads, `extract` sees whole batches."""

    @property
    def feature_dim(self) -> int:
        """Width D of every feature vector this extractor makes."""

    @property
    def min_side(self) -> int | None:
        """How many pixels a side needs at least (lets JPEGs be decoded smaller); None when all are wanted."""

    @property
    def description(self) -> Mapping[str, Any]:
        """What made the features, as JSON values; stores with different descriptions are not mixed."""

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Bring an upright RGB image to the input size."""

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image, in order; features `[N, D]` float32, boxes `[N, 4]`."""


def extract_regions(
    extractor: RegionExtractor, sources: Sequence[ImageSource], *, limits: ImageLimits = DEFAULT_LIMITS
) -> list[Regions]:
    """Open pictures from anywhere and extract their regions as one batch.

    Raises:
        ImageError: one of the pictures cannot be used.
    """
    opened = [open_image(source, limits=limits, min_side=extractor.min_side) for source in sources]
    return extractor.extract([extractor.prepare(image) for image in opened]) if opened else []


def check_same_extractor(trained: Mapping[str, Any], store: Mapping[str, Any], *, model: str, features: str) -> None:
    """Refuse features that another network made than the one a model was trained with.

    Args:
        trained: description of the extractor behind the model's training features; empty when unknown.
        store: description of the extractor that made the features at hand.
        model: what messages call the model.
        features: what messages call the features.

    Features that were imported do not tell their network; nothing is compared then.

    Raises:
        FeatureError: both are known and differ; the message says in what.
    """
    names = [name for name in trained if trained[name] != store.get(name)]
    if not names or not trained.get("weights") or not store.get("weights"):
        return
    differences = ", ".join(f"{name} {store.get(name)} instead of {trained.get(name)}" for name in names)
    raise FeatureError(
        f"{features}: comes from another network than {model} was trained with ({differences}); use the network whose "
        "features it was trained on (xlan features extract --vision)"
    )


def grid_boxes(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Boxes `[rows * columns, 4]` of a grid over the whole picture, row by row."""
    y, x = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    edges = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=-1)
    return edges.reshape(-1, 4).astype(np.float32)


def blank_batch(regions: Sequence[Regions], feature_dim: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Room for the features of B images, and where they go.

    Returns:
        zeros `[B, N, feature_dim]`, N as the longest image has, and the mask `[B, N]`, True where a region exists.

    Raises:
        ShapeError: an image has features of another shape, or no regions.
    """
    for row, image in enumerate(regions):
        if image.features.ndim != 2 or image.features.shape[1] != feature_dim or not len(image):
            got = list(image.features.shape)
            raise ShapeError(f"regions of image {row}: expected features [N, {feature_dim}], got {got}")
    counts = np.array([len(image) for image in regions], dtype=np.int64)
    longest = int(counts.max())
    return np.zeros((len(regions), longest, feature_dim), dtype=np.float32), np.arange(longest) < counts[:, None]


def pad_arrays(regions: Sequence[Regions], feature_dim: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Features `[B, N, feature_dim]` of B images, zero in padding, and their mask `[B, N]` (`vision.padding` has the
    same for tensors)."""
    features, mask = blank_batch(regions, feature_dim)
    for row, image in enumerate(regions):
        features[row, : len(image)] = image.features
    return features, mask
