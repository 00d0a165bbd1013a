"""The page of `xlan serve` in a real browser, against a real server."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from PIL import Image

from xlan.pages.explanation import percent, where_it_looked

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = pytest.mark.slow

CAPTIONS = "**/v1/captions"
Photo: TypeAlias = Callable[..., dict[str, Any]]


def add(page: Any, *files: dict[str, Any]) -> None:
    page.set_input_files("#files", list(files))


def answer_to(page: Any, act: Callable[[], None]) -> Any:
    """Do something, and return the caption that the server then sent, once the page shows it."""
    with page.expect_response(lambda r: r.url.endswith("/v1/captions") and r.ok) as caught:
        act()
    answer = caught.value.json()
    expect(page.locator(".sentence").first).to_have_text(re.compile(answer["caption"].replace(" ", r"\s*")))
    return answer


def words_of(card: Any) -> Any:
    return card.locator(".sentence button")


def drawn_heat(svg: Any) -> dict[int, dict[str, float]]:
    """What is drawn over a photo, by number of the region."""
    read = """svg => [...svg.querySelectorAll('[data-region]')].map(r =>
        [r.dataset.region, Object.fromEntries([...r.attributes].map(a => [a.name, a.value]))])"""
    return {
        int(region): {name: float(value) for name, value in attributes.items()}
        for region, attributes in svg.evaluate(read)
    }


def assert_heat(svg: Any, word: dict[str, Any], boxes: list[list[float]]) -> None:
    """The drawing is the numbers: `0.85 · w / max w` over every region that is not the whole picture."""
    placed = {i: weight for i, weight in enumerate(word["spatial"]) if boxes[i] != [0, 0, 1, 1]}
    most = max(placed.values())
    found = drawn_heat(svg)
    assert found.keys() == placed.keys()
    for i, weight in placed.items():
        x0, y0, x1, y1 = boxes[i]
        assert found[i]["fill-opacity"] == pytest.approx(0.85 * weight / most, abs=6e-5)
        assert found[i]["data-weight"] == pytest.approx(weight, abs=6e-5)
        assert [found[i][name] for name in ("x", "y", "width", "height")] == pytest.approx([x0, y0, x1 - x0, y1 - y0])
    outline = svg.locator(".edge")
    x0, y0, _, _ = boxes[max(placed, key=placed.__getitem__)]
    assert [float(outline.get_attribute(name)) for name in ("x", "y")] == [x0, y0]


def drop(page: Any, content: bytes, name: str, kind: str) -> None:
    make = """([data, name, type]) => {
        const transfer = new DataTransfer();
        const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
        if (name) transfer.items.add(new File([bytes], name, {type}));
        return transfer;
    }"""
    transfer = page.evaluate_handle(make, [base64.b64encode(content).decode(), name, kind])
    page.dispatch_event("#drop", "dragover", {"dataTransfer": transfer})
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


def hold(page: Any) -> list[Any]:
    """Requests for captions wait in the list that is returned until the test releases them."""
    held: list[Any] = []
    page.route(CAPTIONS, lambda route: held.append(route))
    return held


def wait_for(page: Any, condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not happen within half a minute")


# --- photos in, captions out ------------------------------------------------------------------------------------------


def test_a_dropped_photo_gets_its_caption(page: Any, photo: Photo) -> None:
    answer = answer_to(page, lambda: drop(page, photo(1)["buffer"], "dropped.jpg", "image/jpeg"))
    assert words_of(page.locator(".result")).all_inner_texts() == answer["caption"].split()
    assert page.locator("#empty").is_hidden()
    assert page.locator(".photo img").get_attribute("alt") == answer["caption"]
    assert page.locator(".state").inner_text() == f"Caption of dropped.jpg: {answer['caption']}"
    assert f"confidence {percent(answer['confidence'])}" in page.locator(".facts").inner_text()


def test_pointing_at_words_shows_the_numbers_of_the_api(page: Any, photo: Photo) -> None:
    answer = answer_to(page, lambda: add(page, photo(2)))
    page.get_by_label("Show the model’s cells").check()
    card, svg = page.locator(".result"), page.locator(".photo .heat")
    assert svg.count() == 0
    for i, word in enumerate(answer["words"]):
        words_of(card).nth(i).hover()
        assert_heat(svg, word, answer["boxes"])
        told = card.locator(".telling .on").inner_text()
        assert percent(word["probability"]) in told
        assert where_it_looked(np.array(word["spatial"]), np.array(answer["boxes"])) in told
        assert f"{word['runners_up'][0]['text']} {percent(word['runners_up'][0]['probability'])}" in told
    page.mouse.move(0, 0)
    assert svg.count() == 0


def test_the_heat_is_smooth_and_true_at_the_centre_of_every_cell(page: Any, photo: Photo) -> None:
    answer = answer_to(page, lambda: add(page, photo(2)))
    boxes, word = np.array(answer["boxes"]), answer["words"][0]
    words_of(page.locator(".result")).first.click()
    read = """canvas => {
        const {data, width, height} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return {alpha: [...data].filter((_, i) => i % 4 === 3), width, height};
    }"""
    found = page.locator(".photo canvas.heat").evaluate(read)
    alpha = np.array(found["alpha"]).reshape(found["height"], found["width"])
    placed = [i for i, box in enumerate(answer["boxes"]) if box != [0, 0, 1, 1]]
    most = max(word["spatial"][i] for i in placed)
    for i in placed:
        x, y = (boxes[i, :2] + boxes[i, 2:]) / 2 * [found["width"], found["height"]]
        at = alpha[int(y) - 1 : int(y) + 1, int(x) - 1 : int(x) + 1].mean()
        assert at == pytest.approx(255 * 0.85 * word["spatial"][i] / most, abs=3)
    steps = np.abs(np.diff(alpha.astype(int), axis=1))
    assert steps.max() <= 0.2 * max(1, np.ptp(alpha))  # no edge between cells


def test_an_example_is_captioned_like_a_photo(page: Any) -> None:
    first = page.locator("#examples button").first
    name = first.inner_text()
    answer_to(page, first.click)
    assert page.locator(".result h2").inner_text() == f"{name}.jpg"


def test_the_hint_is_shown_once_and_nothing_is_reserved_for_words(page: Any, photo: Photo) -> None:
    add(page, photo(1), photo(2))
    expect(page.locator("[data-state=done]")).to_have_count(2)
    assert page.get_by_text("Point at a word, tap it").filter(visible=True).count() == 1
    assert page.locator(".telling").first.bounding_box()["height"] == 0
    card, frame = (page.locator(name).first.bounding_box() for name in (".result", ".photo"))
    assert frame["height"] >= card["height"] - 4  # the photo fills its side of the card


def test_all_photos_as_csv_and_cleared(page: Any, photo: Photo, tmp_path: Path) -> None:
    answers = [answer_to(page, lambda: add(page, photo(1)))]
    answers.insert(0, answer_to(page, lambda: add(page, {**photo(2), "name": '=SUM("A")'})))
    with page.expect_download() as caught:
        page.get_by_role("button", name="Download all as CSV").click()
    caught.value.save_as(tmp_path / "captions.csv")
    with (tmp_path / "captions.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == ['\'=SUM("A")', "photo1.jpg"]
    assert [row["caption"] for row in rows] == [answer["caption"] for answer in answers]
    assert [float(row["confidence"]) for row in rows] == [answer["confidence"] for answer in answers]
    page.get_by_role("button", name="Clear all").click()
    expect(page.locator("#empty")).to_be_visible()
    assert page.locator(".result").count() == 0


def test_other_captions_are_ordered_by_the_number_beside_them(page: Any, photo: Photo) -> None:
    others = [{"caption": f"caption {share}", "confidence": share, "score": -1.0} for share in (0.2, 0.7, 0.4)]
    fake(page, "a dog", others=others)
    add(page, photo(6))
    page.locator(".others summary").click()
    shown = page.locator(".others li").all_inner_texts()
    assert [line.split()[1] for line in shown] == ["0.7", "0.4", "0.2"]


def test_a_tapped_word_stays_until_it_is_tapped_again(open_page: Callable[..., Any], photo: Photo) -> None:
    page = open_page(width=390, has_touch=True)
    answer_to(page, lambda: add(page, photo(2)))
    word = words_of(page.locator(".result")).first
    word.tap()
    expect(word).to_have_attribute("aria-pressed", "true")
    assert page.locator(".photo .heat").count() == 1
    word.tap()
    assert page.locator(".photo .heat").count() == 0


def test_the_drawing_lies_exactly_over_the_photo(page: Any, photo: Photo) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # a telephone held upright: stored lying, shown turned by a quarter
    answer = answer_to(page, lambda: add(page, photo(3, size=(400, 200), exif=turned)))
    assert answer["image"] == {"width": 200, "height": 400}
    words_of(page.locator(".result")).first.click()
    image, svg = page.locator(".photo img").bounding_box(), page.locator(".photo .heat").bounding_box()
    assert svg == pytest.approx(image)
    assert image["height"] / image["width"] == pytest.approx(2, rel=0.01)


def test_a_pasted_picture(page: Any, photo: Photo) -> None:
    copy = """data => {
        const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
        return navigator.clipboard.write([new ClipboardItem({'image/png': new Blob([bytes], {type: 'image/png'})})]);
    }"""
    page.evaluate(copy, base64.b64encode(photo(4, kind="PNG")["buffer"]).decode())
    answer = answer_to(page, lambda: page.keyboard.press("Control+v"))
    assert answer["image"] == {"width": 320, "height": 240}


def test_pasted_text_is_no_picture(page: Any) -> None:
    page.evaluate("navigator.clipboard.writeText('hello')")
    page.keyboard.press("Control+v")
    expect(page.locator("#notice")).to_have_text("There is no picture in the clipboard.")


def test_a_dropped_link_is_no_file(page: Any) -> None:
    drop(page, b"", "", "")
    expect(page.locator("#notice")).to_contain_text("That was not a file.")


def test_photos_take_turns_two_at_a_time(page: Any, photo: Photo) -> None:
    held = hold(page)
    add(page, photo(1))
    wait_for(page, lambda: len(held) == 1)
    add(page, photo(2), photo(3))  # while the first is under way
    wait_for(page, lambda: len(held) == 2)
    page.wait_for_timeout(200)
    states = {name: page.locator(f".result:has-text('{name}')") for name in ("photo1.jpg", "photo2.jpg", "photo3.jpg")}
    assert [states[name].get_attribute("data-state") for name in sorted(states)] == ["working", "working", "waiting"]
    assert len(held) == 2
    held[1].continue_()
    expect(states["photo2.jpg"]).to_have_attribute("data-state", "done")
    wait_for(page, lambda: len(held) == 3)
    held[0].continue_()
    held[2].continue_()
    expect(page.locator("[data-state=done]")).to_have_count(3)
    assert page.locator(".result h2").all_inner_texts() == ["photo2.jpg", "photo3.jpg", "photo1.jpg"]


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_reach_the_server_and_photos_can_be_captioned_again(page: Any, photo: Photo) -> None:
    answer_to(page, lambda: add(page, photo(5)))
    page.locator("#options summary").click()
    page.get_by_label("Draw captions at random").check()
    page.get_by_label("Captions", exact=True).fill("99")  # brought into the range
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Words that must appear").fill("dog|dogs, grass")
    spy = """() => {
        const real = window.fetch;
        window.fetch = (path, init) => {
            window.sent = [...init.body].filter(([name]) => name !== 'image');
            return real(path, init);
        };
    }"""
    page.evaluate(spy)
    answer = answer_to(page, page.get_by_role("button", name="Caption all photos again").click)
    sent = [tuple(field) for field in page.evaluate("window.sent")]
    assert sent == [
        *[("samples", "10"), ("temperature", "1"), ("seed", "7")],
        *[("must", "dog|dogs"), ("must", "grass"), ("explain", "true")],
    ]
    assert "grass" in answer["caption"]
    expect(page.locator(".facts")).to_contain_text("10 drawn at random, temperature 1, seed 7, with dog|dogs, grass")
    assert page.locator(".others summary").inner_text() == "Also drawn (9)"


def test_a_word_the_model_does_not_know(page: Any, photo: Photo) -> None:
    answer = answer_to(page, lambda: add(page, photo(5)))
    page.locator("#options summary").click()
    page.get_by_label("Words that must appear").fill("zebra")
    page.get_by_role("button", name="Caption again").click()
    expect(page.locator(".state")).to_have_text("The model does not know the word 'zebra'.")
    assert words_of(page.locator(".result")).all_inner_texts() == answer["caption"].split()  # the caption it had


# --- taking captions away ---------------------------------------------------------------------------------------------


def fake(page: Any, caption: str, others: Sequence[dict[str, Any]] = ()) -> None:
    """The server answers with this caption."""
    words = [
        {"text": text, "probability": 0.5, "runners_up": [], "spatial": None, "channel": None}
        for text in caption.split()
    ]
    record = {
        "caption": caption,
        "confidence": 0.5,
        "score": -1.0,
        "words": words,
        "others": list(others),
        "boxes": None,
    }
    about = {"image": {"width": 4, "height": 3}, "model": "m", "seconds": {"queue": 0.0, "model": 0.0}}
    page.route(CAPTIONS, lambda route: route.fulfill(json={**record, **about}))


def test_copies(page: Any, photo: Photo) -> None:
    caption = 'a "dog" & <b>cat</b>'
    fake(page, caption)
    add(page, photo(6))
    page.get_by_role("button", name="Copy text").click()
    expect(page.locator(".copied")).to_have_text(f"Copied: {caption}")
    assert page.evaluate("navigator.clipboard.readText()") == caption
    page.get_by_role("button", name="Copy alt attribute").click()
    expect(page.locator(".copied")).to_contain_text("Copied: alt=")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == 'alt="a &quot;dog&quot; &amp; &lt;b&gt;cat&lt;/b&gt;"'
    assert page.locator(".result b").count() == 0


def test_the_downloaded_explanation_stands_alone(page: Any, open_page: Any, tmp_path: Path, photo: Photo) -> None:
    evil = {**photo(7), "name": "<img src=x onerror=alert(1)>.jpg"}
    answer = answer_to(page, lambda: add(page, evil))
    with page.expect_download() as caught:
        page.get_by_role("button", name="Download explanation").click()
    assert caught.value.suggested_filename.endswith("-explained.html")
    path = tmp_path / "explained.html"
    caught.value.save_as(path)
    kept = page.context.new_page()
    asked: list[str] = []
    kept.on("request", lambda request: asked.append(request.url))
    kept.goto(path.as_uri())
    assert kept.locator("script, link, img, [onerror]").count() == 0
    assert (
        kept.locator("meta[http-equiv=Content-Security-Policy]")
        .get_attribute("content")
        .startswith("default-src 'none'")
    )
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert kept.locator("h1").inner_text() == evil["name"]
    assert kept.locator(".said").inner_text() == answer["caption"]
    assert kept.locator("#photo").get_attribute("href").startswith("data:image/jpeg;base64,")
    assert [h3.split()[0] for h3 in kept.locator(".word h3").all_inner_texts()] == answer["caption"].split()
    for i, word in enumerate(answer["words"]):
        assert_heat(kept.locator(".word .heat").nth(i), word, answer["boxes"])


# --- what can go wrong, in words --------------------------------------------------------------------------------------


def test_a_text_file(page: Any, photo: Photo) -> None:
    add(page, {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"}, photo(8))
    card = page.locator(".result:has-text('notes.txt')")
    expect(card.get_by_role("status").first).to_contain_text("This file is not a picture of a known format; known are")
    assert card.get_attribute("data-state") == "error"
    assert card.get_by_role("button").all_inner_texts() == ["Remove"]  # trying again would not help
    expect(page.locator(".result:has-text('photo8.jpg')")).to_have_attribute("data-state", "done")


def test_photos_beyond_the_limits_are_sent_smaller(page: Any, photo: Photo) -> None:
    answer = answer_to(page, lambda: add(page, photo(9, size=(2600, 2000))))
    assert 3_500_000 < answer["image"]["width"] * answer["image"]["height"] <= 4_000_000
    expect(page.locator(".note")).to_contain_text(
        "The photo has 5.2 megapixels, this server takes 4.0 megapixels: a JPEG copy of"
    )
    assert page.locator(".photo img").evaluate("img => img.naturalWidth") == 1600  # shown smaller still


def test_kinds_of_pictures_that_only_the_browser_reads_are_sent_as_copies(page: Any) -> None:
    shapes = '<rect width="300" height="200" fill="#3a5"/><circle cx="90" cy="90" r="50" fill="#fff"/>'
    drawing = f'<svg xmlns="http://www.w3.org/2000/svg" width="300" height="200">{shapes}</svg>'
    file = {"name": "drawing.svg", "mimeType": "image/svg+xml", "buffer": drawing.encode()}
    assert answer_to(page, lambda: add(page, file))["image"] == {"width": 300, "height": 200}
    expect(page.locator(".note")).to_contain_text("does not read files of type image/svg+xml: a JPEG copy of 300 × 200")


def test_files_beyond_the_limits_are_sent_smaller_or_refused(page: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (800, 1000, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    answer_to(page, lambda: add(page, {"name": "noise.png", "mimeType": "image/png", "buffer": file.getvalue()}))
    expect(page.locator(".note")).to_contain_text("The file has 2.3 MB, this server takes 1.0 MB: a JPEG copy of")
    add(page, {"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * 1_500_000})
    expect(page.locator(".state").first).to_contain_text(
        "this server takes 1.0 MB, and this browser cannot make it smaller."
    )


def test_a_busy_server_is_asked_again(page: Any, photo: Photo) -> None:
    asked: list[str] = []

    def busy_once(route: Any) -> None:
        asked.append(route.request.method)
        if len(asked) > 1:
            route.continue_()
            return
        problem = {"type": "urn:xlan:problem:busy", "title": "busy", "status": 503, "detail": "too many"}
        headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
        route.fulfill(status=503, headers=headers, body=json.dumps(problem))

    page.route(CAPTIONS, busy_once)
    add(page, photo(10))
    expect(page.locator(".state")).to_have_text("The server is busy. Trying again in 1 s.")
    expect(page.locator(".result")).to_have_attribute("data-state", "done")
    assert len(asked) == 2


def test_a_server_that_is_gone(page: Any, photo: Photo) -> None:
    page.route(CAPTIONS, lambda route: route.abort("connectionrefused"))
    add(page, photo(11))
    expect(page.locator(".state")).to_have_text("The server cannot be reached. Is it still running?")
    page.unroute(CAPTIONS)
    answer_to(page, page.get_by_role("button", name="Try again").click)


def test_a_server_that_asks_for_a_token(
    open_page: Callable[..., Any], start_server: Callable[..., Any], photo: Photo
) -> None:
    token = "correct-horse-battery-staple"
    page = open_page(start_server(environment={"XLAN_TOKEN": token}).url)
    add(page, photo(12), photo(13))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server asks for a token")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.locator("[data-state=error]")).to_have_count(2)
    page.get_by_role("button", name="Try again").first.click()
    page.get_by_role("textbox", name="Token").fill("wrong-horse-battery-staple")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("did not accept that token")
    page.get_by_role("textbox", name="Token").fill(token)
    page.keyboard.press("Enter")
    expect(page.locator("[data-state=done]")).to_have_count(1)
    page.get_by_role("button", name="Try again").click()  # the other photo needs no second asking
    expect(page.locator("[data-state=done]")).to_have_count(2)
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert token not in kept
    assert page.locator("#token").input_value() == ""


def test_a_file_that_is_gone(page: Any, tmp_path: Path, photo: Photo) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(photo(14)["buffer"])
    held = hold(page)
    add(page, photo(1), photo(2))
    page.set_input_files("#files", path)
    wait_for(page, lambda: len(held) == 2)
    path.unlink()
    held[0].continue_()
    expect(page.locator(".state").first).to_have_text(
        "This cannot be read. Is it a folder, or was the file moved or changed?"
    )
    held[1].continue_()


def test_a_caption_without_words(page: Any, photo: Photo) -> None:
    fake(page, "")
    add(page, photo(15))
    expect(page.locator(".sentence")).to_have_text("(nothing)")


# --- things with names ------------------------------------------------------------------------------------------------


def placed(frame: Any) -> list[float]:
    """Left, top, width and height of a frame as fractions of the photo."""
    return frame.evaluate("f => ['left', 'top', 'width', 'height'].map(side => parseFloat(f.style[side]) / 100)")


def as_place(box: list[float]) -> Any:
    return pytest.approx([box[0], box[1], box[2] - box[0], box[3] - box[1]], abs=1e-4)


def test_words_point_at_named_boxes(open_page: Callable[..., Any], naming_server: Any, photo: Photo) -> None:
    page = open_page(naming_server.url)
    answer = answer_to(page, lambda: add(page, photo(2)))
    card, frames = page.locator(".result"), page.locator(".photo .thing")
    assert frames.count() == 0
    assert f"dog {percent(answer['things'][0]['score'])}" in card.locator(".things").inner_text()
    page.get_by_label("Show what the detector found").check()
    assert frames.count() == len(answer["things"])
    assert placed(frames.first) == as_place(answer["things"][0]["box"])
    assert frames.first.inner_text() == "dog"
    words_of(card).first.focus()
    for i, word in enumerate(answer["words"]):
        if i:
            page.keyboard.press("ArrowRight")
        else:
            page.keyboard.press("Home")
        named = word["looked_at"] is not None and word["looked_at"]["name"]
        assert frames.count() == (1 if named else 0)
        if named:
            assert placed(frames) == as_place(word["looked_at"]["box"])
            assert "most inside the box of the dog" in card.locator(".telling .on").inner_text()
    page.keyboard.press("Escape")
    assert frames.count() == len(answer["things"])


def test_without_a_detector_nothing_is_said_of_one(page: Any, photo: Photo) -> None:
    answer_to(page, lambda: add(page, photo(2)))
    assert page.locator("#things-choice").is_hidden()
    assert page.locator(".result .things").is_hidden()
