"""The exported page in a real Chromium, from a plain file server."""

from __future__ import annotations

import csv
import functools
import http.server
import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors.torch import load_file

from xlan import Captioner
from xlan.confidence.calibration import Calibration, Curve
from xlan.confidence.evidence import CAPTION_FEATURES, WORD_FEATURES
from xlan.exporting import export_model
from xlan.files import file_sha256
from xlan.pretrained import CALIBRATION, SHIPPED, WEIGHTS, read_model_directory, save_pretrained
from xlan.vision.regions import extract_regions
from xlan.web.folder import write_web

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = pytest.mark.slow

PATIENCE_MS = 90_000  # the browser computes, and machines under test can be slow
TEXT = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model_directory: Path, runtime: dict[str, bytes]) -> Path:
    """The page with a small model of random weights."""
    place = tmp_path_factory.mktemp("web")
    export_model(model_directory, place / "export", precision="int8")
    write_web(place / "export", place / "page", name="tiny", runtime=runtime)
    return place / "page"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """What `python -m http.server` answers, without its lines in the terminal."""

    def log_message(self, *_: Any) -> None:
        pass


class Waiting(Quiet):
    """The same on a slow day: the largest part of the model comes when `ready` is set."""

    ready = threading.Event()

    def do_GET(self) -> None:
        if self.path.endswith("vision.onnx"):
            self.ready.wait(timeout=PATIENCE_MS / 1000)
        super().do_GET()


