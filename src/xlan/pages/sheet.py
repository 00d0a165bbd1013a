"""A contact sheet: pictures with what was said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from xlan.pages.layout import page, text
from xlan.types import Caption


@dataclass(frozen=True)
class Entry:
    """One picture of a sheet.

    Attributes:
        name: what it is called.
        thumbnail: its `data:` address, as `layout.thumbnail` makes it.
        caption: what was said of it.
        seconds: how long that took.
        explanation: address of a page that explains the caption, relative to the sheet; empty when there is none.
    """

    name: str
    thumbnail: str
    caption: Caption
    seconds: float
    explanation: str = ""


def caption_sheet(entries: Sequence[Entry], *, title: str, model: str) -> str:
    """The sheet as an HTML document; `model` says whose words these are."""
    head = [f"<h1>{text(title)}</h1>", f'<p class="soft">{text(model)}</p>']
    return page(title, "\n".join([*head, '<div class="cards">', *map(_card, entries), "</div>"]))


def _card(entry: Entry) -> str:
    caption = entry.caption
    percent = round(100 * caption.confidence)
    said = text(caption.text or "(nothing)")
    return (
        f'<figure><img src="{text(entry.thumbnail)}" alt="{said}">'
        f'<figcaption><p class="said">{said}</p>'
        f'<div class="meter" role="img" aria-label="confidence {percent} %"><i style="width:{percent}%"></i></div>'
        f'<p class="facts">{text(entry.name)} · confidence {caption.confidence:.2f} · {entry.seconds:.2f} s</p>'
        f"{_link(entry)}{_others(caption)}</figcaption></figure>"
    )


def _link(entry: Entry) -> str:
    if not entry.explanation:
        return ""
    return f'<p class="facts"><a href="{text(quote(entry.explanation))}">where the model looked</a></p>'


def _others(caption: Caption) -> str:
    if not caption.others:
        return ""
    items = "".join(f"<li>{text(other.text)} ({other.confidence:.2f})</li>" for other in caption.others)
    return f"<details><summary>runners-up</summary><ol>{items}</ol></details>"
