"""Pictures → the network's input: blue, green, red; mean subtracted; resized as each implementation does it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from xlan.vision.detector.conventions import Convention

# The network's first layers need a few pixels in each direction; a thinner picture gets the mean colour beside it.
FEWEST_PIXELS = 16


def target_scale(height: int, width: int, convention: Convention) -> float:
    """By how much a picture is enlarged."""
    short, long = min(height, width), max(height, width)
    scale = convention.short_side / short
    if convention.resize == "opencv":
        return convention.long_side / long if round(scale * long) > convention.long_side else scale
    return convention.long_side / long if scale * long > convention.long_side else scale


def target_size(height: int, width: int, convention: Convention) -> tuple[int, int]:
    """Height and width after resizing, each at least 1."""
    scale = target_scale(height, width, convention)
    if convention.resize == "opencv":
        return max(1, round(height * scale)), max(1, round(width * scale))
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def to_input(image: Image.Image, convention: Convention) -> npt.NDArray[np.float32]:
    """An upright RGB image → `[H, W, 3]` float32: blue, green, red, resized, mean subtracted."""
    mean = np.array(convention.mean, dtype=np.float32)
    rows, columns = target_size(image.height, image.width, convention)
    if convention.resize == "pillow":
        small = image.resize((columns, rows), Image.Resampling.BILINEAR)
        return _blue_first(small) - mean
    pixels = _blue_first(image)
    if convention.resize == "torch":
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        resized = functional.interpolate(batch, size=(rows, columns), mode="bilinear", align_corners=False)
        return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy()) - mean
    scale = target_scale(image.height, image.width, convention)
    return resize_opencv(pixels - mean, rows, columns, scale)


def _blue_first(image: Image.Image) -> npt.NDArray[np.float32]:
    return np.asarray(image, dtype=np.uint8)[:, :, ::-1].astype(np.float32)


def resize_opencv(pixels: npt.NDArray[np.float32], rows: int, columns: int, scale: float) -> npt.NDArray[np.float32]:
    """OpenCV's linear resizing by a factor: `[H, W, C]` → `[rows, columns, C]`, sampled every 1 / scale pixels."""
    top, bottom, y_share = _samples(rows, pixels.shape[0], scale)
    left, right, x_share = _samples(columns, pixels.shape[1], scale)
    x_share = x_share[:, None]
    wide = pixels[:, left] * (1 - x_share) + pixels[:, right] * x_share
    y_share = y_share[:, None, None]
    return np.asarray(wide[top] * (1 - y_share) + wide[bottom] * y_share, dtype=np.float32)


def _samples(
    count: int, side: int, scale: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """For each new pixel: the old one before it, the one after it, and how much the later one counts."""
    places = ((np.arange(count) + 0.5) * (1 / scale) - 0.5).astype(np.float32)  # OpenCV keeps them in float32, too
    places = np.clip(places, 0, side - 1)
    before = np.floor(places).astype(np.int64)
    return before, np.minimum(before + 1, side - 1), (places - before.astype(np.float32)).astype(np.float32)


def to_batch(values: npt.NDArray[np.float32]) -> Tensor:
    """`[H, W, 3]` → `[1, 3, H', W']`, channels last in memory; thin pictures get the mean colour beside them."""
    batch = torch.from_numpy(np.ascontiguousarray(values)).permute(2, 0, 1)[None]
    missing = [max(0, FEWEST_PIXELS - side) for side in batch.shape[2:]]
    return functional.pad(batch, [0, missing[1], 0, missing[0]]) if any(missing) else batch


def picture_scales(height: int, width: int, convention: Convention) -> tuple[float, float]:
    """Factors for y and x from boxes in the network's input to pixels of the picture."""
    if convention.resize == "opencv":
        scale = target_scale(height, width, convention)
        return 1 / scale, 1 / scale
    rows, columns = target_size(height, width, convention)
    return height / rows, width / columns
