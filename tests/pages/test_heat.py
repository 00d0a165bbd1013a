"""The heat that is drawn is the numbers, and nothing but."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import ShapeError
from xlan.looking import strongest
from xlan.pages.heat import heat_svg, opacities, place_in_words, visible, weight_on_whole

WHOLE = [0.0, 0.0, 1.0, 1.0]
QUARTERS = [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]
GRID = np.array([WHOLE, *QUARTERS], np.float32)
WEIGHTS = np.array([0.3, 0.1, 0.4, 0.2, 0.0], np.float32)


def drawn(svg: str) -> dict[int, tuple[float, float]]:
    """Region → weight and opacity, as a reader of the drawing finds them."""
    found = re.findall(r'data-region="(\d+)" data-weight="([\d.]+)" fill-opacity="([\d.]+)"', svg)
    return {int(region): (float(weight), float(opacity)) for region, weight, opacity in found}


def test_opacity_is_relative_to_the_strongest_place() -> None:
    np.testing.assert_allclose(opacities(WEIGHTS, GRID), [0, 0.2125, 0.85, 0.425, 0], rtol=1e-6)


def test_the_drawing_holds_the_numbers() -> None:
    assert drawn(heat_svg(WEIGHTS, GRID)) == {1: (0.1, 0.2125), 2: (0.4, 0.85), 3: (0.2, 0.425)}


def test_the_strongest_region_is_outlined_twice() -> None:
    edges = re.findall(
        r'<rect x="0.5" y="0" width="0.5" height="0.5" class="(edge|edge-in)"/>', heat_svg(WEIGHTS, GRID)
    )
    assert edges == ["edge", "edge-in"]


def test_the_picture_as_a_whole_is_told_not_drawn() -> None:
    assert weight_on_whole(WEIGHTS, GRID) == pytest.approx(0.3)
    assert strongest(np.array([0.9, 0.1, 0, 0, 0], np.float32), GRID) == 1


@pytest.mark.parametrize(
    ("weights", "boxes"),
    [([1.0], [WHOLE]), ([1.0, 0.0], [WHOLE, QUARTERS[0]]), ([float("nan")], [QUARTERS[0]]), ([], [])],
    ids=["one region", "no weight on places", "no number", "no region"],
)
def test_nothing_to_draw(weights: list[float], boxes: list[list[float]]) -> None:
    spatial, places = np.array(weights, np.float32), np.array(boxes, np.float32).reshape(-1, 4)
    assert strongest(spatial, places) is None
    assert opacities(spatial, places).tolist() == [0.0] * len(weights)
    assert drawn(heat_svg(spatial, places)) == {}


def test_one_region_that_is_a_place() -> None:
    assert drawn(heat_svg(np.array([1.0]), np.array([QUARTERS[3]]))) == {0: (1.0, 0.85)}


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match=r"expected weights \[N\] and boxes \[N, 4\], got \[2\] and \[5, 4\]"):
        heat_svg(np.array([0.5, 0.5]), GRID)


@pytest.mark.parametrize(
    ("box", "place"),
    [([0, 0, 0.2, 0.2], "top left"), ([0.4, 0.4, 0.6, 0.6], "centre"), ([0.4, 0.8, 0.6, 1], "bottom"),
     ([0.7, 0.4, 1, 0.6], "right")],
)  # fmt: skip
def test_places_have_names(box: list[float], place: str) -> None:
    assert place_in_words(np.array(box)) == place


coordinate = st.integers(0, 8).map(lambda value: value / 8)
box = st.tuples(coordinate, coordinate, coordinate, coordinate).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(box, st.floats(0.01, 1)), min_size=1, max_size=8))
def test_where_boxes_overlap_the_strongest_shows(regions: list[tuple[tuple[float, ...], float]]) -> None:
    boxes, shown = np.array([b for b, _ in regions]), np.array([weight for _, weight in regions])
    pieces = [(i, piece) for i, parts in visible(shown, boxes) for piece in parts]
    for x, y in [(x / 8 + 1 / 16, y / 8 + 1 / 16) for x in range(8) for y in range(8)]:
        here = [shown[i] for i, (x0, y0, x1, y1) in pieces if x0 < x < x1 and y0 < y < y1]
        expected = [w for (x0, y0, x1, y1), w in regions if x0 < x < x1 and y0 < y < y1]
        assert here == ([max(expected)] if expected else [])


def test_a_heap_of_boxes_stays_a_small_drawing() -> None:
    generator = np.random.default_rng(0)
    corners = np.sort(generator.random((100, 2, 2)), axis=1)
    svg = heat_svg(generator.random(100), corners.reshape(100, 4))
    assert len(svg) < 120_000
