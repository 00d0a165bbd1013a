"""The explanation page: complete, harmless, and readable by everybody."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from xlan.looking import strongest
from xlan.pages.explanation import SIDE, Account, explanation_page, gate_in_words, percent, where_it_looked
from xlan.types import Caption, Look, Thing, Word

EVIL = "\"><script>alert(1)</script><img src=x onerror='y'>"
Explained = Callable[..., Caption]


class Tags(HTMLParser):
    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str, kind: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag and attributes.get("class") == kind]


def embedded(document: str) -> list[Image.Image]:
    found = re.findall(r'"data:image/jpeg;base64,([^"]+)"', document)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def one(picture: Image.Image, caption: Caption, **options: Any) -> str:
    return explanation_page(picture, "dog.jpg", [Account("tiny", caption)], **options)


def test_every_word_has_its_card(picture: Image.Image, explained: Explained) -> None:
    caption = explained("a", "dog", "runs")
    tags = Tags(one(picture, caption))
    assert len(tags.of("li", "word")) == 3
    assert len(tags.of("svg", "shot")) == 4  # and the picture itself
    said = tags.text.replace("\N{NO-BREAK SPACE}", " ")
    for word in caption.words:
        assert f"{word.text} {round(100 * word.probability)} %" in said
    for expected in ("a dog runs", "0.47", "−3.25", "horse under 1 %", "a horse 0.31", "a cat 0.25", "tiny"):
        assert expected in said


def test_the_heat_drawn_is_the_attention(picture: Image.Image, explained: Explained) -> None:
    caption = explained("a", "dog")
    cards = one(picture, caption).split('<li class="word">')[1:]
    for card, word in zip(cards, caption.words, strict=True):
        drawn = {int(i): float(w) for i, w in re.findall(r'data-region="(\d+)" data-weight="([\d.]+)"', card)}
        assert word.spatial is not None
        assert 0 not in drawn  # the picture as a whole
        for region, weight in drawn.items():
            assert weight == pytest.approx(float(word.spatial[region]), abs=5e-5)


def named(caption: Caption, *looks: Look | None) -> Caption:
    words = tuple(replace(word, look=look) for word, look in zip(caption.words, looks, strict=True))
    things = (Thing("dog<b>", (0.5, 0.5, 1.0, 1.0), 0.9, "wet"),)
    return replace(caption, words=words, things=things)


def test_a_word_points_at_a_named_box(picture: Image.Image, explained: Explained) -> None:
    box = (0.5, 0.5, 1.0, 1.0)
    document = one(picture, named(explained("a", "dog"), None, Look(box, 0.4, 3, 0)))
    plain, pointing = document.split('<li class="word">')[1:]
    assert 'class="plate"' not in plain
    assert "wet dog&lt;b&gt;</text>" in pointing
    assert 'x="0.5" y="0.5" width="0.5" height="0.5" class="edge"' in pointing
    assert "most at the wet dog&lt;b&gt;, bottom right (40" in pointing
    assert "Names are those of the detector that made the regions." in document


def test_a_box_beside_a_grid_is_said_to_be_one(picture: Image.Image, explained: Explained) -> None:
    document = one(picture, named(explained("dog"), Look((0.5, 0.5, 1.0, 1.0), 0.4, None, 0)))
    assert "most inside the box of the wet dog&lt;b&gt;, bottom right (40" in document
    assert "a detector that looked at the picture beside the model" in document


def test_without_names_none_are_explained(picture: Image.Image, explained: Explained) -> None:
    assert "Names are" not in one(picture, explained("dog"))


def test_the_picture_is_embedded_once_and_small(explained: Explained) -> None:
    document = one(Image.new("RGB", (3000, 9000)), explained("a", "dog", "runs"))
    (photo,) = embedded(document)
    assert photo.size == (SIDE // 3, SIDE)
    assert f'viewBox="0 0 {SIDE // 3} {SIDE}"' in document


def test_each_picture_has_words_for_those_who_do_not_see_it(picture: Image.Image, explained: Explained) -> None:
    labels = [svg["aria-label"] or "" for svg in Tags(one(picture, explained("dog"))).of("svg", "shot")]
    assert labels[0] == "the picture, described as: dog"
    assert re.fullmatch(r"“dog”: .*(at|in) the [a-z ]+ \(\d+\s%\), .*\d\s% on the picture as a whole", labels[1])


def test_where_it_looked_in_words() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 0.5, 0.5], [0.4, 0.4, 0.6, 0.6]], np.float32)
    said = where_it_looked(np.array([0.3, 0.6, 0.1]), boxes).replace("\N{NO-BREAK SPACE}", " ")
    assert said == "most at the top left (60 %), 30 % on the picture as a whole"
    assert where_it_looked(np.array([0, 0.51, 0.49]), boxes).startswith(
        "evenly all over, a little more at the top left"
    )
    assert where_it_looked(np.array([1.0]), boxes[2:]).startswith("most in the centre (100")
    assert "most" not in where_it_looked(np.array([1.0]), boxes[:1])
    assert where_it_looked(np.array([0.0]), boxes[2:]) == "nowhere in particular"


def test_the_gate_in_words() -> None:
    said = gate_in_words(np.array([0.0, 0.05, 0.5, 0.95], np.float32)).replace("\N{NO-BREAK SPACE}", " ")
    assert said == "0.38 on average; 50 % nearly shut, 25 % wide open"


@pytest.mark.parametrize(("gates", "bars"), [(1, 1), (64, 64), (1000, 64)])
def test_the_strip_has_few_bars(picture: Image.Image, gates: int, bars: int) -> None:
    word = Word("dog", 0.5, None, np.full(gates, 0.25, np.float32))
    document = one(picture, Caption("dog", -1.0, 0.5, (word,)))
    assert document.count('y="0.750" width="1" height="0.250"') == bars


def test_a_model_without_gate_has_no_strip(picture: Image.Image, explained: Explained) -> None:
    assert 'class="strip"' not in one(picture, explained("dog", gate=False))


def test_captions_without_attention_or_words(picture: Image.Image) -> None:
    plain = one(picture, Caption("dog", -1.0, 0.5, (Word("dog", 0.5),)))
    assert "tiny: no attention to show; this model does not attend to regions" in plain
    assert "data-region" not in plain
    assert "There are no words to explain" in one(picture, Caption("", -1.0, 0.5, ()))


def test_of_two_models_the_one_without_attention_is_named(picture: Image.Image, explained: Explained) -> None:
    unseeing = Caption("dog", -1.0, 0.5, (Word("dog", 0.5),))
    both = explanation_page(picture, "x.jpg", [Account("tiny", unseeing), Account("other", explained("dog"))])
    assert "tiny: no attention to show" in both
    assert "Heat" in both
    assert "other: no attention" not in both


def test_one_region(picture: Image.Image, explained: Explained) -> None:
    document = one(picture, explained("dog", boxes=np.array([[0, 0, 1, 1]], np.float32)))
    assert "100\N{NO-BREAK SPACE}% on the picture as a whole" in document


def test_two_models_stand_beside_each_other(picture: Image.Image, explained: Explained) -> None:
    accounts = [Account("plain", explained("a", "cat", gate=False)), Account("bilinear", explained("dog"))]
    document = explanation_page(picture, "x.jpg", accounts)
    tags = Tags(document)
    assert len(tags.of("section", "account")) == 2
    assert len(tags.of("li", "word")) == 3
    assert "What plain and bilinear said" in tags.text
    assert document.count('id="photo"') == 1


def test_drawn_captions_are_called_so(picture: Image.Image, explained: Explained) -> None:
    assert "Also drawn" in explanation_page(picture, "x", [Account("m", explained("dog"), drawn=True)])
    assert "Also drawn" not in one(picture, explained("dog"))


def test_text_from_outside_stays_text(picture: Image.Image) -> None:
    boxes = np.array([[0, 0, 0.5, 1]], np.float32)
    word = Word(EVIL, 0.5, np.ones(1, np.float32), None, ((EVIL, 0.1),))
    caption = Caption(EVIL, -1.0, 0.5, (word,), (Caption(EVIL, -2.0, 0.2, ()),), boxes)
    for accounts in ([Account(EVIL, caption)], [Account(EVIL, caption)] * 2):
        tags = Tags(explanation_page(picture, EVIL, accounts))
        assert not {"script", "img"} & {tag for tag, _ in tags.found}
        assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
        assert tags.text.count(EVIL) >= 7


def test_nothing_is_fetched(picture: Image.Image, explained: Explained) -> None:
    document = one(picture, explained("a", "dog"))
    assert "default-src 'none'" in document
    assert not {"script", "link", "iframe"} & {tag for tag, _ in Tags(document).found}
    for address in re.findall(r'(?:src|href)="([^"]*)"', document):
        assert address == "#photo" or address.startswith("data:image/jpeg;base64,")


def test_names_that_are_no_text(picture: Image.Image, explained: Explained) -> None:
    explanation_page(picture, "\udcff.jpg", [Account("m", explained("dog"))]).encode("utf-8")


@pytest.mark.parametrize(
    ("share", "said"), [(0, "0 %"), (0.004, "under 1 %"), (0.5, "50 %"), (0.996, "99 %"), (1, "100 %")]
)
def test_shares_in_words(share: float, said: str) -> None:
    assert percent(share).replace("\N{NO-BREAK SPACE}", " ") == said


def assert_the_strongest_place_is_hot(page: Any, caption: Caption) -> None:
    word, boxes = caption.words[0], caption.boxes
    assert word.spatial is not None
    assert boxes is not None
    x0, y0, x1, y1 = boxes[strongest(word.spatial, boxes)]
    shown = Image.open(io.BytesIO(page.locator(".word .shot").first.screenshot())).convert("RGB")
    red, green, blue = shown.getpixel((int((x0 + x1) / 2 * shown.width), int((y0 + y1) / 2 * shown.height)))  # type: ignore[misc]
    assert red > green + 80 > blue


@pytest.mark.slow
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_it_and_axe_finds_no_fault(
    page_of: Callable[..., Any],
    tmp_path: Path,
    explained: Explained,
    picture: Image.Image,
    color_scheme: str,
    width: int,
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'xlan[dev]'")
    long = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerk"
    accounts = [Account("plain", explained("a", "كلب", gate=False)), Account("bilinear", explained("a", long, "dog"))]
    (tmp_path / "page.html").write_text(explanation_page(picture, "כלב 狗.jpg", accounts), encoding="utf-8")
    page = page_of(color_scheme=color_scheme, width=width)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    assert said == []  # the policy let everything through that the page holds
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sides = [side.bounding_box() for side in page.locator(".account").all()]
    assert (sides[0]["y"] == sides[1]["y"]) == (width > 760)
    shown = Image.open(io.BytesIO(page.locator(".hero .shot").screenshot()))
    corner = shown.convert("RGB").getpixel((shown.width // 4, shown.height // 4))
    assert max(abs(a - b) for a, b in zip(corner, (0, 0, 128), strict=True)) < 20  # type: ignore[arg-type]
    assert_the_strongest_place_is_hot(page, accounts[0].caption)
    faults = axe.Axe().run(page).response["violations"]
    assert [(fault["id"], fault["impact"]) for fault in faults] == []
