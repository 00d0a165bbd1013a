"""The page's scripts give what Python gives: search, pixels, confidence. Run by node."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from PIL import Image

from xlan.confidence.calibration import Calibration, Curve
from xlan.confidence.evidence import CAPTION_FEATURES, WORD_FEATURES, Witness
from xlan.confidence.judge import Judge
from xlan.engines.interface import Floats, SearchRequest, Worth
from xlan.engines.numpy_search import Ints, runners_up, search
from xlan.errors import DecodingError
from xlan.text.vocab import Vocabulary
from xlan.types import Caption, Regions, SpecialIds, Word
from xlan.vision.familiar import Familiar
from xlan.vision.image import square_pixels
from xlan.vision.words import WordHead
from xlan.web.folder import _STATIC, RULES
from xlan.wording import worth_of

UnderNode: TypeAlias = Callable[[str, list[Any]], list[Any]]


@dataclass(frozen=True)
class Remembered:
    """The rows of `TableModel`: a number for each sentence."""

    numbers: Ints
    spatial: Floats | None = None
    channel: Floats | None = None


class TableModel:
    """What is remembered of a sentence is a number, which depends on all its words and chooses a row of a table."""

    def __init__(self, table: Floats) -> None:
        self.table = table
        self.vocab_size = table.shape[1]

    def step(self, tokens: Ints, rows: Remembered) -> tuple[Floats, Remembered]:
        following = (31 * rows.numbers + tokens + 1) % len(self.table)
        return self.table[following].copy(), Remembered(following, following[:, None].astype(np.float32))

    def select(self, rows: Remembered, index: Ints) -> Remembered:
        return Remembered(rows.numbers[index])


def by_python(table: Floats, special: SpecialIds, request: SearchRequest, worth: Worth | None) -> Any:
    model, fresh = TableModel(table), Remembered(np.zeros(1, np.int64))
    try:
        found = search(model, fresh, 1, special, request)[0]
    except DecodingError:
        return "error"
    found = [found[place] for place in request.order(found, worth)]
    others = runners_up(model, fresh, special, found[:1], request)[0]
    assert found[0].spatial is not None
    return [
        {
            "ids": list(one.ids),
            "words": list(one.words),
            "logProbs": list(one.log_probs),
            "total": one.total,
            "spatial": [] if one.spatial is None else one.spatial.tolist(),
            "runnersUp": [[list(pair) for pair in at] for at in others] if one is found[0] else [],
        }
        for one in found
    ]


def random_case(seed: int) -> tuple[Floats, SpecialIds, SearchRequest, Worth | None]:
    """Coarse values, so that many are equal; some models can end nowhere, some have one id for several things."""
    random = np.random.default_rng(seed)
    size = int(random.integers(6, 15))
    logits = np.round(random.normal(scale=2, size=(int(random.integers(2, 40)), size)) * 2) / 2
    table = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
    special = SpecialIds(0, 0, 0, size - 1) if seed % 3 == 0 else SpecialIds(0, 1, 2, 3)
    request = SearchRequest(
        beams=int(random.integers(1, 6)),
        max_length=int(random.integers(1, 9)),
        bad_endings=frozenset(random.integers(4, size - 1, size=int(random.integers(0, 4))).tolist()),
        forbidden=frozenset({special.pad, special.bos} - {special.eos}),
        attention=True,
        runners_up=int(random.integers(1, 5)),
        never_named=frozenset({special.pad, special.bos, special.eos, special.unk}),
        may_repeat=None if seed % 2 else frozenset(random.integers(0, size, size=4).tolist()),
    )
    forms = random.integers(0, 4, size=size)  # ids of one form are worth the same
    worth = Worth(random.normal(scale=3, size=4).astype(np.float32)[forms], forms) if seed % 5 else None
    return table, special, request, worth


def test_the_search_gives_what_python_finds(under_node: UnderNode) -> None:
    cases = [random_case(seed) for seed in range(400)]
    asked = [
        {
            "table": table.tolist(),
            "request": {
                "beams": request.beams,
                "maxLength": request.max_length,
                "special": {"pad": special.pad, "bos": special.bos, "eos": special.eos, "unk": special.unk},
                "badEndings": sorted(request.bad_endings),
                "runnersUp": request.runners_up,
                "mayRepeat": None if request.may_repeat is None else sorted(request.may_repeat),
                "worth": worth and {"ids": worth.ids.tolist(), "forms": [f"form {form}" for form in worth.forms]},
            },
        }
        for table, special, request, worth in cases
    ]
    lengths = set()
    for case, ours in zip(cases, under_node("search", asked), strict=True):
        theirs = by_python(*case)
        if theirs == "error":
            assert "No sentence" in ours["error"]
            continue
        lengths.add(len(theirs))
        for one, other in zip(theirs, ours, strict=True):
            assert one.pop("total") == pytest.approx(other.pop("total"), abs=1e-12)
            assert one == other
    assert len(lengths) > 3  # the cases are not all alike


def test_a_damaged_model_is_named(under_node: UnderNode) -> None:
    special = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    request = {"beams": 3, "maxLength": 5, "special": special, "badEndings": [], "runnersUp": 0}
    (answer,) = under_node("search", [{"table": [[None] * 6], "request": request}])
    assert answer == {"error": "The model returned numbers that are not finite. Is it damaged?"}


def test_a_model_without_attention_is_searched_too(under_node: UnderNode) -> None:
    special = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    request = {"beams": 2, "maxLength": 3, "special": special, "badEndings": [], "runnersUp": 0}
    (answer,) = under_node("unseeing", [{"logProbs": [-9, -9, -3, -9, -0.5, -2], "request": request}])
    assert answer == {"ids": [4, 4, 4], "spatial": [None, None, None]}


SIZES = [(64, 64), (64, 31), (65, 64), (300, 200), (7, 5), (640, 480), (1, 90), (777, 130), (193, 1201)]


def test_pixels_are_those_of_pillow(under_node: UnderNode) -> None:
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, size=(height, width, 3), dtype=np.uint8) for width, height in SIZES]
    asked = [
        {"data": picture.reshape(-1).tolist(), "width": picture.shape[1], "height": picture.shape[0], "size": 64}
        for picture in pictures
    ]
    for picture, ours in zip(pictures, under_node("squashed", asked), strict=True):
        theirs = square_pixels(Image.fromarray(picture), 64)
        np.testing.assert_array_equal(np.array(ours, np.uint8).reshape(64, 64, 3), theirs)


def test_a_large_photo_is_reduced_as_often_as_python_does(under_node: UnderNode) -> None:
    sizes = {(127, 300): 1, (128, 300): 2, (260, 256): 4, (1030, 512): 8, (2000, 2000): 8}
    asked = [
        {"data": [9] * (3 * width * height), "width": width, "height": height, "least": 64} for width, height in sizes
    ]
    for ((width, height), factor), ours in zip(sizes.items(), under_node("drafted", asked), strict=True):
        assert (ours["width"], ours["height"]) == (math.ceil(width / factor), math.ceil(height / factor))
        assert set(ours["data"]) == {9}


def curve(random: np.random.Generator, features: int) -> Curve:
    raw, true = (np.sort(random.random(5)) for _ in range(2))
    return Curve(tuple(random.normal(size=features)), tuple(raw), tuple(true))


@pytest.mark.parametrize("int8", [False, True])
def test_confidence_is_that_of_python(under_node: UnderNode, tmp_path: Path, int8: bool) -> None:
    random = np.random.default_rng(0)
    width, texts = 12, ["a", "pictures", "dog", "dogs", "benches", "women", "of", "glasses", "puppies", "grass", "bus"]
    familiar = Familiar.of(np.abs(random.normal(size=(20, 3, width))))
    head = WordHead(
        ("dogs", "bench", "dog", "woman", "puppy", "pictures"),
        random.normal(size=(6, width)).astype(np.float32),
        random.normal(size=6).astype(np.float32),
    )
    files = {"familiar": familiar.to_bytes(int8=int8), "head": head.to_bytes(int8=int8)}
    for name, content in files.items():  # what a file holds is rounded
        (tmp_path / name).write_bytes(content)
    familiar, head = Familiar.load(tmp_path / "familiar"), WordHead.load(tmp_path / "head")
    calibration = Calibration(curve(random, len(WORD_FEATURES)), curve(random, len(CAPTION_FEATURES)), 300)
    boxes = np.array([[0, 0, 1, 1], [0, 0, 0.5, 1], [0.5, 0, 1, 1]], np.float32)
    vocabulary = Vocabulary.from_words(texts)
    asked, expected = [], []
    for number in range(40):
        regions = Regions(np.abs(random.normal(size=(3, width))).astype(np.float32), boxes)
        captions = [
            Caption(
                "",
                -1.0,
                float(random.random()),
                tuple(Word(str(text), float(random.random())) for text in random.choice(texts, size=count)),
            )
            for count in random.integers(0, 6, size=1 + number % 3)
        ]
        with_head, with_familiar, with_curves = number % 2 == 0, number % 5 != 0, number % 4 != 3
        judge = Judge(
            Witness(head if with_head else None, familiar if with_familiar else None),
            calibration if with_curves else None,
        )
        first, *others = captions
        sight = judge.witness.look(regions)
        judged = judge.judge(
            Caption(first.text, first.score, first.confidence, first.words, others=tuple(others)), sight
        )
        expected.append(([judged, *judged.others], worth_of(sight.worth, vocabulary)))
        as_curve = {name: vars(getattr(calibration, name)) for name in ("word", "caption")}
        asked.append(
            {
                "rules": RULES,
                "vocabulary": list(vocabulary.words),
                "familiar": base64.b64encode(files["familiar"]).decode() if with_familiar else None,
                "head": base64.b64encode(files["head"]).decode() if with_head else None,
                "calibration": as_curve if with_curves else None,
                "captions": [
                    {
                        "confidence": one.confidence,
                        "words": [{"text": word.text, "probability": word.probability} for word in one.words],
                    }
                    for one in captions
                ],
                "regions": {
                    "features": regions.features.reshape(-1).tolist(),
                    "count": 3,
                    "width": width,
                    "boxes": boxes.tolist(),
                },
            }
        )
    for answer, (theirs, worth) in zip(under_node("judged", asked), expected, strict=True):
        ours = answer["captions"]
        assert (worth is None) == (answer["worth"] is None)
        if worth is not None:
            assert answer["worth"]["ids"] == pytest.approx(worth.ids.tolist(), abs=1e-5)
            assert len({*zip(answer["worth"]["forms"], worth.forms.tolist(), strict=True)}) == len({*worth.forms})
        assert [one["confidence"] for one in ours] == pytest.approx([one.confidence for one in theirs], abs=1e-5)
        for one, other in zip(ours, theirs, strict=True):
            assert one["words"] == pytest.approx([word.confidence for word in other.words], abs=1e-5)


@pytest.mark.parametrize("path", sorted(_STATIC.iterdir()), ids=lambda path: path.name)
def test_scripts_fetch_nothing_from_elsewhere_and_make_no_markup(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.[\w/]+|@import|importScripts", text) == []
    for way in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage", "cookie"):
        assert way not in text
    assert text.startswith("// @ts-check\n")
