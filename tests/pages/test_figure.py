"""The explanation as a PNG."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFont

from xlan.pages import figure
from xlan.pages.explanation import Account
from xlan.pages.figure import explanation_figure, figure_png, heat_panel
from xlan.types import Caption, Look, Thing, Word

Explained = Callable[..., Caption]
QUARTERS = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]], np.float32)


def at(image: Image.Image, x: int, y: int) -> tuple[int, ...]:
    return image.getpixel((x, y))  # type: ignore[return-value]


def test_heat_is_mixed_by_the_rule() -> None:
    panel = heat_panel(Image.new("RGB", (200, 100), (100, 100, 100)), np.array([0.1, 0.4, 0.2, 0.3]), QUARTERS)
    for (x, y), weight in {(50, 25): 0.1, (150, 25): 0.4, (50, 75): 0.2, (150, 75): 0.3}.items():
        alpha = 0.85 * weight / 0.4
        expected = [round(100 * (1 - alpha) + colour * alpha) for colour in figure.HEAT]
        assert list(at(panel, x, y)) == expected


def test_the_strongest_region_is_outlined_light_within_dark() -> None:
    panel = heat_panel(Image.new("RGB", (200, 100), "white"), np.array([0.1, 0.4, 0.2, 0.3]), QUARTERS)
    assert [at(panel, x, 25) for x in (100, 102, 105)] == [(0, 0, 0), (255, 255, 255), (0, 0, 0)]
    assert at(panel, 2, 25) != (0, 0, 0)


def test_where_boxes_overlap_the_strongest_shows() -> None:
    boxes = np.array([[0, 0, 1, 0.9], [0.2, 0, 1, 1]], np.float32)
    panel = heat_panel(Image.new("RGB", (100, 100), "black"), np.array([0.2, 0.8]), boxes)
    assert at(panel, 60, 50) == tuple(round(0.85 * colour) for colour in figure.HEAT)


def test_a_box_that_a_word_points_at_is_outlined_instead() -> None:
    picture, weights = Image.new("RGB", (200, 100), "white"), np.array([0.1, 0.4, 0.2, 0.3])
    panel = heat_panel(picture, weights, QUARTERS, (0.25, 0.25, 0.75, 0.75))
    assert [at(panel, x, 50) for x in (50, 52, 55)] == [(0, 0, 0), (255, 255, 255), (0, 0, 0)]
    assert at(panel, 100, 10) != (0, 0, 0)


@pytest.mark.parametrize("label", ["dog", "a very long name of a thing that does not fit into the picture", "狗"])
def test_a_named_box_has_its_name_on_it(explained: Explained, label: str) -> None:
    caption = explained("dog")
    word = replace(caption.words[0], look=Look((0.9, 0.0, 1.0, 0.1), 0.4, 3, 0))
    named = replace(caption, words=(word,), things=(Thing(label, (0.9, 0.0, 1.0, 0.1), 0.9),))
    without = replace(named, words=(replace(word, look=Look((0.9, 0.0, 1.0, 0.1), 0.4, 3)),))
    picture = Image.new("RGB", (320, 200), "white")
    drawn = [np.asarray(explanation_figure(picture, [Account("m", one)])) for one in (named, without)]
    assert drawn[0].shape == drawn[1].shape
    assert (drawn[0] != drawn[1]).any()


def test_a_region_too_small_to_outline() -> None:
    boxes = np.array([[0.5, 0.5, 0.505, 0.505]], np.float32)
    heat_panel(Image.new("RGB", (100, 100)), np.array([1.0]), boxes)


def test_rows_fill_up_and_then_follow_each_other(picture: Image.Image, explained: Explained) -> None:
    short = explanation_figure(picture, [Account("m", explained("a", "dog"))])
    long = explanation_figure(picture, [Account("m", explained(*["dog"] * 12))])
    assert short.width < long.width <= figure.ACROSS + 2 * figure.MARGIN
    assert long.height > short.height


def test_models_stand_below_each_other(picture: Image.Image, explained: Explained) -> None:
    one = explanation_figure(picture, [Account("m", explained("a", "dog"))])
    two = explanation_figure(picture, [Account("m", explained("a", "dog")), Account("n", explained("a", "cat"))])
    assert two.width == one.width
    assert two.height > 1.8 * one.height


@pytest.mark.parametrize("size", [(4000, 40), (40, 4000), (1, 1), (1200, 900)])
def test_pictures_of_any_form(size: tuple[int, int], explained: Explained) -> None:
    drawn = explanation_figure(Image.new("RGB", size, "navy"), [Account("m", explained("a", "dog"))])
    assert max(drawn.size) < 2600


def test_words_of_any_kind(picture: Image.Image) -> None:
    for word in ("", "x" * 200, "a\nb\x1b[31m", "\udcff", "chat‐huant naïf", "狗", "كلب"):
        caption = Caption(f"{word} {word}", -1.0, 0.5, (Word(word, 0.5),))
        figure_png(picture, [Account(word, caption)])


def test_no_words_at_all(picture: Image.Image) -> None:
    explanation_figure(picture, [Account("m", Caption("", -1.0, 0.5, ()))])


def test_letters_that_the_own_font_has_not_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ImageFont.load_default(24)
    assert figure._font("dog", 24).getname() == own.getname()  # type: ignore[union-attr]
    monkeypatch.setattr(figure, "FONTS", ("no-such-font.ttf",))
    assert figure._font("chien très", 24).getname() == own.getname()  # type: ignore[union-attr]


def test_the_file_tells_what_it_shows(picture: Image.Image, explained: Explained) -> None:
    read = Image.open(io.BytesIO(figure_png(picture, [Account("tiny", explained("a", "dog"))])))
    read.load()
    assert (read.format, read.mode) == ("PNG", "RGB")
    assert read.info["Description"] == "tiny: a dog"


def test_a_model_without_attention_is_called_so(picture: Image.Image) -> None:
    unseeing = Account("tiny", Caption("dog", -1.0, 0.5, (Word("dog", 0.5),)))
    read = Image.open(io.BytesIO(figure_png(picture, [unseeing])))
    assert "tiny: dog (no attention to show; this model does not attend to regions" in read.info["Description"]
    seeing = replace(unseeing.caption, words=(Word("dog", 0.5, np.array([1.0], np.float32)),))
    assert read.height > explanation_figure(picture, [Account("tiny", seeing)]).height, "a line more"
