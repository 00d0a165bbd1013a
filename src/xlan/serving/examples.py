"""Pictures to try the page with: photographs inside scikit-image where it is installed, else drawings made here.

Nothing is fetched, and no picture is stored in this project.
"""

from __future__ import annotations

import functools
import importlib.util
import io
from pathlib import Path

from PIL import Image, ImageDraw

from xlan.vision.image import open_image

SIDE = 640  # longest side, in pixels
PHOTOS = {"cat": "chelsea.png", "coffee": "coffee.png", "rocket": "rocket.jpg", "motorcycle": "motorcycle_left.png"}
DRAWINGS = ("beach", "clock", "kite")


def names() -> list[str]:
    """What there is to choose from."""
    return list(_photographs()) or list(DRAWINGS)


@functools.cache
def picture(name: str) -> bytes | None:
    """An example as JPEG; None when there is none of this name."""
    if name not in names():
        return None
    path = _photographs().get(name)
    image = _drawing(name) if path is None else open_image(path)
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


@functools.cache
def _photographs() -> dict[str, Path]:
    spec = importlib.util.find_spec("skimage")  # importing it would take a second
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent / "data"
    return {name: folder / file for name, file in PHOTOS.items() if (folder / file).is_file()}


def _drawing(name: str) -> Image.Image:
    image = Image.new("RGB", (480, 320), "#8ecbf2")
    draw = ImageDraw.Draw(image)
    if name == "beach":
        draw.ellipse((360, 30, 420, 90), fill="#ffd84d")
        draw.rectangle((0, 150, 480, 230), fill="#2a7fc1")
        draw.rectangle((0, 230, 480, 320), fill="#ecd9a4")
        draw.polygon([(110, 150), (180, 150), (165, 175), (125, 175)], fill="#8a3b1f")
        draw.polygon([(145, 70), (145, 145), (195, 145)], fill="#ffffff")
    elif name == "clock":
        draw.rectangle((0, 0, 480, 320), fill="#c9b8a3")
        draw.ellipse((130, 50, 350, 270), fill="#ffffff", outline="#222222", width=8)
        draw.line([(240, 160), (240, 85)], fill="#222222", width=8)
        draw.line([(240, 160), (295, 190)], fill="#222222", width=10)
    else:
        draw.rectangle((0, 250, 480, 320), fill="#5b9a3f")
        draw.polygon([(320, 40), (370, 90), (320, 160), (280, 90)], fill="#d93025")
        draw.line([(320, 160), (180, 260)], fill="#444444", width=3)
        draw.ellipse((165, 215, 190, 240), fill="#5a3a22")
        draw.rectangle((165, 240, 190, 290), fill="#2849a8")
    return image
