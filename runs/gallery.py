"""A gallery of photos explained by two models, as in the paper's last figure: the best region of each word.

    python runs/gallery.py UPDOWN XLAN OUTPUT [--detector DIR] [--photos FOLDER] [--count 12] [--alone]

The models are model directories; `OUTPUT` becomes a folder with `index.html`, which needs nothing else, and a page per
photo (not with `--alone`, whose figures are smaller). Without `--photos` the photographs that come with scikit-image
are used, and drawings where it is not installed: pictures that may be shown to anybody.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from xlan.errors import XlanError
from xlan.files import write_text
from xlan.options import EXPLAINED_RUNNERS_UP, CaptionOptions
from xlan.pages.explanation import Account, explanation_page
from xlan.pages.figure import explanation_figure
from xlan.pages.layout import page, text
from xlan.pipeline import Captioner
from xlan.vision.image import FORMATS, open_image

FIGURE_ACROSS, SMALL_ACROSS = 1600, 820  # pixels of a figure in the gallery
PHOTOGRAPHS = {
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "rocket": "rocket.jpg",
    "motorcycle": "motorcycle_left.png",
    "astronaut": "astronaut.png",
    "photographer": "camera.png",
    "clock": "clock_motion.png",
    "coins": "coins.png",
    "moon": "moon.png",
    "horse": "horse.png",
    "grass": "grass.png",
    "brick": "brick.png",
}


@dataclass(frozen=True)
class Shown:
    """A picture and what the models said of it."""

    name: str
    image: Image.Image
    accounts: list[Account]


def pictures(folder: Path | None, count: int) -> Iterator[tuple[str, Image.Image]]:
    """Up to `count` pictures with names: of a folder, of scikit-image, or drawn."""
    if folder is not None:
        endings = {f".{name.lower()}" for name in FORMATS} | {".jpg"}
        files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in endings]
        if not files:
            raise XlanError(f"{folder}: expected pictures in this folder, found none")
        yield from ((path.stem, open_image(path)) for path in files[:count])
        return
    spec = importlib.util.find_spec("skimage")
    home = Path(spec.origin).parent / "data" if spec is not None and spec.origin is not None else Path()
    found = [(name, home / file) for name, file in PHOTOGRAPHS.items() if (home / file).is_file()][:count]
    yield from ((name, open_image(path)) for name, path in found)
    yield from ((f"drawing {seed}", drawing(seed)) for seed in range(1, count - len(found) + 1))


def drawing(seed: int) -> Image.Image:
    """Sky, ground, and one or two round or square things."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (480, 320), tuple(random.integers((120, 170, 210), (180, 220, 256)).tolist()))
    draw = ImageDraw.Draw(image)
    ground = int(random.integers(180, 260))
    draw.rectangle((0, ground, 480, 320), fill=tuple(random.integers((60, 120, 40), (220, 200, 140)).tolist()))
    for _ in range(int(random.integers(1, 3))):
        side, x = int(random.integers(50, 130)), int(random.integers(0, 350))
        box = (x, ground - side // 2, x + side, ground + side // 2)
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape(box, fill=tuple(random.integers(0, 256, 3).tolist()))
    return image


def explained(models: list[tuple[str, Captioner]], folder: Path | None, count: int) -> Iterator[Shown]:
    """What every model says of every picture."""
    options = CaptionOptions(attention=True, runners_up=EXPLAINED_RUNNERS_UP)
    for name, image in pictures(folder, count):
        yield Shown(name, image, [Account(called, model.caption(image, options)) for called, model in models])


def card(shown: Shown, *, alone: bool) -> str:
    """One picture of the gallery: its figure, the sentences as text, and the way to its page unless there is none."""
    figure = explanation_figure(shown.image, shown.accounts)
    across = SMALL_ACROSS if alone else FIGURE_ACROSS
    figure.thumbnail((across, 4 * across))
    file = io.BytesIO()
    figure.save(file, "JPEG", quality=82)
    address = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    told = "; ".join(f"{account.model}: {account.caption.text}" for account in shown.accounts)
    more = "" if alone else f'<p class="facts"><a href="{text(page_name(shown.name))}">word by word</a></p>'
    return (
        f'<section><h2>{text(shown.name)}</h2><img src="{address}" style="max-width:100%" alt="{text(told)}">'
        f"{more}</section>"
    )


def page_name(name: str) -> str:
    """The file of a picture's own page."""
    return "".join(letter if letter.isalnum() else "-" for letter in name) + ".html"


def main(arguments: list[str]) -> int:
    """Write the gallery."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=Path, help="model directory, such as Up-Down")
    parser.add_argument("second", type=Path, help="model directory, such as X-LAN")
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument(
        "--detector", type=Path, help="detector directory: makes regions, or names what words looked at"
    )
    parser.add_argument("--photos", type=Path, help="folder with pictures of your own")
    parser.add_argument("--count", type=int, default=12, help="most pictures")
    parser.add_argument("--alone", action="store_true", help="one small page, without a page for each photo")
    given = parser.parse_args(arguments)
    try:
        models = [
            (path.resolve().name, Captioner.from_pretrained(path, detector=given.detector))
            for path in (given.first, given.second)
        ]
        given.output.mkdir(parents=True, exist_ok=True)
        cards = []
        for shown in explained(models, given.photos, given.count):
            if not given.alone:
                own = explanation_page(shown.image, shown.name, shown.accounts)
                write_text(given.output / page_name(shown.name), own)
            cards.append(card(shown, alone=given.alone))
    except XlanError as error:
        print(error, file=sys.stderr)
        return 1
    names = " and ".join(name for name, _ in models)
    head = (
        f'<h1>{text(names)}</h1><p class="soft">For each word the region that each model weighed most is outlined.</p>'
    )
    write_text(given.output / "index.html", page(names, "\n".join([head, *cards])))
    print(given.output / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
