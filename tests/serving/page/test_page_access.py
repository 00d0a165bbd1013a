"""The page by keyboard, by screen reader, on a phone and in the dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = pytest.mark.slow

Photo: TypeAlias = Callable[..., dict[str, Any]]
TEXT = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"}


def faults_of(page: Any) -> list[str]:
    """What axe-core finds that keeps people out."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [
        f"{fault['id']}: {node['html']} {node['failureSummary']}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize(("color_scheme", "width"), [("light", 1200), ("dark", 390)])
def test_nobody_is_kept_out(open_page: Callable[..., Any], photo: Photo, color_scheme: str, width: int) -> None:
    page = open_page(color_scheme=color_scheme, width=width)

    def check() -> None:
        assert faults_of(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over the side

    check()
    page.set_input_files("#files", [photo(1), photo(2)])
    expect(page.locator("[data-state=done]")).to_have_count(2)
    page.locator(".sentence button").first.click()
    page.locator("#options summary").click()
    page.locator(".others summary").first.click()
    page.get_by_role("button", name="Copy text").first.click()
    check()
    page.set_input_files("#files", TEXT)
    expect(page.locator("[data-state=error]")).to_have_count(1)
    page.get_by_label("Draw captions at random").check()
    check()


def test_the_question_for_a_token_is_open_to_all(page: Any, photo: Photo) -> None:
    page.route("**/v1/captions", lambda route: route.fulfill(status=401))
    page.set_input_files("#files", photo(1))
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.locator("#token:focus").count() == 1
    assert faults_of(page) == []
    page.keyboard.press("Escape")
    expect(page.locator(".state")).to_have_text("The server asks for a token.")


def test_the_whole_way_by_keyboard(page: Any, photo: Photo, tab_to: Callable[[Any, str], None]) -> None:
    with page.expect_file_chooser() as chooser:  # before Tab: a key may overtake the order to watch for the dialog
        tab_to(page, "#files")
        page.keyboard.press("Space")
    chooser.value.set_files([photo(1)])
    expect(page.locator("[data-state=done]")).to_have_count(1)
    assert page.locator("#files:focus").count() == 1  # where it was: a caption that arrives takes no focus

    tab_to(page, "#options summary")
    page.keyboard.press("Enter")
    tab_to(page, "[name=beams]")
    page.keyboard.press("ArrowUp")
    tab_to(page, "#again")
    page.keyboard.press("Enter")
    expect(page.locator(".facts")).to_contain_text("search keeping 4 sentences")

    tab_to(page, ".sentence button")
    shown = []
    for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
        page.keyboard.press(key)
        assert page.locator(".sentence button[aria-pressed=true]:focus").count() == 1
        shown.append(page.locator(".photo .heat").evaluate("canvas => canvas.toDataURL()"))
    assert shown[0] != shown[1]
    described = page.evaluate(
        "document.getElementById(document.activeElement.getAttribute('aria-describedby')).innerText"
    )
    assert "looked at" in described
    page.keyboard.press("Escape")
    assert page.locator(".photo .heat").count() == 0

    tab_to(page, "[data-do=copyText]")
    page.keyboard.press("Enter")
    expect(page.locator(".copied")).to_contain_text("Copied:")
    tab_to(page, "[data-do=download]")
    with page.expect_download():
        page.keyboard.press("Enter")


def test_focus_goes_on_when_photos_vanish(page: Any, photo: Photo) -> None:
    page.set_input_files("#files", [photo(1), photo(2)])
    expect(page.locator("[data-state=done]")).to_have_count(2)
    page.get_by_role("button", name="Remove photo1.jpg").press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "photo2.jpg"
    expect(page.locator("#notice")).to_have_text("photo1.jpg removed.")
    page.get_by_role("button", name="Remove photo2.jpg").press("Enter")
    assert page.locator("#files:focus").count() == 1
    expect(page.locator("#empty")).to_be_visible()
    assert page.locator("#again").is_disabled()


def test_removing_a_photo_lets_its_request_go(page: Any, photo: Photo) -> None:
    page.route("**/v1/captions", lambda route: None)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/captions")):
        with page.expect_request("**/v1/captions"):
            page.set_input_files("#files", photo(1))
        page.get_by_role("button", name="Remove photo1.jpg").click()
    page.unroute("**/v1/captions")
    page.set_input_files("#files", photo(2))
    expect(page.locator("[data-state=done]")).to_have_count(1)


def test_only_what_one_waits_for_is_announced(page: Any, photo: Photo) -> None:
    page.route("**/v1/captions", lambda route: None)
    page.set_input_files("#files", [photo(1), photo(2), photo(3)])
    expect(page.locator("[data-state=working]")).to_have_count(2)
    assert page.locator(".state[aria-live=polite]").count() == 0
    expect(page.locator("#notice")).to_have_text("3 photos added.")
    page.unroute("**/v1/captions")  # held requests continue
    expect(page.locator(".state[aria-live=polite]:has-text('Caption of photo')")).to_have_count(3)


def test_nothing_moves_for_who_wants_it_so(open_page: Callable[..., Any], photo: Photo) -> None:
    motion = "getComputedStyle(document.querySelector('.state'), '::before').animationName"
    for wish, animation in (("no-preference", "turn"), ("reduce", "none")):
        page = open_page(reduced_motion=wish)
        page.route("**/v1/captions", lambda route: None)
        page.set_input_files("#files", photo(1))
        expect(page.locator("[data-state=working]")).to_have_count(1)
        assert page.evaluate(motion) == animation
