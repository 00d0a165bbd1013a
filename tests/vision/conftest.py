"""A small network under a name of its own, and pictures drawn for the tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from xlan.vision.efficientnet import EfficientNetLite
from xlan.vision.lite import SPECS, LiteSpec


@pytest.fixture
def tiny_spec(monkeypatch: pytest.MonkeyPatch) -> LiteSpec:
    """A network of a few thousand weights, known as "tiny" while the test runs."""
    spec = LiteSpec("tiny", width=0.25, depth=0.25, input_size=64, head=24)
    monkeypatch.setitem(SPECS, "tiny", spec)
    return spec


@pytest.fixture
def tiny_network(tiny_spec: LiteSpec) -> EfficientNetLite:
    """The small network with random weights."""
    torch.manual_seed(0)
    return EfficientNetLite(tiny_spec).eval()


@pytest.fixture
def draw() -> Callable[..., bytes]:
    """Bytes of a picture with random coloured rectangles."""

    def picture(seed: int = 0, *, size: tuple[int, int] = (80, 60), kind: str = "PNG") -> bytes:
        random = np.random.default_rng(seed)
        image = Image.new("RGB", size, tuple(random.integers(0, 256, 3).tolist()))
        for _ in range(4):
            x, y = int(random.integers(0, size[0])), int(random.integers(0, size[1]))
            image.paste(tuple(random.integers(0, 256, 3).tolist()), (x, y, x + 20, y + 15))
        file = io.BytesIO()
        image.save(file, kind)
        return file.getvalue()

    return picture


@pytest.fixture
def folder(tmp_path: Path, draw: Callable[..., bytes]) -> Path:
    """Six pictures, one of them in a sub-folder, one broken, and a file that is none."""
    root = tmp_path / "pictures"
    (root / "more").mkdir(parents=True)
    for i in range(5):
        (root / f"a{i}.png").write_bytes(draw(i))
    (root / "more" / "b.JPG").write_bytes(draw(9, kind="JPEG"))
    (root / "broken.png").write_bytes(draw(7)[:80])
    (root / "notes.txt").write_text("no picture")
    return root
