"""What the vision network is adapted to: the words people use for a picture, and (optionally) boxes of things in it.

Everything random about a picture (crop, mirror, brightness) comes from the seed, the epoch and the picture's number, so
a run that is resumed at step n sees what an uninterrupted run would have seen.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance

from xlan.ahead import map_ahead
from xlan.errors import DataError, ImageError
from xlan.files import read_json
from xlan.text.content import is_content
from xlan.text.tokenize import tokenize
from xlan.vision.image import open_image, square_pixels
from xlan.vision.sources import Picture

S = TypeVar("S")
Floats = npt.NDArray[np.float32]
MAX_BOXES_BYTES = 1 << 30
_SLACK = 0.05  # detectors round outwards


def caption_words(pictures: Sequence[Picture], *, size: int) -> list[str]:
    """The `size` content words that the captions of most pictures mention, commonest first."""
    counts: Counter[str] = Counter()
    for picture in pictures:
        counts.update(_words_of(picture))
    # Ties by spelling: a resumed run must find the same words in the same order.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = [word for word in ranked if is_content(word)]
    if len(words) < size:
        raise DataError(f"the captions have {len(words)} content words, fewer than the {size} asked for (--words)")
    return words[:size]


def _words_of(picture: Picture) -> set[str]:
    return {word for caption in picture.captions for word in tokenize(caption)}


def word_targets(pictures: Sequence[Picture], words: Sequence[str]) -> Floats:
    """`[P, W]`: which share of a picture's captions mentions each word."""
    number = {word: i for i, word in enumerate(words)}
    targets = np.zeros((len(pictures), len(words)), dtype=np.float32)
    for row, picture in zip(targets, pictures, strict=True):
        for caption in picture.captions:
            mentioned = {number[word] for word in tokenize(caption) if word in number}
            row[list(mentioned)] += 1.0 / len(picture.captions)
    return targets


@dataclass(frozen=True)
class BoxLabels:
    """Boxes of things, by picture id. Pictures that are not listed are unknown, not empty.

    Attributes:
        classes: their names.
        boxes: id → `[n, 6]`: class, score, x0, y0, x1, y1 (fractions of the picture).
        unknown: id → classes that the picture may or may not show.
        by_people: ids of the pictures that people looked at.
    """

    classes: tuple[str, ...]
    boxes: dict[str, Floats]
    unknown: dict[str, list[int]] = field(default_factory=dict)
    by_people: frozenset[str] = frozenset()

    @classmethod
    def load(cls, *paths: str | os.PathLike[str]) -> BoxLabels:
        """Read files `{"classes": [...], "boxes": {id: [row, ...]}}`, each plain, `.gz` or `.xz`.

        Rows of six numbers `[class, score, x0, y0, x1, y1]` were made by a machine; of two such files that list a
        picture, the later counts. Rows of five `[class, x0, y0, x1, y1]` were made by people: they replace the
        machine's boxes of every class that people marked anywhere in that file. Classes that they never marked stay
        the machine's, or unknown where no machine looked.

        Raises:
            DataError: a file is not of this form.
        """
        files = [_BoxFile.read(Path(path)) for path in paths]
        classes = tuple(dict.fromkeys(name for file in files for name in file.classes))
        boxes: dict[str, Floats] = {}
        for file in files:
            if not file.by_people:
                boxes.update((image, file.numbered(rows, classes)) for image, rows in file.rows.items())
        unknown: dict[str, list[int]] = {}
        for file in files:
            if file.by_people:
                marked = {classes.index(file.classes[int(n)]) for rows in file.rows.values() for n in set(rows[:, 0])}
                others = [number for number in range(len(classes)) if number not in marked]
                for image, rows in file.rows.items():
                    found = boxes.get(image)
                    if found is None:
                        unknown[image], found = others, np.zeros((0, 6), dtype=np.float32)
                    kept = found[np.isin(found[:, 0], others)]
                    boxes[image] = np.concatenate([kept, file.numbered(rows, classes)])
        people = frozenset(image for file in files if file.by_people for image in file.rows)
        return cls(classes, boxes, unknown, people)

    def targets(self, image: str, view: View, *, cells: int) -> Floats:
        """`[classes, cells, cells]` as `cell_targets` makes them; NaN for what is unknown."""
        if image not in self.boxes:
            return np.full((len(self.classes), cells, cells), np.nan, dtype=np.float32)
        targets = cell_targets(self.boxes[image], view, classes=len(self.classes), cells=cells)
        targets[self.unknown.get(image, [])] = np.nan
        return targets


