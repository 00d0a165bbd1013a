"""`make caption`: photographs and pictures of one's own, on a page that leads to explanations."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "socket", _no_network)
    spec = importlib.util.spec_from_file_location("caption_demo", ROOT / "examples" / "caption_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _no_network(*_: object, **__: object) -> None:
    raise AssertionError("the demo uses the network")


def lines_of(output: str, names: list[str]) -> list[str]:
    return [line for line in output.splitlines() if line.split(" ")[0] in names]


NAMES = ["cat", "coffee", "rocket", "astronaut", "motorcycle"]


def test_it_captions_the_photographs_and_ones_own(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skimage")
    monkeypatch.setattr("xlan.pipeline.SHIPPED", model_directory)
    Image.new("RGB", (50, 40), "red").save("mine.png")
    assert demo.main(["mine.png"]) == 0
    lines = lines_of(capsys.readouterr().out, [*NAMES, "mine.png"])
    assert [line.split(" ")[0] for line in lines] == [*NAMES, "mine.png"]
    assert all(re.search(r"\(confidence 0\.\d\d, \d+\.\d\d s\)$", line) for line in lines)
    page = Path("captions.html").read_text()
    assert page.count('src="data:image/jpeg;base64,') == 6
    links = re.findall(r'href="(captions/[^"]+)"', page)
    assert len(links) == 6
    assert all("Word by word" in Path(link).read_text() for link in links)


def test_a_broken_picture_is_one_line_and_the_rest_goes_on(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skimage")
    monkeypatch.setattr("xlan.pipeline.SHIPPED", model_directory)
    Image.new("RGB", (50, 40), "red").save("mine.png")
    assert demo.main(["none.jpg", "*.bmp", "*.png", "--output", "page.html"]) == 1
    assert capsys.readouterr().err == "*.bmp: no picture matches\nnone.jpg: no such file\n"
    assert Path("page.html").read_text().count("<figure>") == 6


def test_photographs_need_scikit_image(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=re.escape('type: pip install "xlan[demo]"')):
        demo.photographs()


def test_make_passes_the_picture_on_whatever_its_name(tmp_path: Path) -> None:
    """`make -n` prints what would run; spaces and quotes in IMAGE must not become several words."""
    pytest.importorskip("fcntl")
    marker = ROOT / ".venv" / ".installed"
    name = "my holiday's photo.jpg"
    typed = ["make", "-n", "-o", str(marker.relative_to(ROOT)), "caption", f"IMAGE={name}", f"BIN={tmp_path}"]
    try:
        done = subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    except FileNotFoundError:
        pytest.skip("make is not installed")
    (line,) = [line for line in done.stdout.splitlines() if "caption_demo" in line]
    shown = "import sys; print(sys.argv[1:])"
    line = line.replace(f"{tmp_path}/python examples/caption_demo.py", f"{sys.executable} -c '{shown}'")
    assert subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout.strip() == str([name])
