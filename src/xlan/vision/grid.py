"""Grid regions: the cells of a convolutional network's last maps, each with its box, and the whole image as one more.

A picture is squashed to a square, as the networks were adapted; boxes are fractions of the picture, so they need no
memory of that. What does not depend on torch is in `xlan.vision.grid_settings`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from xlan.types import Regions
from xlan.vision import efficientnet
from xlan.vision.efficientnet import FeatureMaps
from xlan.vision.grid_settings import (
    PICTURES_PER_PASS,
    PIXEL_MEAN,
    PIXEL_SCALE,
    VISION_FORMAT,
    VISION_VERSION,
    GridFront,
    GridSettings,
    read_vision,
)
from xlan.vision.regions import PreparedImage
from xlan.weights import tensor_file


class GridExtractor(GridFront):
    """Grid regions of an EfficientNet-Lite.

    Args:
        network: its weights; a folded copy is made unless they are folded already.
        settings: sizes.
        weights_name: which weights these are, for `description` ("imagenet", or a hash of a file).
        bf16: multiply in bfloat16, up to twice as fast where the processor has it; features differ by about a percent.
    """

    def __init__(
        self,
        network: efficientnet.EfficientNetLite,
        settings: GridSettings,
        *,
        weights_name: str = "",
        bf16: bool = False,
    ) -> None:
        super().__init__(settings, weights_name)
        self.bf16 = bf16
        self.network = efficientnet.folded(network)
        self._device = torch.device("cpu")

    @classmethod
    def imagenet(cls, settings: GridSettings) -> GridExtractor:
        """With the ImageNet weights of the `vision` extra."""
        network, _ = efficientnet.load_imagenet(settings.network)
        return cls(network, settings, weights_name="imagenet")

    @classmethod
    def load(cls, path: str | os.PathLike[str], **changes: Any) -> GridExtractor:
        """With the weights and settings of a file that `save` wrote; `changes` replace single settings."""
        network, settings, digest = load_vision(path, **changes)
        return cls(network, settings, weights_name=digest)

    def to(self, device: torch.device | str) -> GridExtractor:
        """This extractor, computing on another device; regions are numpy all the same."""
        self._device = torch.device(device)
        self.network = self.network.to(self._device)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights (float16) and settings as one safetensors file, atomically."""
        save_vision(path, self.network, self.settings)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image: the image itself first (if set), then the cells row by row."""
        if not images:
            return []
        with torch.inference_mode():
            passes = [images[i : i + PICTURES_PER_PASS] for i in range(0, len(images), PICTURES_PER_PASS)]
            grids = [self._grid(normalise([image.pixels for image in part]).to(self._device)) for part in passes]
        grid = torch.cat(grids)  # [B, D, R, C]
        features = grid.flatten(2).transpose(1, 2)  # [B, R*C, D]
        if self.settings.image_region:
            features = torch.cat([features.mean(dim=1, keepdim=True), features], dim=1)
        rows, columns = grid.shape[-2:]
        return self.settings.regions(features.contiguous().cpu().numpy(), (rows, columns), images)

    def _grid(self, pixels: Tensor) -> Tensor:
        """`[B, 3, S, S]` → `[B, D, R, C]`."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self.bf16):
            maps = FeatureMaps(*(one.float() for one in self.network(pixels)))
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
    header = {"format": VISION_FORMAT, "version": str(VISION_VERSION), "settings": settings.to_json()}
    with tensor_file(path) as temporary:
        save_file(tensors, temporary, metadata=header)


def load_vision(
    path: str | os.PathLike[str], **changes: Any
) -> tuple[efficientnet.EfficientNetLite, GridSettings, str]:
    """Read what `save_vision` wrote: folded network (float32), settings, and a hash of the file.

    Raises:
        WeightsError: missing, damaged, of another format, or tensors that do not fit the network it names; or
            `changes`, which replace single settings, cannot be.
    """
    file = read_vision(path, **changes)
    weights = {name: torch.from_numpy(array).float() for name, array in file.weights.items()}
    return efficientnet.load_folded(file.settings.network, weights, str(path)), file.settings, file.digest
