"""docs/serving.md says what is true: its commands run, and it names every option, problem and metric."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main

from xlan.cli.main import app
from xlan.serving.openapi import EXAMPLE_ANSWER
from xlan.serving.problems import KINDS
from xlan.serving.schemas import Options

PAGE = (Path(__file__).parent.parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
EXAMPLE = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
CURL = [line for line in COMMANDS if "curl " in line]


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="needs curl and bash")
@pytest.mark.parametrize("command", CURL, ids=range(len(CURL)))
def test_its_commands_run(server: Any, picture: Callable[..., bytes], tmp_path: Path, command: str) -> None:
    (tmp_path / "photo.jpg").write_bytes(picture(0, kind="JPEG"))
    typed = command.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "/v1/captions" in command:
        answer = json.loads(done.stdout)
        if "/batch" in command:
            answer = answer["results"][0]["answer"]
        assert answer.keys() == EXAMPLE.keys()
        assert answer["words"][0].keys() == EXAMPLE["words"][0].keys()


def test_there_are_commands_for_every_address() -> None:
    assert len(CURL) >= 8
    for address in ("/v1/captions", "/v1/model", "/v1/health", "/metrics"):
        assert any(address in command for command in CURL)


def test_its_answer_is_the_one_of_the_docs_page() -> None:
    assert EXAMPLE == EXAMPLE_ANSWER


def test_every_option_is_explained() -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    names = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
    assert len(names) > 10
    for name in names:
        assert name == "--help" or f"`{name}`" in PAGE, name
    for name in Options.model_fields:
        assert f"`{name}`" in PAGE, name


def test_every_problem_is_listed_with_its_status() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| 4") or line.startswith("| 5")]
    for kind, (status, _) in KINDS.items():
        assert any(f"`{kind}`" in row and str(status) in row.split("|")[1] for row in rows), kind


def test_every_metric_is_named(server: Any) -> None:
    text = httpx.get(server.url + "/metrics", timeout=60, trust_env=False).text
    names = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    assert len(names) >= 10
    for name in names:
        assert f"`{name}`" in PAGE, name
