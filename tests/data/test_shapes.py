"""Drawn shapes: true captions, held-out pairs, features that tell things apart."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from xlan.data.captions import load_captions
from xlan.data.shapes import COLOURS, FEATURE_DIM, SHAPES, Thing, describe, draw, make_shapes, relation, write_shapes
from xlan.errors import DataError
from xlan.text.vocab import Vocabulary
from xlan.vision.store import FeatureStore


def pair(caption: str) -> frozenset[str]:
    return frozenset(re.findall(rf"(?:{'|'.join(COLOURS)}) (?:{'|'.join(SHAPES)})", caption))


def test_splits_and_references() -> None:
    captions, features = make_shapes(80)
    assert captions.splits == {"train": 60, "val": 10, "test": 10}
    assert {len(image.captions) for image in captions} == {5}
    assert set(features) == {image.id for image in captions}
    assert {item.features.shape for item in features.values()} == {(2, FEATURE_DIM)}


def test_training_never_shows_a_held_out_pair() -> None:
    captions, _ = make_shapes(1000)
    pairs = {name: {pair(image.captions[0]) for image in captions.split(name)} for name in captions.splits}
    assert not pairs["train"] & (pairs["val"] | pairs["test"])
    assert len(pairs["val"]) > 20


def test_training_knows_every_word() -> None:
    captions, _ = make_shapes(1000)
    vocab = Vocabulary.build(captions.words("train"))
    assert all(word in vocab for name in captions.splits for words in captions.words(name) for word in words)


def test_the_same_seed_gives_the_same_and_less_is_a_beginning() -> None:
    (first, features), (again, more) = make_shapes(8, seed=3), make_shapes(16, seed=3)
    assert again.images[:8] == first.images
    assert all((features[i].features == more[i].features).all() for i in features)
    assert make_shapes(8, seed=4)[0].images != first.images


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        (((0, 0), (0, 2)), "above"),
        (((2, 2), (0, 1)), "below"),
        (((0, 1), (2, 1)), "left of"),
        (((2, 1), (0, 1)), "right of"),
    ],
)
def test_relations(cells: tuple[tuple[int, int], tuple[int, int]], word: str) -> None:
    first, second = (Thing("red", "circle", "small", *cell) for cell in cells)
    assert relation(first, second) == word


def test_captions_say_what_is_there() -> None:
    things = (Thing("red", "circle", "small", 0, 0), Thing("blue", "square", "large", 0, 2))
    captions = describe(things, np.random.default_rng(0))
    assert captions[:2] == ("a red circle above a blue square", "a blue square below a red circle")
    assert captions[2] == "a small red circle above a large blue square"
    assert all(pair(caption) == {"red circle", "blue square"} for caption in captions)


def test_the_picture_shows_the_colours_where_the_boxes_are() -> None:
    things = tuple(
        Thing(c, s, "large", i % 3, i // 3) for i, (c, s) in enumerate(zip(COLOURS, SHAPES * 2, strict=False))
    )
    pixels = np.asarray(draw(things))
    for thing in things:
        x0, y0, x1, y1 = (value * len(pixels) for value in thing.box)
        assert tuple(pixels[round((y0 + y1) / 2), round((x0 + x1) / 2)]) == COLOURS[thing.colour]
    assert tuple(pixels[-1, 0]) == (255, 255, 255)


def test_written_as_files_it_is_read_as_it_was(tmp_path: Path) -> None:
    captions, features = make_shapes(12, seed=5)
    for _ in range(2):
        write_shapes(tmp_path / "s", 12, 5, pictures=True)
    assert load_captions(tmp_path / "s").images == captions.images
    store = FeatureStore(tmp_path / "s" / "features")
    assert all((store[i].features == item.features).all() for i, item in features.items())
    assert len(list((tmp_path / "s").glob("*.png"))) == 12


def test_too_few_for_three_splits() -> None:
    with pytest.raises(DataError, match="at least 4 images"):
        make_shapes(3)
