"""Caption five photographs, and your own: `make caption`, `make caption IMAGE=holiday.jpg`, `IMAGE='holiday/*.jpg'`.

The photographs come with scikit-image (`pip install "xlan[demo]"`); nothing is fetched. The captions are printed and
written to captions.html, a page that needs nothing else.

A version of xlan that carries no trained model shows the same steps with random weights on drawn pictures, and says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from xlan import Captioner, Vocabulary, XlanError, build_model, pipeline
from xlan.cli.pictures import find_pictures
from xlan.cli.threads import leave_a_core
from xlan.files import write_text
from xlan.pages.layout import thumbnail
from xlan.pages.sheet import Entry, caption_sheet
from xlan.vision import efficientnet
from xlan.vision.grid import GridExtractor, GridSettings
from xlan.vision.image import open_image

PHOTOS = {
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "rocket": "rocket.jpg",
    "astronaut": "astronaut.png",
    "motorcycle": "motorcycle_left.png",
}
UNTRAINED = (
    "This version of xlan carries no trained model. The words below come from an UNTRAINED tiny model with random "
    "weights and mean nothing: they only show that every step runs, here on drawn pictures."
)
WORDS = "a the on in of with and red green blue yellow white round square circle sun house hill sky sea ball field"


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description="Caption sample pictures and your own, and write captions.html.")
    parser.add_argument("images", nargs="*", help="pictures of yours: files, folders, globs")
    parser.add_argument("--output", type=Path, default=Path("captions.html"), help="the page to write")
    options = parser.parse_args(arguments)
    trained = pipeline.SHIPPED.is_dir()
    warning = "" if trained else UNTRAINED
    if warning:
        print(f"{warning}\n")
    leave_a_core()
    captioner = Captioner.from_pretrained() if trained else untrained_captioner()
    captioner.caption(Image.new("RGB", (8, 8)))  # torch sets itself up in the first call; the others are timed
    entries: list[Entry] = []
    problems: list[str] = []
    samples = photographs() if trained else drawings()
    for name, picture in [*samples, *find_pictures(options.images, problems.append)]:
        try:
            entry = caption_one(captioner, name, picture)
        except XlanError as error:
            problems.append(str(error))
            continue
        entries.append(entry)
        print(f"{name:<12} {entry.caption.text}  (confidence {entry.caption.confidence:.2f}, {entry.seconds:.2f} s)")
    model = "The model that comes with xlan, beam search of width 3." if trained else "Random weights, not a model."
    write_text(options.output, caption_sheet(entries, title="What xlan says", model=model, warning=warning))
    print(f"\nwritten: {options.output}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def caption_one(captioner: Captioner, name: str, picture: Path | bytes | Image.Image) -> Entry:
    """Caption one picture, with the time it took from opening to sentence."""
    began = time.perf_counter()
    caption = captioner.caption(picture)
    seconds = time.perf_counter() - began
    return Entry(name, thumbnail(open_image(picture)), caption, seconds)


def photographs() -> list[tuple[str, Path]]:
    """The five photographs inside the installed scikit-image."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise SystemExit('the sample photographs come with scikit-image; type: pip install "xlan[demo]"')
    folder = Path(spec.origin).parent / "data"
    return [(name, folder / file) for name, file in PHOTOS.items()]


def drawings() -> Iterator[tuple[str, Image.Image]]:
    """Five drawn pictures."""
    sky, sea, field = "#8ecbff", "#1f6fb2", "#4f9d3a"
    scenes: dict[str, list[tuple[str, tuple[int, int, int, int], str]]] = {
        "sun": [("ellipse", (110, 40, 190, 120), "#ffd23f")],
        "house": [("rectangle", (90, 120, 210, 220), "#b5533c"), ("rectangle", (135, 165, 165, 220), "#5a3825")],
        "ball": [("ellipse", (120, 160, 180, 220), "#d7263d")],
        "sea": [("rectangle", (0, 150, 300, 300), sea), ("rectangle", (120, 120, 180, 150), "#ffffff")],
        "hill": [("ellipse", (-40, 130, 200, 400), "#3b7a2a"), ("ellipse", (220, 30, 270, 80), "#ffd23f")],
    }
    for name, shapes in scenes.items():
        image = Image.new("RGB", (300, 300), sky)
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, 210, 300, 300), fill=field)
        for shape, box, colour in shapes:
            (draw.ellipse if shape == "ellipse" else draw.rectangle)(box, fill=colour)
        yield name, image


def untrained_captioner() -> Captioner:
    """Every part at its smallest, with random weights."""
    torch.manual_seed(0)
    vocabulary = Vocabulary.from_words(WORDS.split())
    network = efficientnet.build("efficientnet-lite0")
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # take over the statistics of the batch below, else random maps fade to nothing
    network.train()(torch.randn(8, 3, 128, 128))
    extractor = GridExtractor(network, GridSettings("efficientnet-lite0", input_size=128))
    model = build_model("xlan-tiny", vocab_size=len(vocabulary), feature_dim=extractor.feature_dim)
    return Captioner(model, vocabulary, extractor)


if __name__ == "__main__":
    sys.exit(main())
