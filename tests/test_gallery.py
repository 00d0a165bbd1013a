"""runs/gallery.py: two models on the same pictures, with the best region of each word outlined."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import gallery


@pytest.fixture
def models(model_directory: Path, tmp_path: Path) -> list[str]:
    return [str(shutil.copytree(model_directory, tmp_path / name)) for name in ("updown", "xlan")]


def test_a_gallery_of_pictures_of_ones_own(models: list[str], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for colour in ("navy", "ivory", "olive"):
        Image.new("RGB", (80, 60), colour).save(tmp_path / "photos" / f"{colour}.png")
    assert gallery.main([*models, str(tmp_path / "out"), "--photos", str(tmp_path / "photos"), "--count", "2"]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert re.findall(r"<h2>(\w+)</h2>", page) == ["ivory", "navy"]
    assert page.count("data:image/jpeg;base64,") == 2
    assert len(re.findall(r'alt="updown: [^"]*; xlan: ', page)) == 2
    own = (tmp_path / "out" / "navy.html").read_text()
    sides = own.split('<section class="account">')[1:]
    assert len(sides) == 2
    for side in sides:  # every word of both models has its region outlined
        assert side.count('class="edge"') == side.count('<li class="word">') > 0


def test_pictures_that_may_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(gallery.pictures(None, 12))) == 12
    monkeypatch.setattr(gallery, "PHOTOGRAPHS", {})
    drawn = [name for name, _ in gallery.pictures(None, 3)]
    assert drawn == ["drawing 1", "drawing 2", "drawing 3"]


def test_what_cannot_be_used_is_one_line(models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert gallery.main([*models, str(tmp_path / "out"), "--photos", str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'empty'}: expected pictures in this folder, found none\n"


def test_one_page_alone(models: list[str], tmp_path: Path) -> None:
    assert gallery.main([*models, str(tmp_path / "out"), "--count", "1", "--alone"]) == 0
    assert [item.name for item in (tmp_path / "out").iterdir()] == ["index.html"]
    assert "word by word" not in (tmp_path / "out" / "index.html").read_text()
