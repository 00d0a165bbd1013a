"""Where the model looked, as a drawing: heat over regions, the strongest outlined.

The rule, the same in every picture we draw: the heat over region i has opacity `0.85 · w_i / max_j w_j` over the
regions that do not cover the whole picture. One that does (a grid's image-level region) says nothing of a place; its
weight is given as text. Where boxes of a detector overlap, the strongest of them shows.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from xlan.looking import Floats, covers_all, on_places, strongest

STRENGTH = 0.85
MOST_PIECES = 64  # of one region under others that overlap it

Box: TypeAlias = tuple[float, float, float, float]


def opacities(spatial: Floats, boxes: Floats) -> Floats:
    """`[N]` opacity of the heat over each region; 0 for regions that cover the whole picture.

    Args:
        spatial: `[N]` attention weights.
        boxes: `[N, 4]` boxes of the regions, fractions of the picture.
    """
    weights = on_places(spatial, boxes)
    top = float(weights.max(initial=0.0))
    return STRENGTH * weights / top if top > 0 else np.zeros_like(weights)


def weight_on_whole(spatial: Floats, boxes: Floats) -> float:
    """The weight that went to the picture as a whole."""
    return float(spatial[covers_all(boxes)].sum())


def place_in_words(box: Floats) -> str:
    """Where a box lies, for people who cannot see it: "top left", "centre", "bottom"."""
    x, y = (float(box[0]) + float(box[2])) / 2, (float(box[1]) + float(box[3])) / 2
    across = "left" if x < 0.38 else "right" if x > 0.62 else ""
    down = "top" if y < 0.38 else "bottom" if y > 0.62 else ""
    return " ".join(part for part in (down, across) if part) or "centre"


def heat_svg(spatial: Floats, boxes: Floats, outline: Box | None = None) -> str:
    """The heat as an SVG of unit size, to be laid over the picture and stretched with it.

    Every region that shows is one element with `data-region` (its number) and `data-weight`; an outline follows, of
    the box `outline`, or of the strongest region. Colours come from the classes `heat`, `edge` and `edge-in` of
    `layout.STYLE`.
    """
    shown = opacities(spatial, boxes)
    parts = [
        f'{_shape(pieces)} data-region="{i}" data-weight="{float(spatial[i]):.4f}" fill-opacity="{shown[i]:.4f}"/>'
        for i, pieces in visible(shown, boxes)
    ]
    top = strongest(spatial, boxes)
    if top is not None:
        frame = _rect(_box(boxes[top] if outline is None else np.array(outline)))
        parts.append(f'{frame} class="edge"/>{frame} class="edge-in"/>')
    return (
        '<svg class="heat" viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true">' + "".join(parts) + "</svg>"
    )


def visible(shown: Floats, boxes: Floats) -> list[tuple[int, list[Box]]]:
    """For every region with heat, in its order, the parts of its box that no region with more heat covers.

    Args:
        shown: `[N]` opacities.
        boxes: `[N, 4]`.
    """
    above: list[Box] = []
    found: dict[int, list[Box]] = {}
    for i in map(int, np.argsort(-shown, kind="stable")):
        if shown[i] <= 0:
            break
        pieces = [_box(boxes[i])]
        for other in above:
            cut = [piece for whole in pieces for piece in _without(whole, other)]
            if len(cut) > MOST_PIECES:  # many overlapping boxes: what shows under the others hardly matters
                break
            pieces = cut
        above.append(_box(boxes[i]))
        if pieces:
            found[i] = pieces
    return sorted(found.items())


def _box(box: Floats) -> Box:
    x0, y0, x1, y1 = (min(1.0, max(0.0, float(value))) for value in box)
    return x0, y0, max(x0, x1), max(y0, y1)


def _without(box: Box, other: Box) -> list[Box]:
    """What is left of a box when another is taken away: up to four boxes that do not overlap."""
    x0, y0, x1, y1 = box
    a0, b0, a1, b1 = max(x0, other[0]), max(y0, other[1]), min(x1, other[2]), min(y1, other[3])
    if a0 >= a1 or b0 >= b1:
        return [box]
    left = [(x0, y0, x1, b0), (x0, b1, x1, y1), (x0, b0, a0, b1), (a1, b0, x1, b1)]
    return [(p, q, r, s) for p, q, r, s in left if p < r and q < s]


def _shape(pieces: list[Box]) -> str:
    if len(pieces) == 1:
        return _rect(pieces[0])
    path = "".join(f"M{_n(x0)} {_n(y0)}H{_n(x1)}V{_n(y1)}H{_n(x0)}Z" for x0, y0, x1, y1 in pieces)
    return f'<path d="{path}"'


def _rect(box: Box) -> str:
    x0, y0, x1, y1 = box
    return f'<rect x="{_n(x0)}" y="{_n(y0)}" width="{_n(x1 - x0)}" height="{_n(y1 - y0)}"'


def _n(value: float) -> str:
    return f"{value:.5f}".rstrip("0").rstrip(".")
