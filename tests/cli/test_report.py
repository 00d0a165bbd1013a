from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from xlan.cli.main import app


def test_the_page_goes_where_it_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"kind": "start", "step": 0}\n')
    result = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "sub" / "page.html")])
    assert result.exit_code == 0
    assert result.stdout.strip() == str(tmp_path / "sub" / "page.html")
    assert (tmp_path / "sub" / "page.html").read_text().startswith("<!doctype html>")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert "not a training run" in str(result.exception)
