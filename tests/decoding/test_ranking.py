from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding.ranking import top_indices


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 4), st.integers(0, 10_000))
@settings(deadline=None, max_examples=100)
def test_equals_a_stable_sort_when_values_tie(size: int, k: int, levels: int, seed: int) -> None:
    scores = torch.randint(levels, (5, size), generator=torch.Generator().manual_seed(seed)).double()
    expected = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(top_indices(scores, k), expected)


def test_lower_index_wins_on_long_rows() -> None:
    scores = torch.zeros(2, 9488)
    scores[1, 5000] = 1.0
    assert top_indices(scores, 3).tolist() == [[0, 1, 2], [5000, 0, 1]]


@given(st.integers(200, 700), st.integers(1, 5), st.sampled_from([2, 40, 10**6]), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_equals_a_stable_sort_on_long_rows(size: int, k: int, levels: int, seed: int) -> None:
    scores = torch.randint(levels, (4, size), generator=torch.Generator().manual_seed(seed)).double()
    expected = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(top_indices(scores, k), expected)


def test_finds_the_best_at_the_very_end_of_a_row() -> None:
    scores = torch.zeros(1, 64 * 30 + 3)
    scores[0, -1] = 2.0
    scores[0, -2] = 1.0
    assert top_indices(scores, 2).tolist() == [[64 * 30 + 2, 64 * 30 + 1]]


def test_unavailable_elements_are_taken_last() -> None:
    scores = torch.tensor([[float("-inf"), 1.0, float("-inf"), 1.0, 0.0]])
    assert {1, 3, 4} <= set(top_indices(scores, 4)[0].tolist())
