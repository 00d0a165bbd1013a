"""Images and captions → tensors of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from xlan.data.dataset import CaptionDataset
from xlan.data.plan import BatchPlan
from xlan.vision.padding import pad_boxes, pad_regions

BatchT = TypeVar("BatchT", bound="ImageBatch")


@dataclass(frozen=True, eq=False)  # comparing arrays gives an array, not a bool
class ImageBatch:
    """Features of B images, padded to N regions.

    Attributes:
        features: `[B, N, D]` float32, zero in padding.
        mask: `[B, N]` bool, true for regions, false for padding; every image has at least one region.
        boxes: `[B, N, 4]` float32 in units of each image's diagonal, zero in padding; for models that want them.
        image_ids: B ids, as in the caption set.
    """

    features: Tensor
    mask: Tensor
    boxes: Tensor
    image_ids: list[str]

    def to(self: BatchT, device: torch.device | str, *, non_blocking: bool = False) -> BatchT:
        """The batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: BatchT) -> BatchT:
        """The batch in pinned memory; a `DataLoader` calls this by itself when asked to pin."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self: BatchT, change: Callable[[Tensor], Tensor]) -> BatchT:
        names = [field.name for field in fields(self) if field.name != "image_ids"]
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)  # comparing arrays gives an array, not a bool
class CaptionBatch(ImageBatch):
    """B images with C captions between them (k for each image, in the order of the images), padded to T
    positions.

    Attributes:
        inputs: `[C, T]` int64: `bos`, then the words; `pad` behind.
        targets: `[C, T]` int64: the next word at each position, `eos` after the last (a cut caption has its
            next word there instead); `pad` behind.
        lengths: `[C]` int64: positions that count. `pad` may be the same id as `eos`, so only this tells them
            apart.
        owner: `[C]` int64: row of the image a caption belongs to.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor
    owner: Tensor


def collate_captions(dataset: CaptionDataset, captions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Pad captions (numbers within the dataset): inputs `[C, T]`, targets `[C, T]` and lengths `[C]`, all
    int64."""
    special = dataset.vocab.special
    lengths = dataset.positions[captions]
    inputs = np.full((len(captions), int(lengths.max())), special.pad, dtype=np.int64)
    targets = inputs.copy()
    for row, (caption, length) in enumerate(zip(captions, lengths.tolist(), strict=True)):
        words = dataset.tokens(caption)
        inputs[row, 0] = special.bos
        inputs[row, 1:length] = words[: length - 1]
        targets[row, : min(length, len(words))] = words[:length]
        if len(words) < length:
            targets[row, length - 1] = special.eos
    return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(lengths)


def caption_batch(dataset: CaptionDataset, plan: BatchPlan) -> CaptionBatch:
    """Read and pad what a plan asks for."""
    images = plan.images.tolist()
    regions = [dataset.regions(i) for i in images]
    features, mask = pad_regions(regions, dataset.store.feature_dim)
    inputs, targets, lengths = collate_captions(dataset, plan.captions.reshape(-1).tolist())
    owner = torch.arange(len(images)).repeat_interleave(plan.captions.shape[1])
    ids = [dataset.images[i].id for i in images]
    return CaptionBatch(features, mask, pad_boxes(regions), ids, inputs, targets, lengths, owner)


def image_batch(dataset: CaptionDataset, images: Sequence[int]) -> ImageBatch:
    """Read and pad the features of some images."""
    regions = [dataset.regions(i) for i in images]
    features, mask = pad_regions(regions, dataset.store.feature_dim)
    return ImageBatch(features, mask, pad_boxes(regions), [dataset.images[i].id for i in images])
