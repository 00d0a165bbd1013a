"""Which place a word looked at: the strongest region, or a named box that holds its attention."""

from __future__ import annotations

import numpy as np
import pytest

from xlan.looking import where_most
from xlan.types import Look, Thing
from xlan.vision.regions import grid_boxes

WHOLE = np.array([[0, 0, 1, 1]], np.float32)
GRID = np.concatenate([WHOLE, grid_boxes(4, 4)])
LEFT_HALF, RIGHT_HALF = Thing("dog", (0.0, 0.0, 0.5, 1.0), 0.9), Thing("cat", (0.5, 0.0, 1.0, 1.0), 0.9)
EVERYTHING = Thing("field", (0.0, 0.0, 1.0, 0.99), 0.9)


def on_grid(*cells: tuple[int, float], whole: float = 0.0, rest: float = 0.0) -> np.ndarray:
    spatial = np.full(17, rest, np.float32)
    spatial[0] = whole
    for cell, weight in cells:
        spatial[1 + cell] = weight
    return spatial


def test_without_a_detector_it_is_the_strongest_region() -> None:
    look = where_most(on_grid((5, 0.4), (6, 0.1), whole=0.5), GRID)
    assert look == Look((0.25, 0.25, 0.5, 0.5), pytest.approx(0.4), 6, None)


def test_a_region_that_is_a_thing_has_its_name() -> None:
    boxes = np.array([[0, 0, 1, 1], LEFT_HALF.box, RIGHT_HALF.box], np.float32)
    look = where_most(np.array([0.5, 0.2, 0.3]), boxes, (LEFT_HALF, RIGHT_HALF), np.array([-1, 0, 1]))
    assert look == Look((0.5, 0.0, 1.0, 1.0), pytest.approx(0.3), 2, 1)


def test_beside_a_grid_it_is_the_box_that_holds_the_attention() -> None:
    look = where_most(on_grid((0, 0.3), (4, 0.3), (3, 0.1), whole=0.3), GRID, (RIGHT_HALF, LEFT_HALF))
    assert look == Look(LEFT_HALF.box, pytest.approx(0.6), None, 1)


def test_a_large_box_does_not_win_by_its_size() -> None:
    look = where_most(on_grid((0, 0.5), (4, 0.3), (3, 0.2)), GRID, (EVERYTHING, LEFT_HALF))
    assert look is not None
    assert look.thing == 1


def test_attention_that_is_spread_evenly_points_at_no_thing() -> None:
    look = where_most(on_grid((0, 0.07), rest=0.06), GRID, (LEFT_HALF, RIGHT_HALF))
    assert look is not None
    assert (look.region, look.thing) == (1, None)


def test_attention_on_the_picture_as_a_whole_is_no_place() -> None:
    assert where_most(on_grid(whole=1.0), GRID, (LEFT_HALF,)) is None


def test_a_strong_cell_among_regions_points_at_the_box_around_it() -> None:
    boxes = np.concatenate([np.array([LEFT_HALF.box], np.float32), GRID[1:]])
    spatial = np.concatenate([[0.1], on_grid((0, 0.5), (4, 0.4))[1:]])
    look = where_most(spatial, boxes, (LEFT_HALF,), np.array([0] + [-1] * 16))
    assert look is not None
    assert (look.region, look.thing) == (None, 0)
