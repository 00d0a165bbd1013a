"""What passes between encoder and decoder, and the checks of a model's input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xlan.errors import ModelError, ShapeError
from xlan.model.attention import blank_padding, check_regions


@dataclass(frozen=True)
class Encoded:
    """What an encoder knows of B images.

    Attributes:
        summary: `[B, D]` the image-level feature (Eq. 9 in X-LAN; two vectors side by side in LSTM-A).
        regions: `[B, N, D]` the region-level features.
        mask: `[B, N]` bool, True where a region exists; None when all do.
    """

    summary: Tensor
    regions: Tensor
    mask: Tensor | None

    def __len__(self) -> int:
        return int(self.regions.shape[0])


def check_features(features: Tensor, feature_dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Check a model's input, once for all layers behind.

    Returns:
        The features with zeros where the mask says that nothing exists, and the mask: None when everything does.
    """
    mask = check_regions("features", features, feature_dim, mask)
    return blank_padding(features, mask), mask


def check_boxes(boxes: Tensor | None, features: Tensor) -> Tensor:
    """Check the boxes of a model that needs them: `[B, N, 4]`, one for each of the features `[B, N, D]`."""
    if boxes is None:
        raise ModelError(
            "boxes: this model builds a graph from the boxes of the regions, got none; "
            "give boxes [images, regions, 4], or use a model without a graph"
        )
    if boxes.shape != (*features.shape[:2], 4):
        raise ShapeError(f"boxes: expected shape {[*features.shape[:2], 4]}, got {list(boxes.shape)}")
    return boxes


def check_captions(tokens: Tensor, lengths: Tensor, owner: Tensor | None, *, images: int, vocab_size: int) -> None:
    """Refuse captions that do not fit the images or the vocabulary."""
    if tokens.dim() != 2:
        raise ShapeError(f"tokens: expected shape [captions, words], got {list(tokens.shape)}")
    captions, words = tokens.shape
    if not (images and captions and words):
        raise ShapeError(f"tokens: expected at least one image and one word, got {images} images, {list(tokens.shape)}")
    if lengths.shape != (captions,):
        raise ShapeError(f"lengths: expected one per caption [{captions}], got {list(lengths.shape)}")
    if owner is None and captions % images:
        raise ShapeError(f"tokens: {captions} captions cannot be shared evenly by {images} images; give owner")
    if owner is not None and owner.shape != (captions,):
        raise ShapeError(f"owner: expected one image per caption [{captions}], got {list(owner.shape)}")
    if torch.compiler.is_compiling():
        return
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < 1 or longest > words:
        raise ShapeError(f"lengths: expected values from 1 to {words}, got {shortest} to {longest}")
    if owner is not None and not 0 <= int(owner.min()) <= int(owner.max()) < images:
        raise ShapeError(f"owner: expected images 0 to {images - 1}, got {int(owner.min())} to {int(owner.max())}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise ShapeError(f"tokens: expected ids 0 to {vocab_size - 1}, got {low} to {high}; is this its vocabulary?")
