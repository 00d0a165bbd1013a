"""The page of `xlan compare`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlan.metrics.bootstrap import Comparison, ImageDifference
from xlan.pages.comparison import comparison_page

EVIL = "<script>alert(1)</script>"
SCORES = [
    Comparison("CIDEr", 1.0, 1.25, 0.2, 0.3, 0.001),
    Comparison("BLEU-4", 0.36, 0.35, -0.02, 0.005, 0.3),
    Comparison("ROUGE-L", 0.5, 0.4, -0.15, -0.05, 0.01),
    Comparison("METEOR", None, None, reason="not installed"),
]
IMAGES = [ImageDifference(42, "a cat", "a dog", 0.25, 2.0), ImageDifference("x.jpg", "", "a bus", 0.5, 0.1)]


def page(**changes: Any) -> str:
    values = {"first": "plain.json", "second": "xlan.json", "by": "CIDEr", "confidence": 0.95, "how": "So and so."}
    return comparison_page(SCORES, IMAGES, **{**values, **changes})


def rows(document: str) -> dict[str, str]:
    found = re.findall(r'<th scope="row">([^<]+)</th>(.*?)</tr>', document)
    return {name: re.sub(r"<[^>]+>", " ", cells) for name, cells in found}


def test_numbers_and_verdicts() -> None:
    told = rows(page())
    assert "1.0000  1.2500  +0.2500  +0.2000 … +0.3000" in told["CIDEr"]
    assert "0.0010  B is better" in told["CIDEr"]
    assert "−0.0100  −0.0200 … +0.0050" in told["BLEU-4"]
    assert told["BLEU-4"].rstrip().endswith("not clear")
    assert told["ROUGE-L"].rstrip().endswith("A is better")
    assert "not computed: not installed" in told["METEOR"]


def test_intervals_are_drawn_around_zero() -> None:
    lines = re.findall(r'<line class="curve" x1="([\d.]+)" x2="([\d.]+)"', page())
    assert lines == [("128.0", "152.0"), ("8.0", "98.0"), ("8.0", "56.0")]


def test_images_that_differ_are_told() -> None:
    document = page()
    assert "Where they differ most (CIDEr)" in document
    assert "A 0.250</span> a cat" in document
    assert "B 2.000</span> a dog" in document
    assert "CIDEr +1.750" in document
    assert "<em>nothing</em>" in document


def test_no_difference_at_all() -> None:
    document = comparison_page(
        [Comparison("CIDEr", 1.0, 1.0, 0.0, 0.0, 1.0)], [], first="a", second="b", by="CIDEr", confidence=0.9, how=""
    )
    assert "90 % interval" in document
    assert "differ most" not in document


def test_text_stays_text() -> None:
    scores = [Comparison(EVIL, None, None, reason=EVIL)]
    images = [ImageDifference(EVIL, EVIL, EVIL, 0.0, 1.0)]
    document = comparison_page(scores, images, first=EVIL, second=EVIL, by=EVIL, confidence=0.95, how=EVIL)
    assert "<script" not in document
    assert "default-src 'none'" in document


@pytest.mark.slow
def test_axe_finds_no_fault(page_of: Callable[..., Any], tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'xlan[dev]'")
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    for color_scheme, width in (("light", 1200), ("dark", 390)):
        shown = page_of(color_scheme=color_scheme, width=width)
        shown.goto((tmp_path / "page.html").as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert [fault["id"] for fault in axe.Axe().run(shown).response["violations"]] == []