Serve = Callable[..., tuple[str, Callable[[], None]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(folder)`: an address, and how to stop answering there."""
    stops: list[Callable[[], None]] = []

    def start(place: Path, answers: type[Quiet] = Quiet) -> tuple[str, Callable[[], None]]:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(answers, directory=str(place)))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def stop() -> None:
            if thread.is_alive():
                server.shutdown()
                server.server_close()
                thread.join()

        stops.append(stop)
        return f"http://127.0.0.1:{server.server_port}/", stop

    yield start
    for stop in stops:
        stop()


@pytest.fixture
def open_page(page_of: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The page at an address. Whatever a test does, no request leaves its origin and no error reaches the console."""
    faults: list[str] = []

    def open_it(url: str, **options: Any) -> Any:
        page = page_of(**options)
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page.on("console", lambda line: faults.append(line.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        allowed = (url, "blob:", "data:")
        page.context.on("request", lambda asked: asked.url.startswith(allowed) or faults.append(asked.url))
        page.goto(url)
        return page

    yield open_it
    assert faults == []


def picture(seed: int, size: tuple[int, int] = (320, 240), mode: str = "RGB") -> Image.Image:
    """Coloured discs."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(random.integers(60, 256, 3)))
    for x, y, radius in random.random((6, 3)):
        centre, reach = np.array([x * size[0], y * size[1]]), 20 + radius * min(size) / 3
        corners = [tuple(centre - reach), tuple(centre + reach)]
        ImageDraw.Draw(image).ellipse(corners, fill=tuple(random.integers(0, 256, 3)))
    if mode == "RGBA":
        image.putalpha(Image.linear_gradient("L").resize(size))
    return image.convert(mode)


def photo(image: Image.Image, name: str, **options: Any) -> dict[str, Any]:
    file = io.BytesIO()
    kind = name.rsplit(".")[-1].replace("jpg", "jpeg")
    image.save(file, kind, **options)
    return {"name": name, "mimeType": f"image/{kind}", "buffer": file.getvalue()}


def ten_photos() -> list[dict[str, Any]]:
    """Kinds, sizes and orientations as they come."""
    turned = Image.Exif()
    turned[0x0112] = 6
    return [
        photo(picture(0), "plain.jpg", quality=90),
        photo(picture(1, (1600, 1200)), "large.jpg", quality=90),
        photo(picture(2, (640, 480)), "turned.jpg", exif=turned, quality=90),
        photo(picture(3, mode="L"), "grey.jpg", quality=90),
        photo(picture(4, (64, 64)), "exact.png"),
        photo(picture(5, (50, 400)), "tall.png"),
        photo(picture(6, (500, 333), mode="RGBA"), "glass.png"),
        photo(picture(7, mode="P"), "palette.gif"),
        photo(picture(8, (333, 500)), "web.webp", lossless=True),
        photo(picture(9), "old.bmp"),
    ]


def calibrated(folder: Path) -> None:
    """The model that ships in `folder / "model"`, with a calibration of any numbers."""
    found, random = read_model_directory(SHIPPED), np.random.default_rng(0)
    sizes = len(WORD_FEATURES), len(CAPTION_FEATURES)
    curves = [Curve(tuple(random.normal(scale=0.3, size=n)), (0.0, 0.5, 1.0), (0.1, 0.4, 0.9)) for n in sizes]
    Calibration(curves[0], curves[1], 300).save(folder / CALIBRATION)
    extras = {**found.extras, CALIBRATION: folder / CALIBRATION}
    weights = load_file(SHIPPED / WEIGHTS)
    save_pretrained(folder / "model", found.spec, weights, found.vocabulary, extras=extras, features=found.features)


TIE = 0.05  # of log-probability: processors round 8 bits a little differently


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="this version of xlan ships no trained model")
def test_ten_photos_have_the_captions_that_python_gives(
    runtime: dict[str, bytes], serve: Serve, open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """With the model that ships: captions of random weights hang on the last digit. Its confidence is calibrated."""
    calibrated(tmp_path)
    export_model(tmp_path / "model", tmp_path / "export", precision="int8")
    assert write_web(tmp_path / "export", tmp_path / "page", name="shipped", runtime=runtime) < 36e6
    photos = ten_photos()
    captioner = Captioner.from_pretrained(tmp_path / "page" / "model")
    buffers = {one["name"]: one["buffer"] for one in photos}
    expected = {name: captioner.caption(buffer) for name, buffer in buffers.items()}
    page = open_page(serve(tmp_path / "page")[0])
    page.set_input_files("#files", photos)
    expect(page.locator("[data-state=done]")).to_have_count(len(photos))
    with page.expect_download() as download:
        page.locator("#csv").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text(encoding="utf-8-sig"))))
    assert {row["image"] for row in rows} == set(expected)
    assert len({row["caption"] for row in rows}) > 1  # it does look at them
    for row in rows:
        theirs = expected[row["image"]]
        (regions,) = extract_regions(captioner.extractor, [buffers[row["image"]]])
        (worth,) = captioner.worths([captioner.judge.witness.look(regions)])
        said, ids = (theirs, *theirs.others), captioner.vocabulary.encode
        value = {one.text: one.score + worth.of(ids(one.text.split())) for one in said}
        tied = [one for one in said if value[one.text] > value[theirs.text] - TIE]
        confidences = {one.text: one.confidence for one in tied}
        assert row["caption"] in confidences, row["image"]
        assert float(row["confidence"]) == pytest.approx(confidences[row["caption"]], abs=0.01), row["image"]


def test_words_show_where_it_looked_by_mouse_and_by_keyboard(
    folder: Path, serve: Serve, open_page: Callable[..., Any], tab_to: Callable[[Any, str], None]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(serve(folder)[0])
    expect(page.locator("#model")).to_contain_text("Model: tiny")
    assert page.locator("#loading").is_hidden()
    with page.expect_file_chooser() as chooser:  # before Tab: a key may overtake the order to watch for the dialog
        tab_to(page, "#files")
        page.locator("#files").press("Space")  # brings the focus back if the page has just been taken over
    chooser.value.set_files([photo(picture(1), "one.jpg")])
    expect(page.locator("[data-state=done]")).to_have_count(1)
    page.locator(".sentence button").first.hover()
    expect(page.locator(".photo .heat")).to_have_count(1)
    page.locator("h1").hover()
    expect(page.locator(".photo .heat")).to_have_count(0)

    tab_to(page, "#options summary")
    page.keyboard.press("Enter")
    tab_to(page, "[name=beams]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    tab_to(page, "#again")
    page.keyboard.press("Enter")
    expect(page.locator(".facts")).to_contain_text("the likeliest word each time")
    tab_to(page, ".sentence button")
    page.keyboard.press("End")
    assert page.locator(".sentence button[aria-pressed=true]:focus").count() == 1
    expect(page.locator(".photo .heat")).to_have_count(1)
    told = page.locator(".telling dl.on").inner_text()
    assert all(trait in told for trait in ("probability", "runners-up", "looked at"))

    page.set_input_files("#files", TEXT)
    expect(page.locator("[data-state=error] .state")).to_contain_text("is not a picture that this browser can read")
    faults = [fault["id"] for fault in axe.run(page).response["violations"]]
    assert faults == []


def test_it_works_when_the_network_is_gone(folder: Path, serve: Serve, open_page: Callable[..., Any]) -> None:
    url, stop = serve(folder)
    page = open_page(url)
    expect(page.locator("#model")).to_contain_text("Model: tiny")
    stop()
    page.reload()
    expect(page.locator("#model")).to_contain_text("Model: tiny")
    page.set_input_files("#files", [photo(picture(1), "one.jpg")])
    expect(page.locator("[data-state=done]")).to_have_count(1)


def test_the_page_is_alive_while_the_model_loads(folder: Path, serve: Serve, open_page: Callable[..., Any]) -> None:
    Waiting.ready.clear()
    page = open_page(serve(folder, Waiting)[0])
    try:
        expect(page.locator("#loading p")).to_contain_text("Loading the model: ")
        expect(page.locator("#loading progress")).to_be_visible()
        page.set_input_files("#files", [photo(picture(1), "one.jpg")])
        expect(page.locator("[data-state=working] .state")).to_have_text("Looking at the photo…")
        page.locator("#options summary").click()
        expect(page.locator("[name=beams]")).to_be_visible()
    finally:
        Waiting.ready.set()
    expect(page.locator("[data-state=done]")).to_have_count(1)
    expect(page.locator("#loading")).to_be_hidden()


def copy_of(folder: Path, target: Path) -> Path:
    """The same files under another name; a file is to be removed before it is written."""
    shutil.copytree(folder, target, copy_function=os.link)
    return target


def rewrite(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def change_export(page: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    about = json.loads((page / "model" / "export.json").read_text())
    change(about)
    rewrite(page / "model" / "export.json", json.dumps(about).encode())


def truncate_the_model(page: Path) -> None:
    decoder = page / "model" / "decoder.onnx"
    rewrite(decoder, decoder.read_bytes()[:-1000])


def damage_the_model(page: Path) -> None:
    decoder = page / "model" / "decoder.onnx"
    content = bytearray(decoder.read_bytes())
    content[-1000] ^= 1
    rewrite(decoder, bytes(content))


def name_in_export(page: Path, name: str) -> None:
    file = page / "model" / name
    said = {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
    change_export(page, lambda about: about["files"].update({name: said}))


def shorten_the_vocabulary(page: Path) -> None:
    vocabulary = json.loads((page / "model" / "vocab.json").read_text())
    vocabulary["words"].pop()
    rewrite(page / "model" / "vocab.json", json.dumps(vocabulary).encode())
    name_in_export(page, "vocab.json")


def add_a_calibration(page: Path) -> None:
    (page / "model" / "confidence.json").write_text('{"format": 1, "features": {"word": ["constant"]}}')
    name_in_export(page, "confidence.json")


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no model": (lambda page: shutil.rmtree(page / "model"), "export.json is missing. Copy the whole folder again"),
    "foreign model": (
        lambda page: rewrite(page / "model" / "export.json", b'{"layers": 3}'),
        "export.json is not one that xlan export wrote.",
    ),
    "no JSON": (lambda page: rewrite(page / "model" / "export.json", b"<html>"), "cannot be read as JSON"),
    "future format": (
        lambda page: change_export(page, lambda about: about.update(format=2)),
        "export.json is of format 2, this page reads format 1. Export the model again.",
    ),
    "truncated": (truncate_the_model, "decoder.onnx is not complete"),
    "damaged": (damage_the_model, "decoder.onnx is damaged or belongs to another export"),
    "other evidence": (add_a_calibration, "confidence.json was fitted on other evidence than this page gathers"),
    "wrong vocabulary": (shorten_the_vocabulary, "The vocabulary has 10 words, the model has 11"),
}


def test_a_folder_that_cannot_be_used_is_explained_in_one_line(
    folder: Path, serve: Serve, page_of: Callable[..., Any], tmp_path: Path
) -> None:
    """Without the watch on the console, to which Chromium itself reports files that are missing."""
    for name, (spoil, expected) in FAULTS.items():
        place = copy_of(folder, tmp_path / name)
        spoil(place)
        page = page_of()
        page.goto(serve(place)[0])
        expect(page.locator("#fault")).to_contain_text(expected, timeout=PATIENCE_MS)
        assert "\n" not in page.locator("#fault").inner_text()
        page.set_input_files("#files", [photo(picture(1), "one.jpg")])
        expect(page.locator("[data-state=error] .state")).to_contain_text(expected, timeout=PATIENCE_MS)
        page.context.close()
