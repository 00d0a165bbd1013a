"""A picture explained as a picture: the original, then a panel of heat for each word, as papers print it."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from xlan.looking import Floats, strongest
from xlan.pages.explanation import NO_ATTENTION, Account, lacks_attention, percent
from xlan.pages.heat import Box, opacities
from xlan.types import Caption, Word

PANEL = 360  # most pixels of a panel, across and down; long and low ones get up to twice that across
NARROWEST = 170  # a column, so that words fit below pictures that are high and narrow
ACROSS = 2400  # most pixels of a row
GAP, MARGIN, LINE = 24, 36, 40
INK, SOFT, PAPER, HEAT = (27, 31, 36), (89, 99, 110), (255, 255, 255), (255, 77, 0)

# Pillow's own font knows little beyond ASCII; these are asked for, in this order, when a word needs more.
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "arial.ttf")

Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"


def figure_png(image: Image.Image, accounts: Sequence[Account]) -> bytes:
    """The figure as a PNG file; what the models said is in its description, for readers who cannot see it."""
    told = "; ".join(
        f"{account.model}: {account.caption.text or '(nothing)'}"
        + (f" ({NO_ATTENTION})" if lacks_attention(account.caption) else "")
        for account in accounts
    )
    description = PngImagePlugin.PngInfo()
    description.add_itxt("Description", _clean(told))
    file = io.BytesIO()
    explanation_figure(image, accounts).save(file, "PNG", pnginfo=description)
    return file.getvalue()


def explanation_figure(image: Image.Image, accounts: Sequence[Account]) -> Image.Image:
    """Draw the figure.

    Args:
        image: the picture, upright.
        accounts: what one model said of it, or several, one below the other.

    Returns:
        An RGB image: for each account the sentence, then the picture and a panel per word, in rows.
    """
    wide = min(2.0, max(1.0, image.width / image.height / 1.6))
    scale = min(wide * PANEL / image.width, PANEL / image.height)
    width, height = (max(8, round(side * scale)) for side in image.size)
    small = image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    most = 1 + max(len(account.caption.words) for account in accounts)
    column = max(width, NARROWEST)
    plan = _Plan(small, column, max(1, min(most, (ACROSS + GAP) // (column + GAP))), named=len(accounts) > 1)
    blocks = [plan.block(account) for account in accounts]
    figure = Image.new("RGB", (plan.across, sum(block.height for block in blocks) + MARGIN), PAPER)
    top = 0
    for block in blocks:
        figure.paste(block, (0, top))
        top += block.height
    return figure


@dataclass(frozen=True)
class _Plan:
    """Where things go: panels of one size in columns of one width."""

    picture: Image.Image
    column: int
    columns: int
    named: bool

    @property
    def across(self) -> int:
        # A caption of one word still gets room for its sentence.
        return max(2 * MARGIN + self.columns * (self.column + GAP) - GAP, 2 * PANEL)

    def block(self, account: Account) -> Image.Image:
        """One model's sentence and panels."""
        said = account.caption.text or "(nothing)"
        lines = [(line, 34, INK) for line in _wrapped(said, 34, self.across - 2 * MARGIN)]
        if self.named:
            lines.insert(0, (account.model, 26, SOFT))
        lines.append((f"confidence {account.caption.confidence:.2f}", 24, SOFT))
        if lacks_attention(account.caption):
            lines.append((NO_ATTENTION, 24, SOFT))
        cells = [
            ("", "", self.picture),
            *(_cell(word, account.caption, self.picture) for word in account.caption.words),
        ]
        row = self.picture.height + 2 * LINE + GAP
        head = MARGIN + len(lines) * (LINE + 4) + GAP // 2
        block = Image.new("RGB", (self.across, head + -(-len(cells) // self.columns) * row), PAPER)
        draw = ImageDraw.Draw(block)
        for i, (line, size, colour) in enumerate(lines):
            _write(draw, line, (MARGIN, MARGIN + i * (LINE + 4)), size, colour, self.across - 2 * MARGIN, centred=False)
        for i, (word, chance, panel) in enumerate(cells):
            left = MARGIN + i % self.columns * (self.column + GAP)
            top = head + i // self.columns * row
            block.paste(panel, (left + (self.column - panel.width) // 2, top))
            below = top + panel.height + 8
            _write(draw, word, (left, below), 30, INK, self.column, centred=True)
            _write(draw, chance, (left, below + LINE), 22, SOFT, self.column, centred=True)
        return block


def _cell(word: Word, caption: Caption, picture: Image.Image) -> tuple[str, str, Image.Image]:
    panel = picture
    if word.spatial is not None and caption.boxes is not None:
        look = word.look
        panel = heat_panel(picture, word.spatial, caption.boxes, look.box if look is not None else None)
        if look is not None and look.thing is not None:
            _plate(panel, caption.things[look.thing].label, look.box)
    return word.text, percent(word.probability), panel


def heat_panel(picture: Image.Image, spatial: Floats, boxes: Floats, outline: Box | None = None) -> Image.Image:
    """The picture in grey with heat over its regions (`spatial` `[N]`, `boxes` `[N, 4]`).

    The box `outline` has a line around it; without it, the strongest region.
    """
    width, height = picture.size
    alpha = np.zeros((height, width, 1))
    for opacity, box in zip(opacities(spatial, boxes), boxes, strict=True):
        x0, y0, x1, y1 = _pixels(box, width, height)
        alpha[y0:y1, x0:x1] = np.maximum(alpha[y0:y1, x0:x1], opacity)
    grey = np.asarray(picture.convert("L").convert("RGB"), dtype=np.float64)
    mixed: npt.NDArray[np.uint8] = np.rint(grey * (1 - alpha) + np.array(HEAT) * alpha).astype(np.uint8)
    panel = Image.fromarray(mixed)
    top = strongest(spatial, boxes)
    if top is not None:
        x0, y0, x1, y1 = _pixels(boxes[top] if outline is None else np.array(outline), width, height)
        draw = ImageDraw.Draw(panel)
        # Light within dark: one of the two shows on any picture.
        for inset, colour, thick in ((0, (0, 0, 0), 6), (2, (255, 255, 255), 2)):
            if x1 - x0 > 2 * inset + 1 and y1 - y0 > 2 * inset + 1:
                draw.rectangle((x0 + inset, y0 + inset, x1 - 1 - inset, y1 - 1 - inset), outline=colour, width=thick)
    return panel


def _plate(panel: Image.Image, label: str, box: Box) -> None:
    """A name on a dark plate at the upper left corner of a box, inside the picture."""
    x0, y0, _, _ = _pixels(np.array(box), panel.width, panel.height)
    size = 18
    wide = min(panel.width, int(_font(_clean(label), size).getlength(_clean(label))) + 12)
    tall = size + 8
    left = max(0, min(x0, panel.width - wide))
    top = max(0, min(y0 - tall if y0 >= tall else y0, panel.height - tall))
    draw = ImageDraw.Draw(panel)
    draw.rectangle((left, top, left + wide - 1, top + tall - 1), fill=(0, 0, 0))
    _write(draw, label, (left + 6, top + 2), size, PAPER, wide - 12, centred=False)


def _pixels(box: Floats, width: int, height: int) -> tuple[int, int, int, int]:
    x0, y0, x1, y1 = (min(1.0, max(0.0, float(value))) for value in box)
    return round(x0 * width), round(y0 * height), round(x1 * width), round(y1 * height)


def _write(
    draw: ImageDraw.ImageDraw,
    line: str,
    at: tuple[int, int],
    size: int,
    colour: tuple[int, int, int],
    room: int,
    *,
    centred: bool,
) -> None:
    """One line from `at`, in letters small enough for `room`; what still does not fit is cut off."""
    line = _clean(line)
    font = _font(line, size)
    while size > 14 and font.getlength(line) > room:
        size -= 2
        font = _font(line, size)
    while len(line) > 1 and font.getlength(line) > room:
        line = line[:-2] + "…"
    left = at[0] + (int(room - font.getlength(line)) // 2 if centred else 0)
    draw.text((left, at[1]), line, font=font, fill=colour)


def _wrapped(said: str, size: int, room: int) -> list[str]:
    lines: list[str] = []
    for word in _clean(said).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _font(longer, size).getlength(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _clean(line: str) -> str:
    """One line of what can be written: no control characters, no halves of surrogate pairs."""
    shown = line.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else " " for c in shown)


def _font(line: str, size: int) -> Font:
    for name in (None, *FONTS):
        font = _load(name, size)
        if font is not None and all(_has(name, letter) for letter in set(line)):
            return font
    return _load(None, size) or ImageFont.load_default()


@functools.lru_cache(maxsize=128)
def _load(name: str | None, size: int) -> Font | None:
    try:
        return ImageFont.load_default(size) if name is None else ImageFont.truetype(name, size)
    except (OSError, ImportError):  # no such font here; or a Pillow built without FreeType
        return None


@functools.lru_cache(maxsize=4096)
def _has(name: str | None, letter: str) -> bool:
    """Whether a font can write a letter: it looks different from one that no font has."""
    font = _load(name, 24)
    if font is None or letter == " ":
        return font is not None
    missing = font.getmask("\U0010ffff")
    shape = font.getmask(letter)
    return (shape.size, bytes(shape)) != (missing.size, bytes(missing))
