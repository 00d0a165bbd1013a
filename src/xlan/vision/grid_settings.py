"""What grid regions are, whatever computes them: settings, the file that keeps them with the weights, and the border.

Without torch. `vision.safetensors` in a model directory is one file: folded weights, and in its header the settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from xlan.errors import ModelError, WeightsError
from xlan.files import file_sha256
from xlan.types import Regions
from xlan.vision.image import original_size, square_pixels
from xlan.vision.lite import SPECS
from xlan.vision.regions import PreparedImage, grid_boxes
from xlan.vision.values import check_flags, check_text, check_whole
from xlan.weights import read_tensors

# Pictures per pass: the early maps of more than a few leave the processor's caches, and a picture then costs a quarter
# more.
PICTURES_PER_PASS = 4
VISION_FORMAT = "xlan-vision"
VISION_VERSION = 1
MAX_VISION_BYTES = 256 << 20
# The networks' published input: (pixel - 127) / 128.
PIXEL_MEAN = 127.0
PIXEL_SCALE = 128.0


@dataclass(frozen=True)
class GridSettings:
    """How maps become regions.

    Attributes:
        network: a name of `xlan.vision.lite.SPECS`.
        input_size: side in pixels of the square the picture is squashed to.
        levels: strides of the maps whose channels are put together: `(32,)`, `(16,)` or `(16, 32)`.
        cells: side of the grid, maps being averaged to it; None takes the coarsest map as it is.
        image_region: add one region for the whole image, the mean over cells, as the first.
    """

    network: str
    input_size: int = 224
    levels: tuple[int, ...] = (32,)
    cells: int | None = None
    image_region: bool = True

    def __post_init__(self) -> None:
        check_text(network=self.network)
        check_whole(input_size=self.input_size)
        check_flags(image_region=self.image_region)
        if self.cells is not None:
            check_whole(cells=self.cells)
        if self.network not in SPECS:
            raise ModelError(f"unknown vision network {self.network!r}; there are: {', '.join(sorted(SPECS))}")
        if not 32 <= self.input_size <= 2048:
            raise ModelError(f"input_size must be from 32 to 2048 pixels, got {self.input_size}")
        if self.levels not in ((32,), (16,), (16, 32)) or any(type(level) is not int for level in self.levels):
            raise ModelError(f"levels must be (32,), (16,) or (16, 32), got {self.levels!r}")
        if self.cells is not None and not 1 <= self.cells <= 64:
            raise ModelError(f"cells must be from 1 to 64, or None, got {self.cells}")

    @classmethod
    def from_json(cls, text: str, *, source: str) -> GridSettings:
        """What `to_json` wrote; `source` names its origin in error messages.

        Raises:
            WeightsError: it is something else.
        """
        try:
            values = json.loads(text)
            return cls(**{**values, "levels": tuple(values["levels"])})
        except (ModelError, ValueError, TypeError, KeyError) as error:
            raise WeightsError(f"{source}: its settings cannot be read: {error}") from None

    def changed(self, changes: Mapping[str, Any], source: str) -> GridSettings:
        """With some settings replaced; `source` names the file in error messages.

        Raises:
            WeightsError: they cannot be.
        """
        try:
            values = {**asdict(self), **changes}
            return GridSettings(**{**values, "levels": tuple(values["levels"])})
        except (ModelError, ValueError, TypeError) as error:
            raise WeightsError(f"{source}: cannot be used with {dict(changes)}: {error}") from None

    def to_json(self) -> str:
        """The settings as JSON."""
        return json.dumps(asdict(self))

    @property
    def feature_dim(self) -> int:
        """Channels of all levels together."""
        spec = SPECS[self.network]
        return sum({16: spec.stride16_channels, 32: spec.head}[level] for level in self.levels)

    @property
    def min_side(self) -> int:
        """Twice the input size: what the reduced decoding of a JPEG loses is then lost by squashing anyway."""
        return 2 * self.input_size

    def describe(self, weights_name: str) -> dict[str, Any]:
        """Settings and weights, as JSON values."""
        return {"extractor": "grid", "weights": weights_name, **asdict(self), "levels": list(self.levels)}

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Squash an upright RGB image to the input size."""
        width, height = original_size(image)
        return PreparedImage(square_pixels(image, self.input_size), width, height)

    def regions(
        self, features: npt.NDArray[np.float32], grid: tuple[int, int], images: Sequence[PreparedImage]
    ) -> list[Regions]:
        """Features `[B, N, D]` of a grid of rows and columns, the image itself first (if set), as records."""
        boxes = grid_boxes(*grid)
        if self.image_region:
            boxes = np.concatenate([np.array([[0, 0, 1, 1]], dtype=np.float32), boxes])
        return [
            Regions(array, boxes, width=image.width, height=image.height)
            for array, image in zip(features, images, strict=True)
        ]


class GridFront:
    """What every grid extractor has, whatever computes its network: how pictures are prepared, what the features are.

    Args:
        settings: sizes.
        weights_name: which weights the network has, for `description` ("imagenet", or a hash of a file).
    """

    def __init__(self, settings: GridSettings, weights_name: str) -> None:
        self.settings = settings
        self.weights_name = weights_name

    @property
    def feature_dim(self) -> int:
        """Channels of all levels together."""
        return self.settings.feature_dim

    @property
    def min_side(self) -> int:
        """Pixels a side needs at least."""
        return self.settings.min_side

    @property
    def description(self) -> dict[str, Any]:
        """Settings and weights, as JSON values."""
        return self.settings.describe(self.weights_name)

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Squash an upright RGB image to the input size."""
        return self.settings.prepare(image)


@dataclass(frozen=True)
class VisionFile:
    """A `vision.safetensors`: folded weights by name (float16), settings, and a hash of the file."""

    weights: Mapping[str, npt.NDArray[Any]]
    settings: GridSettings
    digest: str


def trained_sizes(features: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with which a captioner's training features were extracted, as changes for `read_vision`.

    They may differ from those in the vision file: `xlan features extract` takes a larger input or another grid.

    Args:
        features: description of the extractor, as model directories keep it; empty when it is not known.
    """
    names = ("input_size", "levels", "cells", "image_region")
    return {name: features[name] for name in names if name in features} if features.get("extractor") == "grid" else {}


def read_vision(path: str | os.PathLike[str], **changes: Any) -> VisionFile:
    """Read what `xlan.vision.grid.save_vision` wrote; `changes` replace single settings of it.

    Raises:
        WeightsError: missing, damaged, of another format, or settings that cannot be.
    """
    source = Path(path)
    tensors, header = read_tensors(source, max_bytes=MAX_VISION_BYTES)
    if header.get("format") != VISION_FORMAT or header.get("version") != str(VISION_VERSION):
        got = f"{header.get('format')} {header.get('version')}"
        raise WeightsError(f"{source}: expected a file of format {VISION_FORMAT} {VISION_VERSION}, got {got}")
    settings = GridSettings.from_json(header.get("settings", ""), source=str(source)).changed(changes, str(source))
    for name, tensor in tensors.items():
        if tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
            raise WeightsError(f"{source}: {name} has values that are not finite numbers; the file is damaged")
    return VisionFile(tensors, settings, "sha256:" + file_sha256(source)[:16])
