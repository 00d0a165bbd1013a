"""Rows and images."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.model.rows import RowGroups

owners = st.integers(1, 6).flatmap(
    lambda images: st.tuples(st.just(images), st.lists(st.integers(0, images - 1), min_size=1, max_size=12))
)


@given(owners)
@settings(max_examples=100, deadline=None)
def test_there_and_back_again(case):
    images, owner = case
    groups = RowGroups.of(torch.tensor(owner), images)
    rows = torch.arange(1, len(owner) + 1).unsqueeze(1).float()
    grid = groups.to_images(rows)
    assert grid.shape == (images, max(owner.count(i) for i in range(images)), 1)
    assert torch.equal(groups.to_rows(grid), rows)
    for image in range(images):
        here = [value for value in grid[image].flatten().tolist() if value]
        assert here == [row + 1 for row, image_of_row in enumerate(owner) if image_of_row == image]


@given(owners, st.data())
@settings(max_examples=100, deadline=None)
def test_selected_rows_keep_their_images(case, data):
    images, owner = case
    index = data.draw(st.lists(st.integers(0, len(owner) - 1), min_size=1, max_size=8))
    groups, kept = RowGroups.of(torch.tensor(owner), images).select(torch.tensor(index))
    names = list(range(images)) if kept is None else kept.tolist()
    assert groups.images == len(names)
    assert [names[i] for i in groups.owner.tolist()] == [owner[i] for i in index]


def test_equal_groups_in_order_need_no_copy():
    groups = RowGroups.of(torch.tensor([0, 0, 1, 1]), 2)
    rows = torch.zeros(4, 3)
    assert groups.to_images(rows).data_ptr() == rows.data_ptr()
