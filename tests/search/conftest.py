"""A small model, and folders of small photos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xlan.confidence.evidence import Witness
from xlan.confidence.judge import Judge
from xlan.pipeline import Captioner
from xlan.vision.words import WordHead

WORDS = ("a", "dog", "dogs", "cat", "on", "grass", "the")


@pytest.fixture(scope="session")
def captioner(model_directory: Path) -> Captioner:
    return Captioner.from_pretrained(model_directory, engine="onnx", threads=1)


@pytest.fixture(scope="session")
def seeing(captioner: Captioner) -> Captioner:
    """The same model, with a vision network that names three words by itself."""
    weight = np.random.default_rng(0).normal(scale=0.02, size=(3, 1280)).astype(np.float32)
    head = WordHead(("dog", "dogs", "cat"), weight, np.zeros(3, np.float32))
    judge = Judge(Witness(head))
    return Captioner(captioner.engine, captioner.vocabulary, captioner.extractor, judge, captioner.identity + "+head")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XLAN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def photo(path: Path, seed: int) -> Path:
    """A photo of a few coloured blocks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((80, 64), Image.Resampling.NEAREST).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """`photos(6)`: a folder with that many photos, 0.png to 5.png."""

    def make(count: int, name: str = "photos") -> Path:
        for number in range(count):
            photo(tmp_path / name / f"{number}.png", number)
        return tmp_path / name

    return make
