"""Drawn shapes: a data set made from nothing, small enough to train on in a minute and honest enough to tell
success.

A picture shows two coloured shapes in different cells of a grid; captions say what is there and how they lie
to each other ("a red circle above a blue square"). Validation and test hold pairs of things that training
never shows together, so a model that learnt whole sentences by heart fails and one that looks at the regions
does not.

`make_shapes` gives captions and region features; `draw` gives the picture itself, for what starts from
pixels.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from xlan.data.captions import write_captions
from xlan.data.records import CaptionedImage, CaptionSet
from xlan.errors import DataError
from xlan.files import atomic_path
from xlan.text.tokenize import tokenize
from xlan.types import Regions
from xlan.vision.store import FeatureStoreWriter

if TYPE_CHECKING:
    from PIL import Image

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 210, 50),
    "purple": (150, 60, 180),
    "black": (20, 20, 20),
}
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = ("small", "large")
GRID = 3
PICTURE = 96  # pixels on a side
FEATURE_DIM = 32
HELD_OUT = 5  # one pair in five is for validation and test
NOISE = 0.1


@dataclass(frozen=True)
class Thing:
    """One shape in a picture: `column` and `row` are its cell, counted from the upper left."""

    colour: str
    shape: str
    size: str
    column: int
    row: int

    @property
    def name(self) -> str:
        """The thing without its size, as captions call it."""
        return f"{self.colour} {self.shape}"

    @property
    def box(self) -> tuple[float, float, float, float]:
        """x0 y0 x1 y1 as fractions of the picture."""
        half = (0.42 if self.size == "large" else 0.24) / GRID
        x, y = (self.column + 0.5) / GRID, (self.row + 0.5) / GRID
        return x - half, y - half, x + half, y + half


def make_shapes(n: int, seed: int = 0) -> tuple[CaptionSet, dict[str, Regions]]:
    """`n` images with five captions each and one region per thing.

    Three quarters are for training; the rest, made of pairs that training lacks, is shared by val and test.
    The same (n, seed) gives the same images, and a smaller n a beginning of the larger.

    Returns:
        the captions, and for each image id its regions: features `[2, 32]` float32 that encode colour, shape,
        size and place of a thing through a fixed random projection, with noise.
    """
    if n < 4:
        raise DataError(f"make_shapes needs at least 4 images to fill three splits, got {n}")
    images, features = [], {}
    for number in range(n):
        random = np.random.default_rng([seed, number])
        split = ("train", "train", "train", "val" if number % 8 == 3 else "test")[number % 4]
        things = scene(random, held_out=split != "train")
        image_id = f"shapes-{number:06d}"
        captions = describe(things, random)
        words = tuple(tokenize(caption) for caption in captions)
        images.append(CaptionedImage(image_id, split, f"{image_id}.png", captions, words))
        features[image_id] = regions_of(things, random)
    return CaptionSet(tuple(images), f"{n} drawn shapes, seed {seed}", "shapes"), features


def write_shapes(folder: str | os.PathLike[str], n: int, seed: int = 0, *, pictures: bool = False) -> None:
    """Write what `make_shapes` makes, as a user's own data would lie there: `captions.jsonl` and a store
    `features/`.

    Args:
        folder: created if needed; a store that already exists is continued.
        n: number of images.
        seed: which images.
        pictures: draw them too, as PNG files beside the captions.

    Raises:
        DataError: the folder has captions of somebody else, which would be lost.
    """
    captions, features = make_shapes(n, seed)
    target = Path(folder)
    if (target / "captions.jsonl").exists() and not (target / "features").exists():
        raise DataError(f"{target / 'captions.jsonl'}: already exists and would be lost; choose another folder")
    with FeatureStoreWriter(target / "features", dtype="float32", extractor={"name": "shapes", "seed": seed}) as writer:
        for image_id, regions in features.items():
            if image_id not in writer:
                writer.add(image_id, regions)
    if pictures:
        for number, image in enumerate(captions):
            things = scene(np.random.default_rng([seed, number]), held_out=image.split != "train")
            with atomic_path(target / image.file) as temporary:
                draw(things).save(temporary, format="png")
    write_captions(target / "captions.jsonl", captions)


def scene(random: np.random.Generator, *, held_out: bool) -> tuple[Thing, Thing]:
    """Two different things in two cells, of a pair that belongs to the training part or to the held-out
    one."""
    while True:
        first, second = _thing(random), _thing(random)
        apart = (first.column, first.row) != (second.column, second.row) and first.name != second.name
        if apart and _is_held_out(first, second) == held_out:
            return first, second


def _thing(random: np.random.Generator) -> Thing:
    colour, shape, size = (options[random.integers(len(options))] for options in (tuple(COLOURS), SHAPES, SIZES))
    return Thing(colour, shape, size, int(random.integers(GRID)), int(random.integers(GRID)))


def _is_held_out(first: Thing, second: Thing) -> bool:
    pair = " and ".join(sorted((first.name, second.name)))
    return hashlib.sha256(pair.encode()).digest()[0] % HELD_OUT == 0


def describe(things: tuple[Thing, Thing], random: np.random.Generator) -> tuple[str, ...]:
    """Five captions: how the two lie to each other, from either side, with and without their sizes."""
    first, second = things
    forward, backward = relation(first, second), relation(second, first)
    a, b = f"a {first.name}", f"a {second.name}"
    big_a, big_b = f"a {first.size} {first.name}", f"a {second.size} {second.name}"
    captions = [
        f"{a} {forward} {b}",
        f"{b} {backward} {a}",
        f"{big_a} {forward} {big_b}",
        f"there is {a} {forward} {b}",
        f"{a} and {b}" if random.random() < 0.5 else f"{b} and {a}",
    ]
    return tuple(captions)


def relation(first: Thing, second: Thing) -> str:
    """Where the first thing lies, seen from the second; up and down go before left and right."""
    if first.row != second.row:
        return "above" if first.row < second.row else "below"
    return "left of" if first.column < second.column else "right of"


def regions_of(things: tuple[Thing, ...], random: np.random.Generator) -> Regions:
    """One region for each thing, in random order, as a detector would give them."""
    order = random.permutation(len(things))
    chosen = [things[i] for i in order]
    codes = np.stack([_code(thing) for thing in chosen]) @ _PROJECTION
    features = codes + NOISE * random.standard_normal(codes.shape)
    boxes = np.array([thing.box for thing in chosen], dtype=np.float32)
    return Regions(features.astype(np.float32), boxes, None, PICTURE, PICTURE)


def _code(thing: Thing) -> npt.NDArray[np.float64]:
    """One-hot colour, shape, size, column and row of a thing."""
    parts = (
        (list(COLOURS).index(thing.colour), len(COLOURS)),
        (SHAPES.index(thing.shape), len(SHAPES)),
        (SIZES.index(thing.size), len(SIZES)),
        (thing.column, GRID),
        (thing.row, GRID),
    )
    return np.concatenate([np.eye(size)[index] for index, size in parts])


_CODE_SIZE = len(COLOURS) + len(SHAPES) + len(SIZES) + 2 * GRID
_PROJECTION = np.random.default_rng(2020).standard_normal((_CODE_SIZE, FEATURE_DIM)) / np.sqrt(5)


def draw(things: tuple[Thing, ...]) -> Image.Image:
    """The picture of some things, 96 × 96 pixels, on white."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (PICTURE, PICTURE), (255, 255, 255))
    pen = ImageDraw.Draw(picture)
    for thing in things:
        x0, y0, x1, y1 = (round(value * PICTURE) for value in thing.box)
        fill = COLOURS[thing.colour]
        if thing.shape == "circle":
            pen.ellipse((x0, y0, x1, y1), fill=fill)
        elif thing.shape == "square":
            pen.rectangle((x0, y0, x1, y1), fill=fill)
        elif thing.shape == "triangle":
            pen.polygon(((x0, y1), (x1, y1), ((x0 + x1) // 2, y0)), fill=fill)
        else:
            third_x, third_y = (x1 - x0) // 3, (y1 - y0) // 3
            pen.rectangle((x0 + third_x, y0, x1 - third_x, y1), fill=fill)
            pen.rectangle((x0, y0 + third_y, x1, y1 - third_y), fill=fill)
    return picture
