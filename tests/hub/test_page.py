"""docs/hub.md: its commands and its Python run as written, against the Hub on loopback."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from xlan.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "hub.md"


@pytest.mark.usefixtures("log_in")
@pytest.mark.filterwarnings("default:Use 'content=:DeprecationWarning")
def test_the_page_runs_as_written(
    hub: Any, published: Any, model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hub.repos["ann/dogs"]
    hub.repos["ann/photos"] = photos = type(published)()
    photos.refs["v1"] = photos.commit({path.name: path.read_bytes() for path in model_directory.iterdir()})
    shutil.copytree(model_directory, tmp_path / "DIR")
    Image.new("RGB", (80, 60), "green").save(tmp_path / "photo.jpg")
    (tmp_path / "scores.json").write_text(json.dumps({"CIDEr": 0.9}))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```\{\.(\w+) \.hub\}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "sh", "python"]
    for language, block in blocks:
        if language == "python":
            exec(compile(block, PAGE.name, "exec"), {"__name__": "docs"})
        for line in block.splitlines() if language == "sh" else []:
            outcome = CliRunner().invoke(app, shlex.split(line)[1:])
            assert outcome.exit_code == 0, f"{line}\n{outcome.output}\n{outcome.exception!r}"
    dogs = hub.repos["ann/dogs"]
    assert dogs.private
    assert "COCO, Karpathy's test split" in dogs.files()["README.md"].decode()
    assert "config.json" in dogs.files("trial")
