"""Grid regions: the cells of a convolutional network's last maps, each with its box, and the whole image as one more.

A picture is squashed to a square, as the networks were adapted; boxes are fractions of the picture, so they need no
memory of that. `vision.safetensors` in a model directory is one file: folded weights, and in its header the settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from xlan.errors import ModelError, WeightsError
from xlan.files import atomic_path, file_sha256
from xlan.types import Regions
from xlan.vision import efficientnet
from xlan.vision.image import original_size, square_pixels
from xlan.vision.regions import PreparedImage, grid_boxes

VISION_FORMAT = "xlan-vision"
VISION_VERSION = 1
MAX_VISION_BYTES = 256 << 20
# The networks' published input: (pixel - 127) / 128.
PIXEL_MEAN = 127.0
PIXEL_SCALE = 128.0
# Pictures per pass: the early maps of more than a few leave the processor's caches, and a picture then costs a quarter
# more.
_PER_PASS = 4


@dataclass(frozen=True)
class GridSettings:
    """How maps become regions.

    Attributes:
        network: a name of `efficientnet.SPECS`.
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
        if self.network not in efficientnet.SPECS:
            names = ", ".join(sorted(efficientnet.SPECS))
            raise ModelError(f"unknown vision network {self.network!r}; there are: {names}")
        if not 32 <= self.input_size <= 2048:
            raise ModelError(f"input_size must be from 32 to 2048 pixels, got {self.input_size}")
        if self.levels not in ((32,), (16,), (16, 32)):
            raise ModelError(f"levels must be (32,), (16,) or (16, 32), got {tuple(self.levels)}")
        if self.cells is not None and not 1 <= self.cells <= 64:
            raise ModelError(f"cells must be from 1 to 64, or None, got {self.cells}")


