"""Pictures with their boxes and names drawn on them."""

from __future__ import annotations

import colorsys

from PIL import Image, ImageDraw, ImageFont

from xlan.vision.detector.detections import Detections

_GOLDEN = 0.618034  # turns of the colour wheel between classes: neighbours in number differ most in colour


def draw(image: Image.Image, found: Detections) -> Image.Image:
    """A copy of an RGB image with a frame and a label for each detection, the best on top."""
    result = image.convert("RGB")
    pen = ImageDraw.Draw(result)
    line = max(1, round(min(result.size) / 200))
    font = ImageFont.load_default(size=max(9, round(min(result.size) / 32)))
    scores = found.regions.scores
    for i in reversed(range(len(found))):
        x0, y0, x1, y1 = found.regions.boxes[i].tolist()
        corners = (x0 * result.width, y0 * result.height, x1 * result.width, y1 * result.height)
        colour = _colour(int(found.classes[i]))
        pen.rectangle(corners, outline=colour, width=line)
        label = found.names[i] if scores is None else f"{found.names[i]} {scores[i]:.2f}"
        _label(pen, label, corners[0], corners[1], colour, font, result.size)
    return result


def _label(
    pen: ImageDraw.ImageDraw,
    text: str,
    x: float,
    y: float,
    colour: tuple[int, int, int],
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    size: tuple[int, int],
) -> None:
    """Text on a plate of the frame's colour, above the box's corner, or inside where there is no room."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    wide, tall = right - left + 4, bottom - top + 4
    x = max(0.0, min(x, size[0] - wide))
    y = y - tall if y >= tall else min(y, max(0.0, size[1] - tall))
    pen.rectangle((x, y, x + wide, y + tall), fill=colour)
    pen.text((x + 2 - left, y + 2 - top), text, fill=(0, 0, 0), font=font)


def _colour(number: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hls_to_rgb((number * _GOLDEN) % 1.0, 0.65, 0.9)
    return round(255 * red), round(255 * green), round(255 * blue)
