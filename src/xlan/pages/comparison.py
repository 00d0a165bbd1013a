"""Two sets of captions against the same references, as a page: scores, how sure the difference is, where it lies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from xlan.metrics.bootstrap import Comparison, ImageDifference
from xlan.metrics.coco import ImageId
from xlan.pages.layout import page, scrolling_table, text


def comparison_page(
    scores: Sequence[Comparison],
    images: Sequence[ImageDifference],
    *,
    first: str,
    second: str,
    by: str,
    confidence: float,
    how: str,
    references: Mapping[ImageId, Sequence[str]] | None = None,
    pictures: Mapping[ImageId, str] | None = None,
) -> str:
    """A self-contained HTML document.

    Args:
        scores: a row per metric.
        images: those that differ most, most different first.
        first: what to call the first set, A.
        second: what to call the second set, B.
        by: the score by which images differ.
        confidence: coverage of the intervals, 0 to 1.
        how: how the intervals were made, as a sentence.
        references: what people said, by image.
        pictures: the pictures as `data:` addresses, by image; those that are missing are left out.
    """
    level = f"{100 * confidence:g} %"
    body = [
        f"<header><h1>{text(first)} against {text(second)}</h1>",
        f'<p class="soft"><b>A</b> is {text(first)}, <b>B</b> is {text(second)}. {text(how)}</p></header>',
        f"<section><h2>Scores</h2>{_table(scores, level)}</section>",
    ]
    if images:
        people, shown = references or {}, pictures or {}
        cards = "\n".join(_card(row, by, people.get(row.image, ()), shown.get(row.image, "")) for row in images)
        title = f"Where they differ most ({text(by)})"
        body.append(f'<section><h2>{title}</h2><div class="columns">\n{cards}\n</div></section>')
    return page(f"{first} against {second}", "\n".join(body))


def _table(scores: Sequence[Comparison], level: str) -> str:
    heads = ("metric", "A", "B", "B − A", f"{level} interval", "around zero", "p", "verdict")
    return scrolling_table("scores", heads, "".join(map(_row, scores)))


def _row(row: Comparison) -> str:
    name = f'<th scope="row">{text(row.name)}</th>'
    if row.first is None or row.second is None or row.difference is None or not math.isfinite(row.low):
        return f'<tr>{name}<td colspan="7">not computed: {text(row.reason or "one of the two has no score")}</td></tr>'
    better = "B is better" if row.low > 0 else "A is better" if row.high < 0 else "not clear"
    cells = (
        (f"{row.first:.4f}", better == "A is better"),
        (f"{row.second:.4f}", better == "B is better"),
        (_minus(f"{row.difference:+.4f}"), False),
        (_minus(f"{row.low:+.4f} … {row.high:+.4f}"), False),
        (_whisker(row.difference, row.low, row.high), False),
        (f"{row.p_value:.4f}", False),
        (better, better != "not clear"),
    )
    told = "".join(f'<td class="good">{cell}</td>' if good else f"<td>{cell}</td>" for cell, good in cells)
    return f"<tr>{name}{told}</tr>"


def _whisker(middle: float, low: float, high: float) -> str:
    """The interval as a line around its point, zero in the middle; metrics differ in scale, so each has its own."""
    reach = max(abs(low), abs(middle), abs(high))
    x0, x, x1 = (round(80 + 72 * value / reach, 1) if reach else 80.0 for value in (low, middle, high))
    return (
        '<svg class="whisker" viewBox="0 0 160 16" width="160" height="16" aria-hidden="true">'
        '<line class="zero" x1="80" x2="80" y1="0" y2="16"/>'
        f'<line class="curve" x1="{x0}" x2="{x1}" y1="8" y2="8"/><circle class="dot" cx="{x}" cy="8" r="4"/></svg>'
    )


def _card(row: ImageDifference, by: str, people: Sequence[str], picture: str) -> str:
    said = "".join(
        f'<li dir="auto"><span class="tag">{side} {score:.3f}</span> {text(caption) or "<em>nothing</em>"}</li>'
        for side, score, caption in (("A", row.first, row.first_caption), ("B", row.second, row.second_caption))
    )
    difference = _minus(f"{row.second - row.first:+.3f}")
    said_by_people = "".join(f'<li dir="auto">{text(one)}</li>' for one in people)
    references = f'<h4>What people said</h4><ul class="facts">{said_by_people}</ul>' if people else ""
    shot = f'<img src="{text(picture)}" alt="the picture of these captions">' if picture else ""
    return (
        f'<article>{shot}<h3 dir="auto">{text(str(row.image))}</h3><p class="facts">{text(by)} {difference}</p>'
        f"<ul>{said}</ul>{references}</article>"
    )


def _minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")
