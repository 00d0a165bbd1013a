from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.errors import DataError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("xlan.metrics.submission.IMAGES", {"val2014": 1, "test2014": 1})
    for name, image in (("val", 1), ("test", 2)):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"image_id": image, "caption": "a dog"}]))
    return [str(tmp_path / "val.json"), str(tmp_path / "test.json")]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["submit", *arguments])


def test_files_are_written_and_named(files: list[str], tmp_path: Path) -> None:
    images = tmp_path / "images.json"
    images.write_text(json.dumps({"images": [{"id": 1}]}))
    outcome = run(*files, "--name", "xlan", "--out", str(tmp_path / "out"), "--val-images", str(images))
    assert outcome.exit_code == 0, outcome.exception
    assert "captions_val2014_xlan_results.json: 1 caption, every image id checked" in outcome.stdout
    assert "captions_test2014_xlan_results.json: 1 caption, image ids counted, not checked" in outcome.stdout
    assert (tmp_path / "out" / "captions_xlan_results.zip").exists()


def test_a_wrong_number_of_captions_is_refused(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlan.metrics.submission.IMAGES", {"val2014": 5, "test2014": 1})
    outcome = run(*files, "--name", "xlan", "--out", str(tmp_path / "out"))
    assert isinstance(outcome.exception, DataError)
    assert "val2014 has 5 images, got captions of 1" in str(outcome.exception)
