"""Plans of epochs: everything once, equal shares, the same for the same numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.data.plan import BatchPlan, EpochPlanner
from xlan.errors import DataError


@st.composite
def planners(draw: st.DrawFn) -> EpochPlanner:
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=40))
    first = np.concatenate([[0], np.cumsum(counts)])
    lengths = np.array(draw(st.lists(st.integers(2, 17), min_size=int(first[-1]), max_size=int(first[-1]))))
    return EpochPlanner(
        first_caption=first,
        positions=lengths,
        batch_size=draw(st.integers(1, 9)),
        captions_per_image=draw(st.integers(1, 5)),
        seed=draw(st.integers(0, 3)),
        world_size=draw(st.integers(1, 4)),
        bucket=draw(st.booleans()),
    )


def epochs(planner: EpochPlanner, epoch: int = 0) -> list[list[BatchPlan]]:
    return [list(replace(planner, rank=rank).epoch(epoch)) for rank in range(planner.world_size)]


@settings(deadline=None, max_examples=80)
@given(planner=planners())
def test_every_image_is_there_and_ranks_make_equal_steps(planner: EpochPlanner) -> None:
    ranks = epochs(planner)
    images = len(planner.first_caption) - 1
    assert {len(batches) for batches in ranks} == {planner.batches}
    assert {len(batch.images) for batches in ranks for batch in batches} == {planner.batch_size}
    seen = Counter(int(i) for batches in ranks for batch in batches for i in batch.images)
    assert set(seen) == set(range(images))
    # Whole rounds for all, then the start of the epoch once more.
    assert max(seen.values()) - min(seen.values()) <= 1
    assert sum(seen.values()) - images < planner.batch_size * planner.world_size


@settings(deadline=None, max_examples=80)
@given(planner=planners())
def test_captions_belong_to_their_image_and_repeat_only_when_they_must(planner: EpochPlanner) -> None:
    k = planner.captions_per_image
    for batch in planner.epoch(0):
        assert batch.captions.shape == (len(batch.images), k)
        for image, captions in zip(batch.images, batch.captions, strict=True):
            first, last = planner.first_caption[image : image + 2]
            assert all(first <= caption < last for caption in captions)
            times = Counter(captions.tolist()).values()
            assert len(times) == min(k, last - first)
            assert max(times) - min(times) <= 1


@settings(deadline=None, max_examples=60)
@given(planner=planners())
def test_ranks_together_are_one_process_with_a_larger_batch(planner: EpochPlanner) -> None:
    alone = replace(planner, batch_size=planner.batch_size * planner.world_size, world_size=1)
    for whole, *parts in zip(alone.epoch(2), *epochs(planner, 2), strict=True):
        whole_rows = sorted((int(i), *c) for i, c in zip(whole.images, whole.captions.tolist(), strict=True))
        part_rows = [(int(i), *c) for part in parts for i, c in zip(part.images, part.captions.tolist(), strict=True)]
        assert sorted(part_rows) == whole_rows


@settings(deadline=None, max_examples=60)
@given(planner=planners(), data=st.data())
def test_starting_later_gives_the_rest_of_the_same_epoch(planner: EpochPlanner, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, planner.batches))
    whole = list(planner.epoch(1))
    rest = list(planner.epoch(1, start_batch=start))
    assert len(rest) == len(whole) - start
    for a, b in zip(whole[start:], rest, strict=True):
        assert a.images.tolist() == b.images.tolist()
        assert a.captions.tolist() == b.captions.tolist()


def big(**options: int | bool) -> EpochPlanner:
    first = np.arange(0, 5001, 5)
    lengths = np.random.default_rng(0).integers(5, 18, 5000)
    return EpochPlanner(first, lengths, batch_size=10, captions_per_image=2, **({"seed": 0} | options))  # type: ignore[arg-type]


def order(planner: EpochPlanner, epoch: int) -> list[int]:
    return [int(i) for batch in planner.epoch(epoch) for i in batch.images]


def test_order_depends_on_seed_and_epoch_alone() -> None:
    assert order(big(), 0) == order(big(), 0)
    assert order(big(), 0) != order(big(), 1)
    assert order(big(), 0) != order(big(seed=1), 0)


def test_buckets_pad_less() -> None:
    def padded(planner: EpochPlanner) -> int:
        return sum(int(planner.positions[batch.captions].max()) * batch.captions.size for batch in planner.epoch(0))

    assert padded(big(bucket=True)) < 0.93 * padded(big())


def test_buckets_are_not_visited_in_order_of_length() -> None:
    planner = big(bucket=True)
    longest = [int(planner.positions[batch.captions].max()) for batch in planner.epoch(0)]
    assert longest != sorted(longest)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size and captions_per_image must be at least 1, got 0 and 1"),
        ({"captions_per_image": 0}, "got 1 and 0"),
        ({"rank": 2, "world_size": 2}, "rank must be 0 to 1 for 2 processes, got 2"),
        ({"seed": -1}, "seed must not be negative"),
    ],
)
def test_impossible_numbers_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        EpochPlanner(
            np.array([0, 1]), np.array([3]), **({"batch_size": 1, "captions_per_image": 1, "seed": 0} | options)
        )


def test_starting_after_the_end_is_refused() -> None:
    with pytest.raises(DataError, match="start_batch must be 0 to 100, got 101"):
        list(big().epoch(0, start_batch=101))
