"""Captioning works where torch is not installed, given an engine that does not need it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

HIDE_TORCH = """
import sys


class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


sys.meta_path.insert(0, NoTorch())
"""
CODE = """
import numpy as np
import xlan
from xlan import Caption, Captioner, CaptionOptions, Regions, Vocabulary
from xlan.engines.interface import Decoded, SearchRequest
from xlan.errors import MissingExtraError
from xlan.cli.main import app


class Parrot:
    name, feature_dim, vocab_size, description = "parrot", 2, 6, {}

    def decode(self, regions, request, worths):
        ids = tuple(request.required[0][0]) + (2,)
        return [[Decoded(ids, (-0.5,) * len(ids), -0.5 * len(ids), True)] for _ in regions]


captioner = Captioner(Parrot(), Vocabulary.from_words(["dog", "runs"]))
picture = Regions(np.ones((3, 2), np.float32), np.zeros((3, 4), np.float32))
print(captioner.caption_regions([picture], CaptionOptions(must="dog runs"))[0].text)
caption = Captioner.from_pretrained(sys.argv[1]).caption(np.zeros((40, 60, 3), np.uint8))
print(len(caption.words) > 0)
try:
    Captioner.from_pretrained(sys.argv[1], engine="torch")
except MissingExtraError as error:
    print(error)
try:
    xlan.XLinearAttention
except ModuleNotFoundError as error:
    print(error.name)
print("torch" in sys.modules)
"""


def test_without_torch(model_directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE_TORCH + CODE, str(model_directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "dog runs",
        "True",
        'the torch engine needs packages that are not installed; type: pip install "xlan[train]"',
        "torch",
        "False",
    ]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    code = HIDE_TORCH + "from xlan.cli.main import main\nmain()"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_commands_caption_and_explain_without_torch(model_directory: Path, tmp_path: Path) -> None:
    Image.new("RGB", (80, 60), (200, 30, 30)).save(tmp_path / "red.png")
    captioned = command("caption", tmp_path / "red.png", "--model", model_directory, "--json")
    assert (captioned.returncode, captioned.stderr) == (0, "")
    page = tmp_path / "why.html"
    explained = command("explain", tmp_path / "red.png", "-o", page, "--model", model_directory)
    assert (explained.returncode, explained.stderr) == (0, "")
    assert page.stat().st_size > 1000


def test_the_small_detector_works_without_torch(detector_directory: Path, tmp_path: Path) -> None:
    Image.new("RGB", (80, 60), (200, 30, 30)).save(tmp_path / "red.png")
    arguments = ("detect", tmp_path / "red.png", "--detector", detector_directory, "--min-score", "0", "--json")
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert {found["name"] for found in json.loads(line)["objects"]} <= {"dog", "cat"}
    refused = command(*arguments, "--engine", "torch")
    assert refused.stderr.splitlines() == [
        'error: this detector needs packages that are not installed; type: pip install "xlan[train]"'
    ]


def test_batch_features_of_a_vision_file_work_without_torch(model_directory: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'xlan[batch]'")
    Image.new("RGB", (80, 60), (200, 30, 30)).save(tmp_path / "red.png")
    arguments = ("batch", "features", tmp_path / "red.png", "--vision", model_directory / "vision.safetensors")
    done = command(*arguments, "-o", tmp_path / "store", "--workers", "0")
    assert done.returncode == 0, done.stderr
    refused = command(*arguments, "-o", tmp_path / "other", "--workers", "0", "--engine", "torch")
    assert refused.stderr.splitlines()[-1] == (
        'error: the torch engine needs packages that are not installed; type: pip install "xlan[train]"'
    )


def test_commands_that_need_torch_say_what_to_type(tmp_path: Path) -> None:
    done = command("train", Path(__file__).parents[2] / "configs" / "smoke.yaml", f"output={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        'error: this command needs packages that are not installed; type: pip install "xlan[train]"'
    ]
