"""Loaders: the same batches with any number of workers, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xlan.data.collate import CaptionBatch
from xlan.data.dataset import CaptionDataset
from xlan.data.loader import TrainingLoader, evaluation_loader, reference_loader, training_loader
from xlan.errors import DataError

Make = Callable[..., CaptionDataset]
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def assert_same(first: list[CaptionBatch], second: list[CaptionBatch]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.image_ids == b.image_ids
        for name in ("features", "mask", "inputs", "targets", "lengths", "owner"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_an_epoch(make: Make) -> None:
    loader = training_loader(make(), batch_size=5, captions_per_image=3, seed=1)
    batches = list(loader)
    assert len(batches) == len(loader) == 7
    assert {image_id for batch in batches for image_id in batch.image_ids} == {i.id for i in make().images}
    assert {len(batch.owner) for batch in batches} == {15}


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_give_the_same_batches_in_the_same_order(make: Make, method: Any) -> None:
    options: dict[str, Any] = {"batch_size": 5, "captions_per_image": 2, "seed": 3, "bucket_by_length": True}
    alone = training_loader(make(), **options)
    helped = training_loader(make(), **options, num_workers=2, start_method=method)
    for epoch, start in ((0, 0), (1, 3)):
        alone.set_epoch(epoch, start)
        helped.set_epoch(epoch, start)
        assert_same(list(alone), list(helped))


def test_going_on_in_the_middle_reads_nothing_before(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = training_loader(make(), batch_size=4, seed=2)
    loader.set_epoch(3)
    whole = list(loader)
    read: list[int] = []
    regions = CaptionDataset.regions
    monkeypatch.setattr(CaptionDataset, "regions", lambda self, i: read.append(i) or regions(self, i))
    loader.set_epoch(3, start_batch=6)
    assert_same(list(loader), whole[6:])
    assert len(read) == 4 * (len(whole) - 6)


def test_reading_draws_no_random_numbers_from_training(make: Make) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    list(training_loader(make(), batch_size=4, num_workers=1, start_method="fork"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_abandoning_an_epoch_does_not_disturb_the_next(make: Make) -> None:
    loader = training_loader(make(), batch_size=4, num_workers=1, start_method="fork")
    next(iter(loader))
    loader.set_epoch(1)
    fresh: TrainingLoader = training_loader(make(), batch_size=4)
    fresh.set_epoch(1)
    assert_same(list(loader), list(fresh))


def test_evaluation_gives_each_image_once_in_order(make: Make) -> None:
    ids = [image_id for batch in evaluation_loader(make(), batch_size=5) for image_id in batch.image_ids]
    assert ids == [image.id for image in make().images]


@pytest.mark.parametrize("world_size", [2, 3, 50])
def test_evaluation_shares_are_exact(make: Make, world_size: int) -> None:
    shares = [
        [
            i
            for batch in evaluation_loader(make(), batch_size=4, rank=rank, world_size=world_size)
            for i in batch.image_ids
        ]
        for rank in range(world_size)
    ]
    assert [i for share in shares for i in share] == [image.id for image in make().images]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_impossible_positions_are_refused(make: Make) -> None:
    loader = training_loader(make(), batch_size=4)
    with pytest.raises(DataError, match="start_batch from 0 to 8, got 0 and 9"):
        loader.set_epoch(0, 9)
    with pytest.raises(DataError, match="got -1 and 0"):
        loader.set_epoch(-1)
    with pytest.raises(DataError, match="num_workers must not be negative"):
        training_loader(make(), batch_size=4, num_workers=-1)
    with pytest.raises(DataError, match="batch_size ≥ 1 and rank below 1, got 0 and 0"):
        evaluation_loader(make(), batch_size=0)


@pytest.mark.parametrize("world_size", [1, 3])
def test_references_are_the_first_captions_of_every_image_once(make: Make, world_size: int) -> None:
    dataset = make()
    seen: list[tuple[str, int]] = []
    for rank in range(world_size):
        loader = reference_loader(dataset, batch_size=4, captions_per_image=3, rank=rank, world_size=world_size)
        for batch in loader:
            seen += [(batch.image_ids[owner], length) for owner, length in zip(batch.owner, batch.lengths, strict=True)]
    expected = []
    for image in dataset.images:
        lengths = [min(len(words), dataset.max_words) + 1 for words in image.words]
        expected += [(image.id, lengths[place % len(lengths)]) for place in range(3)]
    assert [(image, int(length)) for image, length in seen] == expected