@dataclass(frozen=True)
class _BoxFile:
    """One file of boxes: rows `[n, 6]` by picture id, with the score 1 where people made them."""

    classes: tuple[str, ...]
    rows: dict[str, Floats]
    by_people: bool

    @classmethod
    def read(cls, path: Path) -> _BoxFile:
        value = read_json(path, max_bytes=MAX_BOXES_BYTES)
        try:
            classes = tuple(str(name) for name in value["classes"])
            width = next((len(rows[0]) for rows in value["boxes"].values() if rows), 6)
            if width not in (5, 6):
                raise ValueError(f"rows have {width} numbers, expected 5 or 6")
            rows = {str(k): np.asarray(v, dtype=np.float32) for k, v in value["boxes"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: is not a file of boxes: {type(error).__name__}: {error}") from None
        for image_id, found in rows.items():
            if fault := _fault(found, width=width, classes=len(classes)):
                raise DataError(f"{path}: boxes of {image_id} {fault}")
        rows = {image_id: found.reshape(-1, width) for image_id, found in rows.items()}
        if width == 5:
            rows = {image_id: np.insert(found, 1, 1.0, axis=1) for image_id, found in rows.items()}
        return cls(classes, rows, width == 5)

    def numbered(self, rows: Floats, classes: tuple[str, ...]) -> Floats:
        """The rows with classes as they are numbered in a longer list."""
        if self.classes == classes[: len(self.classes)]:
            return rows
        numbers = np.array([classes.index(name) for name in self.classes], dtype=np.float32)
        return np.concatenate([numbers[rows[:, :1].astype(int)], rows[:, 1:]], axis=1)


def _fault(rows: Floats, *, width: int, classes: int) -> str:
    """What is wrong with the boxes of a picture; empty when nothing is."""
    if not rows.size:
        return ""
    if rows.ndim != 2 or rows.shape[1] != width:
        return f"are {list(rows.shape)}, expected rows of {width} numbers like the first in the file"
    if not np.isfinite(rows).all():
        return "hold values that are not finite"
    if rows[:, 0].min() < 0 or rows[:, 0].max() >= classes:
        return f"have a class outside 0 to {classes - 1}"
    corners = rows[:, -4:]
    if corners.min() < -_SLACK or corners.max() > 1 + _SLACK:
        return f"reach from {corners.min():g} to {corners.max():g}; expected fractions of the picture, not pixels"
    if (corners[:, 2:] < corners[:, :2]).any():
        return "end before they begin; expected the corners x0, y0, x1, y1, not x, y, width, height"
    return ""


@dataclass(frozen=True)
class View:
    """Which part of a picture is looked at, and how.

    Attributes:
        box: x0, y0, x1, y1 as fractions of the picture.
        mirrored: left and right exchanged.
        brightness: factor.
        contrast: factor.
    """

    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    mirrored: bool = False
    brightness: float = 1.0
    contrast: float = 1.0


WHOLE = View()


def random_view(random: np.random.Generator, *, min_area: float) -> View:
    """A crop of at least `min_area` of the picture, at a random place, mirrored half of the time."""
    area, stretch = random.uniform(min_area, 1.0), math.exp(random.uniform(-0.2, 0.2))
    width, height = min(1.0, math.sqrt(area) * stretch), min(1.0, math.sqrt(area) / stretch)
    x, y = random.uniform(0, 1 - width), random.uniform(0, 1 - height)
    brightness, contrast = random.uniform(0.8, 1.2), random.uniform(0.8, 1.2)
    return View((x, y, x + width, y + height), bool(random.random() < 0.5), brightness, contrast)


def view_pixels(image: Image.Image, view: View, size: int) -> npt.NDArray[np.uint8]:
    """`[size, size, 3]`: the view of an RGB image."""
    if view == WHOLE:
        return square_pixels(image, size)
    width, height = image.size
    box = (view.box[0] * width, view.box[1] * height, view.box[2] * width, view.box[3] * height)
    image = image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
    if view.mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = ImageEnhance.Brightness(image).enhance(view.brightness)
    return np.array(ImageEnhance.Contrast(image).enhance(view.contrast), dtype=np.uint8)


def cell_targets(boxes: Floats, view: View, *, classes: int, cells: int) -> Floats:
    """`[classes, cells, cells]`: how much of each cell of the view a box of each class covers, times its score."""
    targets = np.zeros((classes, cells, cells), dtype=np.float32)
    x0, y0, x1, y1 = view.box
    for label, score, *corners in boxes.tolist():
        left, right = (corners[0] - x0) / (x1 - x0), (corners[2] - x0) / (x1 - x0)
        top, bottom = (corners[1] - y0) / (y1 - y0), (corners[3] - y0) / (y1 - y0)
        if view.mirrored:
            left, right = 1 - right, 1 - left
        cover = np.outer(_cover(top, bottom, cells), _cover(left, right, cells)) * min(1.0, 0.5 + score)
        np.maximum(targets[int(label)], cover, out=targets[int(label)])
    return targets


def _cover(low: float, high: float, cells: int) -> Floats:
    """`[cells]`: the share of each cell of 0–1 that the interval covers."""
    edges = np.clip(np.array([low, high]) * cells, 0, cells)
    starts = np.arange(cells)
    cover = np.clip(np.minimum(edges[1], starts + 1) - np.maximum(edges[0], starts), 0, 1)
    return np.asarray(cover, dtype=np.float32)


@dataclass(frozen=True)
class Sample:
    """One picture as the network sees it.

    Attributes:
        number: which picture.
        pixels: `[S, S, 3]`.
        cells: `[K, G, G]` box targets, NaN where unknown; None without boxes.
    """

    number: int
    pixels: npt.NDArray[np.uint8]
    cells: Floats | None


def training_plan(pictures: int, *, batch: int, first_step: int, seed: int) -> Iterator[list[tuple[int, int]]]:
    """Endless shuffled batches of picture numbers, each with its epoch, from step `first_step` on.

    Raises:
        DataError: there are fewer pictures than one batch.
    """
    steps = pictures // batch
    if steps == 0:
        raise DataError(f"{pictures} training pictures are fewer than one batch of {batch}")

    def plan() -> Iterator[list[tuple[int, int]]]:
        step = first_step
        while True:
            epoch, place = divmod(step, steps)
            order = np.random.default_rng((seed, epoch)).permutation(pictures)
            for start in range(place * batch, steps * batch, batch):
                yield [(int(number), epoch) for number in order[start : start + batch]]
            step = (epoch + 1) * steps

    return plan()


def evaluation_plan(pictures: int, *, batch: int) -> Iterator[list[tuple[int, int]]]:
    """Every picture once, in order; epoch -1 stands for the whole picture."""
    return ([(n, -1) for n in range(i, min(i + batch, pictures))] for i in range(0, pictures, batch))


def viewed(
    picture: Picture, number: int, epoch: int, *, size: int, min_area: float, seed: int
) -> tuple[Image.Image, View]:
    """A picture opened, and the view of it that belongs to an epoch (-1: the whole picture).

    Raises:
        DataError: the picture cannot be used.
    """
    view = WHOLE if epoch < 0 else random_view(np.random.default_rng((seed, epoch, number)), min_area=min_area)
    try:
        return open_image(picture.read(), name=picture.name, min_side=2 * size), view
    except ImageError as error:
        raise DataError(f"a picture of the dataset cannot be used: {error}") from None


class ViewLoader(ABC, Generic[S]):
    """Views of pictures in batches, decoded ahead by a few threads.

    Args:
        pictures: what to load.
        size: side of the square views.
        threads: decoding threads; 1 ms a picture against tens for a training step, so two are plenty.
        min_area: smallest view in training, as a share of the picture.
        seed: of everything random.
    """

    def __init__(self, pictures: Sequence[Picture], *, size: int, threads: int, min_area: float, seed: int) -> None:
        self.pictures, self.size, self.threads, self.min_area, self.seed = pictures, size, threads, min_area, seed

    def steps_per_epoch(self, batch: int) -> int:
        """Whole batches in one pass over the pictures."""
        return len(self.pictures) // batch

    def training(self, *, batch: int, first_step: int) -> Iterator[list[S]]:
        """Endless shuffled batches of random views, from step `first_step` on."""
        plan = training_plan(len(self.pictures), batch=batch, first_step=first_step, seed=self.seed)
        return map_ahead(self._batch, plan, threads=self.threads, ahead=max(2, self.threads))

    def evaluation(self, *, batch: int) -> Iterator[list[S]]:
        """Every picture once, whole, in order."""
        plan = evaluation_plan(len(self.pictures), batch=batch)
        return map_ahead(self._batch, plan, threads=self.threads, ahead=max(2, self.threads))

    @abstractmethod
    def sample(self, picture: Picture, number: int, pixels: npt.NDArray[np.uint8], view: View) -> S:
        """One picture as the network sees it; `pixels` `[S, S, 3]` are what the view shows."""

    def _batch(self, plan: list[tuple[int, int]]) -> list[S]:
        return [self._load(number, epoch) for number, epoch in plan]

    def _load(self, number: int, epoch: int) -> S:
        picture = self.pictures[number]
        image, view = viewed(picture, number, epoch, size=self.size, min_area=self.min_area, seed=self.seed)
        return self.sample(picture, number, view_pixels(image, view, self.size), view)


class Loader(ViewLoader[Sample]):
    """Pictures with what their cells show, where boxes tell it.

    Args:
        pictures: what to load.
        size: side of the square views.
        boxes: extra labels, if any, with `cells` as the side of their grid.
        threads: decoding threads.
        min_area: smallest view in training.
        seed: of everything random.
    """

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        size: int,
        boxes: BoxLabels | None = None,
        cells: int = 7,
        threads: int = 2,
        min_area: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(pictures, size=size, threads=threads, min_area=min_area, seed=seed)
        self.boxes, self.cells = boxes, cells

    def sample(self, picture: Picture, number: int, pixels: npt.NDArray[np.uint8], view: View) -> Sample:
        """With the targets of the cells, if there are boxes."""
        cells = self.boxes.targets(picture.id, view, cells=self.cells) if self.boxes is not None else None
        return Sample(number, pixels, cells)
