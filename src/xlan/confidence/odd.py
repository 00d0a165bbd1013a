"""Drawn pictures that are not photos, for whose captions confidence should be low.

Confidence is fitted on them together with the photos of a validation split; every word of their captions counts as
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 256


def odd_pictures(count: int, seed: int = 0) -> Iterator[Image.Image]:
    """`count` pictures, each kind in turn; the same seed gives the same pictures."""
    random = np.random.default_rng(seed)
    for number in range(count):
        yield KINDS[number % len(KINDS)](random)


def _colour(random: np.random.Generator) -> tuple[int, int, int]:
    r, g, b = (int(value) for value in random.integers(0, 256, size=3))
    return r, g, b


def _noise(random: np.random.Generator) -> Image.Image:
    pixels = random.integers(0, 256, size=(SIDE, SIDE, 3), dtype=np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(float(random.choice([0, 0, 1, 3, 8]))))


def _blank(random: np.random.Generator) -> Image.Image:
    grey = int(random.integers(0, 256))
    return Image.new("RGB", (SIDE, SIDE), _colour(random) if random.random() < 0.5 else (grey, grey, grey))


def _gradient(random: np.random.Generator) -> Image.Image:
    across = np.linspace(0, 1, SIDE)[None, :, None] if random.random() < 0.5 else np.linspace(0, 1, SIDE)[:, None, None]
    first, second = np.asarray(_colour(random), float), np.asarray(_colour(random), float)
    pixels = np.broadcast_to(first * (1 - across) + second * across, (SIDE, SIDE, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def _stripes(random: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), _colour(random))
    draw, colour, width = ImageDraw.Draw(image), _colour(random), int(random.integers(4, 40))
    for start in range(0, SIDE, 2 * width):
        draw.rectangle((start, 0, start + width - 1, SIDE), fill=colour)
        if random.random() < 0.5:
            draw.rectangle((0, start, SIDE, start + width - 1), fill=colour)
    return image


def _document(random: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), (250, 250, int(random.integers(235, 256))))
    draw, y, left = ImageDraw.Draw(image), 20, int(random.integers(12, 30))
    letters = list("abcdefghijklmnopqrstuvwxyz")
    while y < SIDE - 20:
        line = " ".join("".join(random.choice(letters, size=random.integers(2, 9))) for _ in range(6))
        draw.text((left, y), line[: int(random.integers(10, 36))], fill=(20, 20, 20))
        y += int(random.integers(11, 20))
    return image


def _drawing(random: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), "white" if random.random() < 0.6 else _colour(random))
    draw = ImageDraw.Draw(image)
    for _ in range(int(random.integers(1, 8))):
        x, y, w, h = (int(value) for value in random.integers(0, SIDE - 20, size=4))
        box, filled = (min(x, w), min(y, h), max(x, w) + 5, max(y, h) + 5), random.random() < 0.5
        fill = _colour(random) if filled else None
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape(box, fill=fill, outline=_colour(random), width=int(random.integers(1, 6)))
        points = [(int(a), int(b)) for a, b in random.integers(0, SIDE, size=(3, 2))]
        draw.line(points, fill=_colour(random), width=int(random.integers(1, 6)))
    return image


def _chart(random: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), "white")
    draw, colour = ImageDraw.Draw(image), _colour(random)
    draw.line([(30, 20), (30, 226), (240, 226)], fill=(40, 40, 40), width=2)
    heights = random.integers(10, 190, size=8)
    for i, height in enumerate(heights):
        if random.random() < 0.7:
            draw.rectangle((38 + 25 * i, 226 - int(height), 54 + 25 * i, 226), fill=colour)
        draw.text((38 + 25 * i, 230), str(i), fill=(40, 40, 40))
    return image


KINDS: tuple[Callable[[np.random.Generator], Image.Image], ...] = (
    _noise,
    _blank,
    _gradient,
    _stripes,
    _document,
    _drawing,
    _chart,
)
