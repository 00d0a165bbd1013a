"""Every page of the documentation: its Python runs as written, its links lead somewhere, its commands exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from PIL import Image
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.vision.detector.bottom_up import BottomUp, BottomUpSpec
from xlan.vision.detector.conventions import LXMERT
from xlan.vision.detector.directory import save_bottom_up
from xlan.vision.detector.resnet import ResNetSpec

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
GENERATED = {f"docs/reference/{name}.md" for name in ("cli", "api", "config", "default-model", "changes")}
NAME = {"ids": lambda page: page.relative_to(ROOT).as_posix()}


@pytest.fixture
def folder(tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages refer to: pictures, a model directory, captions."""
    (tmp_path / "holiday").mkdir()
    for i, name in enumerate(("photo.jpg", "a.jpg", "b.jpg", "holiday/beach.jpg", "holiday/hills.jpg")):
        pixels = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((160, 120)).save(tmp_path / name)
    shutil.copytree(model_directory, tmp_path / "DIR")
    shutil.copytree(model_directory, tmp_path / "model")
    shutil.copytree(model_directory, tmp_path / "xlan-released")
    small = BottomUpSpec(
        resnet=ResNetSpec(stem=8, blocks=(1, 1, 1, 1), width=8, out=160),  # its features are as wide as the model's
        rpn=16,
        classes=5,
        attributes=3,
        embedding=8,
        attribute_hidden=8,
    )
    save_bottom_up(tmp_path / "bottom-up", small, LXMERT, BottomUp(small, LXMERT).state_dict())
    shutil.copytree(model_directory, tmp_path / "src" / "xlan" / "models" / "default")
    shutil.copy(model_directory / "vision.safetensors", tmp_path / "vision.safetensors")
    monkeypatch.setattr("xlan.pretrained.SHIPPED", model_directory)
    monkeypatch.setenv("XLAN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", WITH_PYTHON, **NAME)
def test_python_runs_as_written(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of a page in order, as a reader would type them."""
    (folder / "alt.csv").write_text("image,caption,confidence,score\nphoto.jpg,a dog,0.5,-1.0\n")
    (folder / "captions.csv").write_text(
        "file,caption,split\n391895.jpg,a man on a bike,train\n522418.jpg,a woman cuts a cake,train\n"
    )
    names: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, page.name, "exec"), names)


GUIDES = [ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in GUIDES if "```sh" in page.read_text(encoding="utf-8")], **NAME)
def test_the_commands_of_guides_run_in_order(page: Path, folder: Path) -> None:
    """Blocks marked `sh` run as written, beside the files that the page shows with a title; others are not run."""
    text = page.read_text(encoding="utf-8")
    for title, content in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', text, re.DOTALL):
        (folder / title).write_text(content, encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "xlan"
        outcome = CliRunner().invoke(app, arguments)
        assert outcome.exit_code == 0, f"{line}\n{outcome.output}\n{outcome.exception!r}"


@pytest.mark.parametrize("page", PAGES, **NAME)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        generated = (page.parent / target).resolve().relative_to(ROOT).as_posix() if "://" not in target else ""
        assert "://" in target or generated in GENERATED or (page.parent / target).exists(), target


def command_lines(text: str) -> Iterator[str]:
    """Lines of code blocks that call xlan, without comments."""
    for language, block in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL):
        if language in ("", "sh"):
            joined = re.sub(r"\\\n\s*", " ", block)
            for line in joined.splitlines():
                match = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*xlan ([^#]*)", line)
                if match:
                    yield match[1]


@pytest.mark.parametrize("page", PAGES, **NAME)
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in command_lines(page.read_text(encoding="utf-8")):
        words = shlex.split(re.split(r"\s[|>&]|\s{3,}", line)[0].replace("[", " ").replace("]", " "))
        command: Any = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands") or not words or words[0].startswith("-"), f"no command: xlan {line}"
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert used <= known | {"--help"}, f"xlan {line}"


def test_the_pages_hold_no_json_that_is_none() -> None:
    for page in PAGES:
        for block in re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            json.loads(block)
