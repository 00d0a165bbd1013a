"""The search box of a server with a library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def library(start_for_module: Callable[..., Any], photo: Callable[..., Any], tmp_path_factory: Any) -> Any:
    folder: Path = tmp_path_factory.mktemp("library")
    (folder / "photos").mkdir()
    for seed in range(4):
        one = photo(seed)
        (folder / "photos" / one["name"]).write_bytes(one["buffer"])
    return start_for_module("--library", str(folder / "photos"), "--index", str(folder / "index"))


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_sentence_finds_photos(library: Any, open_page: Callable[..., Any], colours: str) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    page = open_page(library.url, color_scheme=colours)
    page.get_by_label("Describe a photo").fill("a dog on teh grass")
    page.keyboard.press("Enter")
    expect(page.locator("#finds li")).to_have_count(4)
    expect(page.locator("#told")).to_contain_text("“teh” is not known; nearest: the.")
    expect(page.locator("#told")).to_contain_text("4 of 4 photos, best first")
    loaded = "() => [...document.querySelectorAll('#finds img')].every((one) => one.naturalWidth === 320)"
    page.wait_for_function(loaded)
    assert all(one.get_attribute("alt") for one in page.locator("#finds img").all())
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    assert [fault["id"] for fault in axe.run(page).response["violations"]] == []


def test_what_cannot_be_searched_is_a_sentence(library: Any, open_page: Callable[..., Any]) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    page = open_page(library.url, width=390)
    page.get_by_label("Describe a photo").fill("zzzz")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#told")).to_contain_text("the model knows none of its words")
    expect(page.locator("#finds")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
