"""The page of a server that runs, and pictures to give it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

# Chromium itself reports every answer that is not 2xx; the page shows those in words.
REPORTED_BY_CHROMIUM = re.compile("Failed to load resource")
# Machines under test can be slow.
PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def photo() -> Callable[..., dict[str, Any]]:
    """`photo(3)`: the file `photo3.jpg` for a file input, coloured discs; `size`, `kind` and what `save` takes."""

    def make(seed: int, *, size: tuple[int, int] = (320, 240), kind: str = "JPEG", **options: Any) -> dict[str, Any]:
        random = np.random.default_rng(seed)
        image = Image.new("RGB", size, tuple(random.integers(60, 256, 3)))
        for x, y, radius in random.random((5, 3)):
            centre, reach = np.array([x * size[0], y * size[1]]), 20 + radius * min(size) / 4
            corners = [tuple(centre - reach), tuple(centre + reach)]
            ImageDraw.Draw(image).ellipse(corners, fill=tuple(random.integers(0, 256, 3)))
        file = io.BytesIO()
        image.save(file, kind, **options)
        return {"name": f"photo{seed}.jpg", "mimeType": f"image/{kind.lower()}", "buffer": file.getvalue()}

    return make


@pytest.fixture
def open_page(page_of: Callable[..., Any], server: Any) -> Iterator[Callable[..., Any]]:
    """The page of the server. Whatever a test does, it sends no request elsewhere and no error reaches the console."""
    faults: list[str] = []

    def open_it(url: str = server.url, **options: Any) -> Any:
        page = page_of(permissions=["clipboard-read", "clipboard-write"], **options)
        page.set_default_timeout(PATIENCE_MS)
        pytest.importorskip("playwright.sync_api").expect.set_options(timeout=PATIENCE_MS)
        page.on("console", lambda line: REPORTED_BY_CHROMIUM.match(line.text) or faults.append(line.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith((url, "blob:", "data:")) or faults.append(asked.url))
        page.goto(url)
        page.wait_for_function("document.querySelector('#chosen').textContent !== ''")
        return page

    yield open_it
    assert faults == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    """The page, light and wide."""
    return open_page()