class GridExtractor:
    """Grid regions of an EfficientNet-Lite.

    Args:
        network: its weights; a folded copy is made.
        settings: sizes.
        weights_name: which weights these are, for `description` ("imagenet", or a hash of a file).
    """

    def __init__(
        self, network: efficientnet.EfficientNetLite, settings: GridSettings, *, weights_name: str = ""
    ) -> None:
        self.settings = settings
        self.network = efficientnet.folded(network)
        self.weights_name = weights_name

    @classmethod
    def imagenet(cls, settings: GridSettings) -> GridExtractor:
        """With the ImageNet weights of the `vision` extra."""
        network, _ = efficientnet.load_imagenet(settings.network)
        return cls(network, settings, weights_name="imagenet")

    @classmethod
    def load(cls, path: str | os.PathLike[str], **changes: Any) -> GridExtractor:
        """With the weights and settings of a file that `save` wrote; `changes` replace single settings."""
        network, settings, digest = load_vision(path)
        return cls(network, GridSettings(**{**asdict(settings), **changes}), weights_name=digest)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights (float16) and settings as one safetensors file, atomically."""
        save_vision(path, self.network, self.settings)

    @property
    def feature_dim(self) -> int:
        """Channels of all levels together."""
        channels = {16: self.network.stride16_channels, 32: self.network.stride32_channels}
        return sum(channels[level] for level in self.settings.levels)

    @property
    def min_side(self) -> int:
        """Twice the input size: what the reduced decoding of a JPEG loses is then lost by squashing anyway."""
        return 2 * self.settings.input_size

    @property
    def description(self) -> dict[str, Any]:
        """Settings and weights, as JSON values."""
        settings = asdict(self.settings)
        settings["levels"] = list(self.settings.levels)
        return {"extractor": "grid", "weights": self.weights_name, **settings}

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Squash an upright RGB image to the input size."""
        width, height = original_size(image)
        return PreparedImage(square_pixels(image, self.settings.input_size), width, height)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image: the image itself first (if set), then the cells row by row."""
        if not images:
            return []
        with torch.inference_mode():
            passes = [images[i : i + _PER_PASS] for i in range(0, len(images), _PER_PASS)]
            grids = [self._grid(normalise([image.pixels for image in part])) for part in passes]
        grid = torch.cat(grids)  # [B, D, R, C]
        rows, columns = grid.shape[-2:]
        features = grid.flatten(2).transpose(1, 2)  # [B, R*C, D]
        boxes = grid_boxes(rows, columns)
        if self.settings.image_region:
            features = torch.cat([features.mean(dim=1, keepdim=True), features], dim=1)
            boxes = np.concatenate([np.array([[0, 0, 1, 1]], dtype=np.float32), boxes])
        arrays = features.contiguous().numpy()
        return [
            Regions(array, boxes, width=image.width, height=image.height)
            for array, image in zip(arrays, images, strict=True)
        ]

    def _grid(self, pixels: Tensor) -> Tensor:
        """`[B, 3, S, S]` → `[B, D, R, C]`."""
        maps = self.network(pixels)
        chosen = [{16: maps.stride16, 32: maps.stride32}[level] for level in self.settings.levels]
        cells = self.settings.cells
        target = (cells, cells) if cells is not None else (chosen[-1].shape[-2], chosen[-1].shape[-1])
        pooled = [m if m.shape[-2:] == target else functional.adaptive_avg_pool2d(m, target) for m in chosen]
        return torch.cat(pooled, dim=1) if len(pooled) > 1 else pooled[0]


def normalise(pixels: Sequence[npt.NDArray[np.uint8]]) -> Tensor:
    """Images `[S, S, 3]` uint8 → one float batch `[B, 3, S, S]`, channels last in memory."""
    batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    return batch.to(torch.float32, memory_format=torch.channels_last).sub_(PIXEL_MEAN).div_(PIXEL_SCALE)


def save_vision(path: str | os.PathLike[str], network: efficientnet.EfficientNetLite, settings: GridSettings) -> None:
    """Write folded weights (float16) and settings as one safetensors file, atomically."""
    state = efficientnet.folded(network).state_dict()
    tensors = {name: tensor.to(torch.float16).contiguous() for name, tensor in state.items()}
    header = {"format": VISION_FORMAT, "version": str(VISION_VERSION), "settings": json.dumps(asdict(settings))}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=header)


def load_vision(path: str | os.PathLike[str]) -> tuple[efficientnet.EfficientNetLite, GridSettings, str]:
    """Read what `save_vision` wrote: folded network (float32), settings, and a hash of the file.

    Raises:
        WeightsError: missing, damaged, of another format, or tensors that do not fit the network it names.
    """
    source = Path(path)
    try:
        size = source.stat().st_size
        if size > MAX_VISION_BYTES:
            raise WeightsError(f"{source}: {size:,} bytes is more than any vision file has ({MAX_VISION_BYTES:,})")
        with safe_open(source, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise WeightsError(f"{source}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{source}: is not a readable safetensors file: {error}") from None
    settings = _settings_of(source, header)
    network = efficientnet.build(settings.network)
    network = efficientnet.folded(network)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise WeightsError(f"{source}: {name} has values that are not finite numbers; the file is damaged")
    efficientnet.load_checked(network, {name: tensor.float() for name, tensor in tensors.items()}, str(source))
    return network, settings, _digest(source)


def _settings_of(source: Path, header: dict[str, str]) -> GridSettings:
    if header.get("format") != VISION_FORMAT or header.get("version") != str(VISION_VERSION):
        got = f"{header.get('format')} {header.get('version')}"
        raise WeightsError(f"{source}: expected a file of format {VISION_FORMAT} {VISION_VERSION}, got {got}")
    try:
        values = json.loads(header.get("settings", ""))
        return GridSettings(**{**values, "levels": tuple(values["levels"])})
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsError(f"{source}: its settings cannot be read: {error}") from None


def _digest(path: Path) -> str:
    return f"sha256:{file_sha256(path)[:16]}"
