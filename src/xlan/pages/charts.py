"""Curves as inline SVG: no script, no fonts, no outside requests; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TypeAlias

# Cards are 300 to 500 pixels wide: at this width, text of 13 units is readable in all of them.
WIDTH, HEIGHT = 340, 200
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 14, 40
MAX_POINTS = 300
COLOURS = 6  # .line0 to .line5 of the style sheet

Place: TypeAlias = Callable[[float, float], tuple[float, float]]


def line_chart(
    title: str, points: Sequence[tuple[float, float]], *, x_name: str, marked: tuple[float, float] | None = None
) -> str:
    """One curve as an SVG figure.

    Args:
        title: heading, and the beginning of the text for people who cannot see it.
        points: (x, y) in the order of x; many points are averaged down to a few hundred.
        x_name: what x counts ("step").
        marked: a point to mark, such as the best epoch.
    """
    drawn = thin_out([(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)])
    if not drawn:
        return ""
    ys = [y for _, y in drawn]
    axes, place = _frame(drawn, x_name)
    parts = [axes, _curve(drawn, place)]
    if len(drawn) <= 60:
        for x, y in drawn:
            a, b = place(x, y)
            label = f"{x_name} {number(x)}: {number(y)}"
            parts.append(
                f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="2.5"><title>{escape(label)}</title></circle>'
            )
    if marked is not None:
        a, b = place(*marked)
        parts.append(f'<circle class="mark" cx="{a:.1f}" cy="{b:.1f}" r="5"><title>best</title></circle>')
    story = (
        f"{title}: from {number(ys[0])} to {number(ys[-1])} over {len(points)} records, "
        f"lowest {number(min(ys))}, highest {number(max(ys))}"
    )
    return (
        f'<figure class="chart"><figcaption>{escape(title)} <span class="soft">{number(ys[-1])}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(story)}">{"".join(parts)}</svg>'
        "</figure>"
    )


def many_lines(title: str, curves: Mapping[str, Sequence[tuple[float, float]]], *, x_name: str) -> str:
    """Several curves in one SVG figure, told apart by colour and dashes, with their names below."""
    finite = {
        name: thin_out([(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)])
        for name, points in curves.items()
    }
    drawn = {name: points for name, points in finite.items() if points}
    if not drawn:
        return ""
    axes, place = _frame([point for points in drawn.values() for point in points], x_name)
    lines, names, told = [axes], [], []
    for i, (name, points) in enumerate(drawn.items()):
        style = f"curve line{i % COLOURS}" + (f" dash{i // COLOURS % 3}" if i >= COLOURS else "")
        lines.append(_curve(points, place, style))
        sample = f'<svg viewBox="0 0 24 8" aria-hidden="true"><path class="{style}" d="M0 4H24"/></svg>'
        names.append(f"<li>{sample}{escape(name)} <span>{number(points[-1][1])}</span></li>")
        told.append(f"{name} {number(points[-1][1])}")
    story = f"{title}, at the end: {', '.join(told)}"
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(story)}">{"".join(lines)}</svg>'
        f'<ul class="legend">{"".join(names)}</ul></figure>'
    )


def _frame(points: Sequence[tuple[float, float]], x_name: str) -> tuple[str, Place]:
    """Axes that hold all points, and where a point lies on them."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    # Steps and epochs are counted: no ticks between whole numbers.
    x_ticks = [tick for tick in nice_ticks(min(xs), max(xs), 4) if tick == int(tick)]
    y_ticks = nice_ticks(min(ys), max(ys), 4)
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1e-12)
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = (y - y_low) / (y_high - y_low) if y_high > y_low else 0.5
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    inside = [tick for tick in x_ticks if x_low <= tick <= x_high]
    return _grid(y_ticks, place, x_low) + _x_axis(inside, place, y_low, x_name), place


def _curve(points: Sequence[tuple[float, float]], place: Place, style: str = "curve") -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in points))
    return f'<polyline class="{style}" points="{path}"/>'


def _grid(ticks: Sequence[float], place: Place, x_low: float) -> str:
    lines = []
    for tick in ticks:
        _, y = place(x_low, tick)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4.5:.1f}" text-anchor="end">{number(tick)}</text>')
    return "".join(lines)


def _x_axis(ticks: Sequence[float], place: Place, y_low: float, name: str) -> str:
    base = HEIGHT - BOTTOM
    texts = [
        f'<text class="tick" x="{place(tick, y_low)[0]:.1f}" y="{base + 16}" text-anchor="middle">{number(tick)}</text>'
        for tick in ticks
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    texts.append(f'<text class="tick" x="{middle:.0f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(name)}</text>')
    return "".join(texts)


def thin_out(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MAX_POINTS` points: means of equally many neighbours."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers that span `low` to `high`, roughly `about` of them."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A number as people write it: few digits, no needless zeros."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:.4g}"
