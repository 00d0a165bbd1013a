"""The README is true: its Python runs, its commands run in order, its numbers and links exist."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.fixture
def folder(tmp_path):
    """A folder with the pictures that the README names."""
    (tmp_path / "holiday").mkdir()
    for i, name in enumerate(("photo.jpg", "holiday/beach.jpg", "holiday/hills.png")):
        pixels = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((160, 120)).save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("code", blocks("python"), ids=range(len(blocks("python"))))
def test_python_examples_run(code, capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_make_words_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"\bmake (\w+)\b", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert named <= targets


@pytest.mark.slow
def test_commands_run_in_order(folder):
    shutil.copytree(ROOT / "configs", folder / "configs")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["XLAN_CACHE_DIR"] = str(folder / "cache")
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("xlan ")]
    assert len(commands) >= 5
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert (folder / "captions.json").stat().st_size > 1000


def test_parameter_counts():
    import torch

    from xlan import build_model

    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \|$", README, re.M)
    assert len(rows) == 4
    for name, count in rows:
        with torch.device("meta"):
            model = build_model(name)
        assert sum(parameter.numel() for parameter in model.parameters()) == int(count.replace(",", "")), name


def test_every_named_model_exists():
    from xlan.model.spec import MODELS

    table = README.split("| name | what it is")[1].split("\n\n")[0]
    named = set(re.findall(r"`((?!-tiny)[\w-]+)`", table))
    assert named <= set(MODELS)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_scores_are_those_of_the_card():
    card = (ROOT / "src/xlan/models/default/README.md").read_text(encoding="utf-8")
    (cider, photos) = re.search(r"CIDEr ([\d.]+) on ([\d,]+) test photos", README).groups()
    (row,) = re.findall(r"^\| .*\(this model\) \|.*$", card, re.M)
    assert row.split("|")[6].strip() == cider
    assert f"On {photos} photos" in card


def test_the_captions_are_what_the_model_says():
    pytest.importorskip("skimage")
    from xlan import Captioner

    spec = importlib.util.spec_from_file_location("caption_demo", ROOT / "examples" / "caption_demo.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    captioner = Captioner.from_pretrained()
    shown = re.findall(r"^(\w+) +(.*?)  \(confidence (0\.\d\d), ", README, re.M)
    assert [name for name, _, _ in shown] == list(demo.PHOTOS)
    for (_, sentence, confidence), (_, path) in zip(shown, demo.photographs(), strict=True):
        caption = captioner.caption(path)
        assert caption.text == sentence
        assert caption.confidence == pytest.approx(float(confidence), abs=0.02)
