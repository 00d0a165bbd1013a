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
ROW = 22  # height of a row of dots

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
            parts.append(_dot(*place(x, y), f"{x_name} {number(x)}: {number(y)}", radius=2.5))
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


def dots_by_row(title: str, rows: Mapping[str, Sequence[float]], *, x_name: str) -> str:
    """Values of each row as dots, with a stroke at their mean: how far rows differ beside how far values do."""
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in rows.items()}
    drawn = {name: values for name, values in finite.items() if values}
    if not drawn:
        return ""
    left = 20 + 7 * min(16, max(map(len, drawn)))  # letters are about 7 wide
    ticks = nice_ticks(*_ends([value for values in drawn.values() for value in values]), 4)
    height = TOP + ROW * len(drawn) + BOTTOM

    def across(value: float) -> float:
        return left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (WIDTH - left - RIGHT)

    parts = []
    for tick in ticks:
        x, low = across(tick), height - BOTTOM
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{low}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{low + 16}" text-anchor="middle">{number(tick)}</text>')
    parts.append(
        f'<text class="tick" x="{(left + WIDTH - RIGHT) / 2:.0f}" y="{height - 5}" text-anchor="middle">'
        f"{escape(x_name)}</text>"
    )
    told = []
    for i, (name, values) in enumerate(drawn.items()):
        y, mean = TOP + ROW * (i + 0.5), sum(values) / len(values)
        short = name if len(name) <= 16 else f"{name[:15]}…"
        parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4.5:.1f}" text-anchor="end">{escape(short)}</text>')
        parts.append(f'<path class="curve" d="M{across(mean):.1f} {y - 7:.1f}v14"/>')
        for value in values:
            parts.append(_dot(across(value), y, f"{name}: {number(value)}", radius=3))
        told.append(f"{name} {number(mean)}")
    story = f"{title}, means: {', '.join(told)}"
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(story)}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Least and greatest, apart even where all values are the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - (abs(low) or 1.0) / 100, high + (abs(high) or 1.0) / 100)


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


def _dot(x: float, y: float, label: str, *, radius: float) -> str:
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(label)}</title></circle>'


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


def thin_out(points: Sequence[tuple[float, float]], most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most `most` points: means of equally many neighbours."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / most)
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
