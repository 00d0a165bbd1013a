"""Photos that a search found, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xlan.pages.layout import page, text


@dataclass(frozen=True)
class FoundPhoto:
    """One photo of the page.

    Attributes:
        name: what it is called.
        thumbnail: its `data:` address, as `layout.thumbnail` makes it; empty where the photo cannot be shown.
        caption: what the captioner says of it.
        score: how well the sentence fits it.
        words: each word of the sentence, and what it adds to the score.
    """

    name: str
    thumbnail: str
    caption: str
    score: float
    words: tuple[tuple[str, float], ...] = ()


def search_page(
    sentence: str, found: Sequence[FoundPhoto], *, folder: str, photos: int, unknown: Sequence[str] = ()
) -> str:
    """The page as an HTML document.

    Args:
        sentence: what was searched for.
        found: the photos, best first.
        folder: where they are.
        photos: how many were searched.
        unknown: a line for each word that is not known.
    """
    head = [
        f"<h1>{text(sentence)}</h1>",
        f'<p class="soft">The best {len(found):,} of {photos:,} photos in {text(folder)}. The score says how much '
        "better the sentence fits the photo than any photo of the folder: 0 is a photo like the others.</p>",
    ]
    if unknown:
        head.append(f'<div class="warn">{"".join(f"<p>{text(line)}</p>" for line in unknown)}</div>')
    cards = "".join(_card(place, one) for place, one in enumerate(found, start=1))
    return page(f"{sentence} – photos found", "\n".join([*head, f'<div class="cards">{cards}</div>']))


def _card(place: int, one: FoundPhoto) -> str:
    said = text(one.caption or "(nothing)")
    picture = f'<img src="{text(one.thumbnail)}" alt="{said}">' if one.thumbnail else "<p>cannot be shown</p>"
    words = "".join(f"<li>{text(word)} {value:+.1f}</li>" for word, value in one.words)
    return (
        f'<figure>{picture}<figcaption><p class="said">{place}. {said}</p>'
        f'<p class="facts">{text(one.name)} · score {one.score:.1f}</p>'
        f"<details><summary>what each word adds</summary><ul>{words}</ul></details></figcaption></figure>"
    )
