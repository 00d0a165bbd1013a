"""The reliability diagram: stated confidence against what came true, for captions and for words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xlan.pages.layout import page, text

SIDE, EDGE = 320, 44


class Bins(Protocol):
    """Mean confidence and mean outcome in bins of equal count: `xlan.confidence.calibration.Reliability`."""

    @property
    def said(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def true(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def count(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def error(self) -> float: ...  # noqa: D102


class MeasuredLike(Protocol):
    """As `xlan.confidence.measure.Measured` has it."""

    @property
    def captions(self) -> Bins: ...  # noqa: D102
    @property
    def words(self) -> Bins: ...  # noqa: D102
    @property
    def rank(self) -> float: ...  # noqa: D102


def reliability_page(model: str, split: str, found: MeasuredLike) -> str:
    """Both diagrams and the numbers as one HTML document."""
    count = sum(found.captions.count)
    figures = reliability_figure("Captions", found.captions) + reliability_figure("Content words", found.words)
    body = (
        f"<header><h1>How far {text(model)} can be believed</h1>"
        f'<p class="soft">{count:,} captions of the {text(split)} split. Of the content words of captions said with '
        "confidence 0.8, people should use 80 % for the same picture: points on the dashed line. Rank correlation of "
        f"confidence with CIDEr: {found.rank:.2f}.</p></header>"
        f'<div class="columns">{figures}</div>'
    )
    return page(f"confidence of {model}", body)


def reliability_figure(title: str, bins: Bins) -> str:
    """One diagram as an SVG figure."""

    def place(x: float, y: float) -> tuple[float, float]:
        return EDGE + x * (SIDE - EDGE - 12), SIDE - EDGE - y * (SIDE - EDGE - 12)

    ticks = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(tick, tick)
        ticks.append(f'<line class="grid" x1="{EDGE}" x2="{SIDE - 12}" y1="{y:.1f}" y2="{y:.1f}"/>')
        ticks.append(f'<text class="tick" x="{EDGE - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        ticks.append(f'<text class="tick" x="{x:.1f}" y="{SIDE - EDGE + 16}" text-anchor="middle">{tick:g}</text>')
    (x0, y0), (x1, y1) = place(0, 0), place(1, 1)
    points = [place(said, true) for said, true in zip(bins.said, bins.true, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>said {said:.2f}, true {true:.2f}, {count:,} '
        "cases</title></circle>"
        for (x, y), said, true, count in zip(points, bins.said, bins.true, bins.count, strict=True)
    )
    told = ", ".join(f"{said:.2f}: {true:.2f}" for said, true in zip(bins.said, bins.true, strict=True))
    middle = (EDGE + SIDE - 12) / 2
    return (
        f'<figure class="chart"><figcaption>{text(title)} <span class="soft">calibration error {bins.error:.3f}</span>'
        f'</figcaption><svg viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="{text(title)}: said and true, {told}">'
        f'{"".join(ticks)}<line class="zero" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'
        f'<polyline class="curve" points="{path}"/>{dots}'
        f'<text class="tick" x="{middle:.0f}" y="{SIDE - 8}" text-anchor="middle">confidence</text>'
        f'<text class="tick" transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">true</text>'
        "</svg></figure>"
    )
