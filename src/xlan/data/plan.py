"""Which images and captions go into which batch: a function of (seed, epoch), shared out over ranks.

The plan of an epoch is made whole, from numbers alone, before a feature is read. Going on in the middle of an
epoch is therefore a matter of dropping the first batches of the plan, and every rank, knowing the same plan,
takes its share of each batch. Workers get finished pieces of the plan and have no state and no random numbers
of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlan.errors import DataError

BUCKET_BATCHES = 64  # batches among which images are sorted by length; more sorts better and shuffles less

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)  # comparing arrays gives an array, not a bool
class BatchPlan:
    """One batch of one rank: `images` `[B]` are indices of images, `captions` `[B, k]` indices of
    captions."""

    images: Ints
    captions: Ints


@dataclass(frozen=True, eq=False)  # comparing arrays gives an array, not a bool
class EpochPlanner:
    """Plans epochs.

    Args:
        first_caption: `[images + 1]` captions of image i are numbers first_caption[i] to first_caption[i +
            1].
        positions: `[captions]` length of each caption in the batch; used by `bucket`.
        batch_size: images of one rank's batch.
        captions_per_image: captions drawn for each image, without repetition as long as it has enough.
        seed: with the epoch it determines everything.
        rank: which share of each batch.
        world_size: number of shares.
        bucket: put images whose captions are of similar length into one batch, to pad less.

    Every image is in each epoch once. To let all ranks make equally many full batches, the last one is filled
    with images from the start of the epoch.
    """

    first_caption: Ints
    positions: Ints
    batch_size: int
    captions_per_image: int
    seed: int
    rank: int = 0
    world_size: int = 1
    bucket: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.captions_per_image < 1:
            raise DataError(
                "batch_size and captions_per_image must be at least 1, "
                f"got {self.batch_size} and {self.captions_per_image}"
            )
        if not 0 <= self.rank < self.world_size:
            raise DataError(f"rank must be 0 to {self.world_size - 1} for {self.world_size} processes, got {self.rank}")
        if self.seed < 0:
            raise DataError(f"seed must not be negative, got {self.seed}")

    @property
    def batches(self) -> int:
        """Batches of an epoch, the same on every rank."""
        images = len(self.first_caption) - 1
        return -(-images // (self.batch_size * self.world_size))

    def epoch(self, epoch: int, *, start_batch: int = 0) -> Iterator[BatchPlan]:
        """This rank's batches of an epoch, from `start_batch` on."""
        if not 0 <= start_batch <= self.batches:
            raise DataError(f"start_batch must be 0 to {self.batches}, got {start_batch}")
        random = np.random.default_rng([self.seed, epoch])
        picks = self._pick_captions(random)
        order = self._order(random, picks)
        for row in order[start_batch:]:
            images = row[self.rank :: self.world_size]
            yield BatchPlan(images, picks[images])

    def _pick_captions(self, random: np.random.Generator) -> Ints:
        """`[images, k]` captions of each image in random order, starting over where an image has too few."""
        counts = np.diff(self.first_caption)
        owner = np.repeat(np.arange(len(counts)), counts)
        shuffled = np.lexsort((random.random(len(owner)), owner))  # stays within each image's range
        places = np.arange(self.captions_per_image)[None, :] % counts[:, None]
        picks: Ints = shuffled[self.first_caption[:-1, None] + places]
        return picks

    def _order(self, random: np.random.Generator, picks: Ints) -> Ints:
        """`[batches, batch_size * world_size]` images of every global batch."""
        size = self.batch_size * self.world_size
        order = np.resize(random.permutation(len(picks)), self.batches * size)
        if self.bucket:
            longest = self.positions[picks].max(axis=1)
            for start in range(0, len(order), BUCKET_BATCHES * size):
                window = order[start : start + BUCKET_BATCHES * size]
                order[start : start + len(window)] = window[np.argsort(longest[window], kind="stable")]
            return random.permutation(order.reshape(-1, size), axis=0)
        return order.reshape(-1, size)
