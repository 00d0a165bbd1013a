"""A picture explained: for every word where the model looked, how sure it was, and what it nearly said instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from xlan.looking import EVEN, Floats, covers_all, where_most
from xlan.pages.heat import Box, heat_svg, place_in_words, weight_on_whole
from xlan.pages.layout import page, text, thumbnail
from xlan.types import Caption, Look, Thing, Word

SIDE = 720  # pixels of the picture in the page
WIDE = 2.2  # width to height of pictures that would be too small in a narrow card
STRIP_BARS = 64
SHUT, OPEN = 0.1, 0.9
MINUS, NO_BREAK = "\N{MINUS SIGN}", "\N{NO-BREAK SPACE}"


NO_ATTENTION = "no attention to show; this model does not attend to regions, or was not asked to"


@dataclass(frozen=True)
class Account:
    """What one model says of a picture.

    Attributes:
        model: whose words these are.
        caption: the words, with attention where it is known.
        drawn: whether the further captions were drawn at random rather than found by a search.
    """

    model: str
    caption: Caption
    drawn: bool = False


def explanation_page(image: Image.Image, name: str, accounts: Sequence[Account]) -> str:
    """A self-contained HTML document.

    Args:
        image: the picture, upright; it is made smaller and embedded once.
        name: what it is called.
        accounts: one model's words, or several models' beside each other.
    """
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    photo = _Photo(*small.size)
    head = [
        '<svg class="store" aria-hidden="true"><defs>'
        f'<image id="photo" width="{photo.width}" height="{photo.height}" href="{thumbnail(small, side=SIDE)}"/>'
        "</defs></svg>",
        f'<h1 dir="auto">{text(name)}</h1>',
        _introduction(accounts),
    ]
    body = _alone(photo, accounts[0]) if len(accounts) == 1 else _beside(photo, accounts)
    return page(f"{name} – explained", "\n".join([*head, *body]))


@dataclass(frozen=True)
class _Photo:
    """Draws the one embedded picture, as often as it is wanted."""

    width: int
    height: int

    def svg(self, label: str, over: str = "") -> str:
        scale = SIDE / max(self.width, self.height)
        size = f'width="{self.width * scale:.0f}" height="{self.height * scale:.0f}"'
        return (
            f'<svg class="shot" viewBox="0 0 {self.width} {self.height}" {size} role="img" aria-label="{text(label)}">'
            f'<use href="#photo"/>{over}</svg>'
        )

    def plate(self, label: str, box: Box) -> str:
        """A name at the upper left corner of a box, inside the picture."""
        size = max(12.0, max(self.width, self.height) / 26)
        wide = min(float(self.width), (0.62 * len(label) + 0.8) * size)
        x = min(max(0.0, box[0] * self.width), self.width - wide)
        y = box[1] * self.height - 1.3 * size
        y = min(max(0.0, y if y >= 0 else box[1] * self.height), max(0.0, self.height - 1.3 * size))
        return (
            f'<g class="plate"><rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{1.3 * size:.1f}"/>'
            f'<text x="{x + 0.4 * size:.1f}" y="{y + 0.98 * size:.1f}" font-size="{size:.1f}"'
            f' textLength="{wide - 0.8 * size:.1f}" lengthAdjust="spacingAndGlyphs">{text(label)}</text></g>'
        )


def _introduction(accounts: Sequence[Account]) -> str:
    models = " and ".join(account.model for account in accounts)
    who = "it" if len(accounts) == 1 else "each"
    return f'<p class="soft">What {text(models)} said of this picture, and where {who} looked, word by word.</p>'


def _alone(photo: _Photo, account: Account) -> list[str]:
    picture = photo.svg(f"the picture, described as: {account.caption.text or 'nothing'}")
    return [
        f'<div class="hero">{picture}<div>{_sentence(account.caption)}{_others(account, level=2)}</div></div>',
        "<section><h2>Word by word</h2>",
        _key([account]),
        _words(photo, account.caption),
        "</section>",
    ]


def _beside(photo: _Photo, accounts: Sequence[Account]) -> list[str]:
    sides = [
        f'<section class="account"><h2 dir="auto">{text(account.model)}</h2>{_sentence(account.caption)}'
        f"{_words(photo, account.caption)}{_others(account, level=3)}</section>"
        for account in accounts
    ]
    return [
        f'<div class="hero">{photo.svg("the picture itself")}<div>{_key(accounts)}</div></div>',
        '<div class="sides">',
        *sides,
        "</div>",
    ]


def _sentence(caption: Caption) -> str:
    said = text(caption.text or "(nothing)")
    return (
        f'<p class="said" dir="auto">{said}</p>{_meter(caption.confidence, "confidence")}'
        f'<p class="facts">confidence {caption.confidence:.2f}{_doubtful(caption)}; '
        f"log-probability {f'{caption.score:.2f}'.replace('-', MINUS)}</p>"
    )


def _doubtful(caption: Caption) -> str:
    """The words that are likelier wrong than right, if confidence is known word by word."""
    words = [word.text for word in caption.words if word.confidence is not None and word.confidence < 0.5]
    return f"; doubtful: {text(', '.join(dict.fromkeys(words)))}" if words else ""


def _key(accounts: Sequence[Account]) -> str:
    words = [word for account in accounts for word in account.caption.words]
    unseen = "".join(
        f'<p class="facts">{text(account.model)}: {NO_ATTENTION}.</p>'
        for account in accounts
        if lacks_attention(account.caption)
    )
    if not any(word.spatial is not None for word in words):
        return unseen
    return (
        f'{unseen}<p class="facts">Heat <span class="key" role="img" aria-label="from none to most"></span> is '
        "relative to the strongest place of each word, which is outlined. The percentage beside a word is its "
        f"probability.{_names_in_words(words)}</p>"
    )


def lacks_attention(caption: Caption) -> bool:
    """Whether the words of a caption come without heat: `NO_ATTENTION` says why."""
    return bool(caption.words) and all(word.spatial is None for word in caption.words)


def _names_in_words(words: Sequence[Word]) -> str:
    """Where the names come from, if there are any."""
    looks = [word.look for word in words if word.look is not None and word.look.thing is not None]
    if not looks:
        return ""
    if any(look.region is None for look in looks):
        return (
            " Names are those of a detector that looked at the picture beside the model: a word points at the box that "
            "holds more of its attention than its size alone would."
        )
    return " Names are those of the detector that made the regions."


def _words(photo: _Photo, caption: Caption) -> str:
    if not caption.words:
        return "<p>There are no words to explain.</p>"
    cards = "\n".join(_card(photo, word, caption) for word in caption.words)
    wide = " wide" if photo.width > WIDE * photo.height else ""
    return f'<ol class="words{wide}" role="list">\n{cards}\n</ol>'


def _card(photo: _Photo, word: Word, caption: Caption) -> str:
    boxes = caption.boxes
    traits: list[tuple[str, str]] = []
    if word.runners_up:
        others = ", ".join(f"{text(other)}{NO_BREAK}{percent(probability)}" for other, probability in word.runners_up)
        traits.append(("runners-up", f'<bdi dir="auto">{others}</bdi>'))
    picture = ""
    if word.spatial is not None and boxes is not None:
        looked = where_it_looked(word.spatial, boxes, word.look, caption.things)
        over = heat_svg(word.spatial, boxes, word.look.box if word.look is not None else None)
        if word.look is not None and word.look.thing is not None:
            over += photo.plate(caption.things[word.look.thing].label, word.look.box)
        picture = photo.svg(f"“{word.text}”: {looked}", over)
        traits.append(("looked at", text(looked)))
    if word.channel is not None and word.channel.size:
        traits.append(("channel gate", _strip(word.channel) + text(gate_in_words(word.channel))))
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in traits)
    return (
        f'<li class="word">{picture}<div>'
        f"<h3><bdi>{text(word.text)}</bdi> <span>{percent(word.probability)}</span></h3>"
        f"{_meter(word.probability, 'probability')}{f'<dl>{listed}</dl>' if listed else ''}</div></li>"
    )


def where_it_looked(spatial: Floats, boxes: Floats, look: Look | None = None, things: Sequence[Thing] = ()) -> str:
    """Attention in words: "most at the dog, top left (9 %), 31 % on the picture as a whole".

    Args:
        spatial: `[N]` attention over the regions.
        boxes: `[N, 4]` of the regions.
        look: where it is strongest, if that is known already.
        things: what a detector found, by the numbers that `look` uses.
    """
    parts = []
    look = look or where_most(spatial, boxes)
    if look is not None:
        place = place_in_words(np.array(look.box))
        if look.thing is not None:
            label = things[look.thing].label
            where = f"most at the {label}" if look.region is not None else f"most inside the box of the {label}"
            parts.append(f"{where}, {place} ({percent(look.share)})")
        else:
            places = spatial[~covers_all(boxes)]
            even = len(places) > 1 and look.share < EVEN * float(places.mean())
            much = "evenly all over, a little more" if even else "most"
            parts.append(f"{much} {'in' if place == 'centre' else 'at'} the {place} ({percent(look.share)})")
    whole = weight_on_whole(spatial, boxes)
    if whole > 0:
        parts.append(f"{percent(whole)} on the picture as a whole")
    return ", ".join(parts) or "nowhere in particular"


def gate_in_words(channel: Floats) -> str:
    """The channel gate in words: its mean, and how many gates are nearly shut or open."""
    shut, wide = float((channel < SHUT).mean()), float((channel > OPEN).mean())
    return f"{channel.mean():.2f} on average; {percent(shut)} nearly shut, {percent(wide)} wide open"


def _strip(channel: Floats) -> str:
    """Means of neighbouring gates as bars, 0 to 1 high; a summary stands beside them."""
    means = [float(part.mean()) for part in np.array_split(channel, min(STRIP_BARS, channel.size))]
    bars = "".join(f'<rect x="{i}" y="{1 - mean:.3f}" width="1" height="{mean:.3f}"/>' for i, mean in enumerate(means))
    box = f'viewBox="0 0 {len(means)} 1" preserveAspectRatio="none"'
    return f'<svg class="strip" {box} aria-hidden="true">{bars}</svg>'


def _others(account: Account, *, level: int) -> str:
    if not account.caption.others:
        return ""
    items = "".join(
        f'<li><bdi>{text(other.text or "(nothing)")}</bdi> <span class="soft">{other.confidence:.2f}</span></li>'
        for other in account.caption.others
    )
    title = "Also drawn" if account.drawn else "Other sentences it kept"
    return f"<h{level}>{title}</h{level}><ol>{items}</ol>"


def _meter(value: float, name: str) -> str:
    share = round(100 * min(1.0, max(0.0, value)))
    label = f"{name} {percent(value)}"
    return f'<div class="meter" role="img" aria-label="{label}"><i style="width:{share}%"></i></div>'


def percent(share: float) -> str:
    """A share as a percentage: more than nothing is never "0 %", less than all never "100 %"."""
    if 0 < share < 0.01:
        return f"under{NO_BREAK}1{NO_BREAK}%"
    return f"{99 if 0.99 < share < 1 else round(100 * share)}{NO_BREAK}%"
