"""Rows and images: many sentences about one image share its keys and values without copying them.

A row is one sentence (a caption while training, a beam while decoding). Heavy layers work on rows `[R, D]`; attention
works on images `[B, K, D]`, K queries each, so that the cache of an image is read where it lies.

Where an index may repeat, rows are copied by `index_select`. `tensor[index]` gives the same values, but its backward
pass adds up the gradients of equal indices from several threads in any order, so two runs would not be bit for bit
the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xlan.types import StepTrace

# Images leave the shared tensors when at least this share of them has no row left: each time costs one copy.
SHRINK_AT = 0.25


@dataclass(frozen=True)
class RowGroups:
    """Which image each row belongs to, and its place among the rows of that image.

    Attributes:
        owner: `[R]` image of each row.
        images: number of images B.
        width: K, the largest number of rows of one image.
        slots: `[R]` place of each row in the flattened `[B·K]` grid; None when rows fill the grid in order.
    """

    owner: Tensor
    images: int
    width: int
    slots: Tensor | None

    @classmethod
    def regular(cls, images: int, per_image: int, device: torch.device) -> RowGroups:
        """`per_image` consecutive rows for each image in turn."""
        owner = torch.arange(images, device=device).repeat_interleave(per_image)
        return cls(owner, images, per_image, None)

    @classmethod
    def of(cls, owner: Tensor, images: int) -> RowGroups:
        """Groups of any sizes, rows in any order."""
        order = torch.argsort(owner, stable=True)
        counts = torch.bincount(owner, minlength=images)
        starts = counts.cumsum(0) - counts
        rank = torch.empty_like(owner)
        rank[order] = torch.arange(owner.numel(), device=owner.device) - starts[owner[order]]
        width = int(counts.max()) if owner.numel() else 0
        slots = owner * width + rank
        in_order = owner.numel() == images * width and bool((slots[1:] > slots[:-1]).all())
        return cls(owner, images, width, None if in_order else slots)

    def select(self, index: Tensor) -> tuple[RowGroups, Tensor | None]:
        """Groups of rows `index`, and the images to keep when enough of them have no row left (else None)."""
        owner = self.owner[index]
        kept = torch.unique(owner)
        if kept.numel() > (1 - SHRINK_AT) * self.images:
            return RowGroups.of(owner, self.images), None
        place = torch.empty(self.images, dtype=torch.int64, device=owner.device)
        place[kept] = torch.arange(kept.numel(), device=owner.device)
        return RowGroups.of(place[owner], kept.numel()), kept

    def to_images(self, rows: Tensor) -> Tensor:
        """`[R, …]` → `[B, K, …]`; places without a row hold zeros."""
        if self.slots is None:
            return rows.view(self.images, self.width, *rows.shape[1:])
        grid = rows.new_zeros(self.images * self.width, *rows.shape[1:])
        return grid.index_copy(0, self.slots, rows).view(self.images, self.width, *rows.shape[1:])

    def to_rows(self, grid: Tensor) -> Tensor:
        """`[B, K, …]` → `[R, …]`."""
        flat = grid.flatten(0, 1)
        return flat if self.slots is None else flat[self.slots]


def row_groups(owner: Tensor | None, rows: int, images: int, device: torch.device) -> RowGroups:
    """Groups of `owner` (`[R]`), or of equally many consecutive rows per image when it is None."""
    return RowGroups.regular(images, rows // images, device) if owner is None else RowGroups.of(owner, images)


@dataclass(frozen=True, kw_only=True)
class RowState:
    """What the states of all decoders have.

    Attributes:
        groups: which row belongs to which image.
        wants_trace: every step returns its attention.
        trace: attention of the step that made this state, where it is wanted and the model has attention.
    """

    groups: RowGroups
    wants_trace: bool
    trace: StepTrace | None = None

    @property
    def rows(self) -> int:
        """Number R of rows."""
        return self.groups.owner.numel()

    @property
    def device(self) -> torch.device:
        """Where tokens and indices have to be."""
        return self.groups.owner.device
