"""Pages hold together by themselves, and nothing from outside becomes markup."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser

from PIL import Image

from xlan.pages.layout import page, thumbnail
from xlan.pages.sheet import Entry, caption_sheet
from xlan.types import Caption

EVIL = '<script>alert("1")</script>'


class Tags(HTMLParser):
    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def sheet(**changes: object) -> str:
    entry = Entry(f"{EVIL}.jpg", thumbnail(Image.new("RGB", (900, 300), "red")), Caption(EVIL, -3.0, 0.256, ()), 0.1)
    values = {"title": "T", "model": EVIL, **changes}
    return caption_sheet([entry], **values)  # type: ignore[arg-type]


def test_text_stays_text() -> None:
    tags = Tags(sheet())
    assert "script" not in [tag for tag, _ in tags.found]
    assert tags.text.count(EVIL) == 2  # model, caption
    assert any(f"{EVIL}.jpg · confidence 0.26 · 0.10 s" in text for text in tags.text)
    assert next(attributes["alt"] for tag, attributes in tags.found if tag == "img") == EVIL


def test_nothing_is_fetched() -> None:
    for tag, attributes in Tags(sheet()).found:
        assert tag not in ("link", "script", "iframe")
        if "src" in attributes:
            assert str(attributes["src"]).startswith("data:image/jpeg;base64,")
    assert "url(" not in sheet()
    assert "default-src 'none'" in sheet()


def test_light_and_dark() -> None:
    assert "prefers-color-scheme:dark" in sheet()


def test_a_card_leads_to_its_explanation() -> None:
    entry = Entry("x", "data:,", Caption("a", -1.0, 0.5, ()), 1.0, 'pages/a "b" #1.html')
    links = [
        attributes["href"] for tag, attributes in Tags(caption_sheet([entry], title="T", model="m")).found if tag == "a"
    ]
    assert links == ["pages/a%20%22b%22%20%231.html"]
    assert "<a" not in sheet()


def test_runners_up_are_listed() -> None:
    caption = Caption("a", -1.0, 0.5, (), others=(Caption("b & c", -2.0, 0.25, ()),))
    document = caption_sheet([Entry("x", "data:,", caption, 1.0)], title="T", model="m")
    assert "<li>b &amp; c (0.25)</li>" in document


def test_thumbnails_are_small_jpegs() -> None:
    address = thumbnail(Image.new("RGBA", (2000, 1000)), side=100)
    image = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert (image.format, image.size) == ("JPEG", (100, 50))


def test_file_names_that_are_no_text() -> None:
    assert "?" in page("a\udcff", "")
    page("a\udcff", "").encode("utf-8")
