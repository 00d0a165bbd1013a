"""Batches for training and for evaluation, read by worker processes if wanted.

The loaders share the data out over ranks by themselves; do not let another library shard them a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from xlan.data.collate import BatchT, CaptionBatch, ImageBatch, caption_batch, image_batch
from xlan.data.dataset import CaptionDataset
from xlan.data.plan import BatchPlan, EpochPlanner, Ints
from xlan.data.workers import obey_parent_only
from xlan.errors import DataError

StartMethod = Literal["spawn", "fork", "forkserver"]
PlanT = TypeVar("PlanT")


class _TrainingBatches(Dataset[CaptionBatch]):
    def __init__(self, dataset: CaptionDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, plan: BatchPlan) -> CaptionBatch:
        return caption_batch(self._dataset, plan)


class _EvaluationBatches(Dataset[ImageBatch]):
    def __init__(self, dataset: CaptionDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, images: list[int]) -> ImageBatch:
        return image_batch(self._dataset, images)


class _Plans(Generic[PlanT]):
    """What a `DataLoader` iterates over: pieces of a plan, which workers turn into batches."""

    def __init__(self, plans: list[PlanT]) -> None:
        self.plans = plans

    def __iter__(self) -> Iterator[PlanT]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)


class TrainingLoader:
    """Iterate to get the batches of the epoch that `set_epoch` chose (epoch 0 at first).

    `len` is the number of batches of a whole epoch on this rank (the same on every rank), wherever iteration
    starts.
    """

    def __init__(self, planner: EpochPlanner, source: DataLoader[CaptionBatch], plans: _Plans[BatchPlan]) -> None:
        self._planner, self._source, self._plans = planner, source, plans
        self._epoch, self._start = 0, 0

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Choose the epoch that the next iteration gives, and the batch it starts at; nothing before that is
        read."""
        if epoch < 0 or not 0 <= start_batch <= len(self):
            raise DataError(f"expected epoch ≥ 0 and start_batch from 0 to {len(self)}, got {epoch} and {start_batch}")
        self._epoch, self._start = epoch, start_batch

    def __len__(self) -> int:
        return self._planner.batches

    def __iter__(self) -> Iterator[CaptionBatch]:
        self._plans.plans = list(self._planner.epoch(self._epoch, start_batch=self._start))
        return iter(self._source)


def training_loader(
    dataset: CaptionDataset,
    *,
    batch_size: int,
    captions_per_image: int = 5,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    bucket_by_length: bool = False,
    pin_memory: bool = False,
    start_method: StartMethod | None = None,
) -> TrainingLoader:
    """Shuffled batches of images with captions, the same for the same (seed, epoch, rank).

    Args:
        dataset: what to read.
        batch_size: images of this rank's batch.
        captions_per_image: captions drawn for each image; an image with fewer repeats them.
        seed: with the epoch it determines order and captions; give every rank the same.
        rank: this process.
        world_size: number of processes; together their batches are those of one process with a larger batch.
        num_workers: processes that read ahead; 0 reads in this one.
        bucket_by_length: put images with captions of similar length together, to pad less.
        pin_memory: as torch's `DataLoader` does it; for training on a GPU.
        start_method: how workers start; None for the system's own way.
    """
    planner = EpochPlanner(
        first_caption=dataset.first_caption,
        positions=dataset.positions,
        batch_size=batch_size,
        captions_per_image=captions_per_image,
        seed=seed,
        rank=rank,
        world_size=world_size,
        bucket=bucket_by_length,
    )
    plans: _Plans[BatchPlan] = _Plans([])
    source = _source(_TrainingBatches(dataset), plans, num_workers, pin_memory, start_method)
    return TrainingLoader(planner, source, plans)


def evaluation_loader(
    dataset: CaptionDataset,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    pin_memory: bool = False,
    start_method: StartMethod | None = None,
) -> DataLoader[ImageBatch]:
    """Batches of images alone, in order. Each image is on exactly one rank; ranks may differ by one batch."""
    batches = [images.tolist() for images in _in_order(len(dataset), batch_size, rank, world_size)]
    return _source(_EvaluationBatches(dataset), _Plans(batches), num_workers, pin_memory, start_method)


def reference_loader(
    dataset: CaptionDataset,
    *,
    batch_size: int,
    captions_per_image: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
) -> DataLoader[CaptionBatch]:
    """Batches as `evaluation_loader` makes them, with the first captions of each image; one with fewer repeats them."""
    first = dataset.first_caption
    places = np.arange(captions_per_image)[None, :] % np.diff(first)[:, None]
    captions = first[:-1, None] + places
    plans = [BatchPlan(images, captions[images]) for images in _in_order(len(dataset), batch_size, rank, world_size)]
    return _source(_TrainingBatches(dataset), _Plans(plans), num_workers, False, None)


def _in_order(images: int, batch_size: int, rank: int, world_size: int) -> list[Ints]:
    if batch_size < 1 or not 0 <= rank < world_size:
        raise DataError(f"expected batch_size ≥ 1 and rank below {world_size}, got {batch_size} and {rank}")
    share = np.array_split(np.arange(images), world_size)[rank]
    return [share[start : start + batch_size] for start in range(0, len(share), batch_size)]


def _source(
    dataset: Dataset[BatchT], plans: _Plans[PlanT], num_workers: int, pin_memory: bool, start_method: StartMethod | None
) -> DataLoader[BatchT]:
    if num_workers < 0:
        raise DataError(f"num_workers must not be negative, got {num_workers}")
    return DataLoader(
        dataset,
        sampler=plans,
        batch_size=None,
        num_workers=num_workers,
        pin_memory=pin_memory,
        persistent_workers=num_workers > 0,
        worker_init_fn=_start_worker,
        multiprocessing_context=start_method if num_workers else None,
        # A loader draws a seed for its workers; from a generator of its own, or training would not be
        # repeatable.
        generator=torch.Generator(),
    )


def _start_worker(worker: int) -> None:  # noqa: ARG001
    obey_parent_only()
