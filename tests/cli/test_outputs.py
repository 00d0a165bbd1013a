"""Commands never write over what they read, and refuse a name that cannot work before they begin."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.data.shapes import write_shapes
from xlan.errors import DataError


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    write_shapes(tmp_path, 16)
    return tmp_path


def run(*arguments: object) -> None:
    CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["the file itself", "a link to it"])
@pytest.mark.parametrize("command", ["predict", "vocab", "evaluate", "build-df"])
def test_a_file_that_is_read_is_not_written(shapes: Path, kind: str, command: str) -> None:
    captions = shapes / "captions.jsonl"
    before = captions.read_bytes()
    output = captions
    if kind == "a link to it":
        output = shapes / "link.jsonl"
        output.symlink_to(captions)
    arguments: list[object] = {
        "predict": ["predict", "model", "--captions", captions, "--features", shapes / "features", "-o", output],
        "vocab": ["data", "vocab", captions, "-o", output, "--threshold", 1],
        "build-df": ["metrics", "build-df", captions, shapes / "vocab.json", output],
        "evaluate": ["evaluate", shapes / "results.json", captions, "--per-image", output],
    }[command]
    with pytest.raises(DataError, match=f"{output.name}: is read by this command and would be lost"):
        run(*arguments)
    assert captions.read_bytes() == before


def test_a_folder_is_refused_before_the_model_is_loaded(shapes: Path) -> None:
    with pytest.raises(DataError, match="is a folder; expected the name of a file to write"):
        run("predict", "nowhere", "--captions", shapes, "--features", shapes / "features", "-o", shapes)


def test_the_page_of_a_run_does_not_replace_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("{}\n")
    with pytest.raises(DataError, match=r"log.jsonl: expected a file name that ends in .html"):
        run("report", tmp_path, "-o", log)
    assert log.read_text() == "{}\n"
