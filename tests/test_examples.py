"""The examples: `make caption` with its page, and the three that show the library's public names."""

from __future__ import annotations

import ast
import csv
import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

import xlan

ROOT = Path(__file__).parent.parent


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "socket", _no_network)
    return load("caption_demo")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
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
    monkeypatch.setattr("xlan.pretrained.SHIPPED", model_directory)
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
    monkeypatch.setattr("xlan.pretrained.SHIPPED", model_directory)
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


PUBLIC = ["caption_folder", "finetune", "xlinear_layer"]


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_import_public_names_only(name: str) -> None:
    tree = ast.parse((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "xlan":
            assert node.module == "xlan"
            assert {alias.name for alias in node.names} <= set(xlan.__all__)
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("xlan.")]


def test_caption_folder(tmp_path: Path, model_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    Image.new("RGB", (50, 40), "red").save(photos / "red.png")
    Image.new("RGB", (50, 40), "blue").save(photos / "more" / "blue.jpg")
    (photos / "broken.jpg").write_bytes(b"no picture")
    out = tmp_path / "alt.csv"
    status = load("caption_folder").main([str(photos), "-o", str(out), "--model", str(model_directory)])
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["image"] for row in rows] == ["more/blue.jpg", "red.png"]
    assert all(row["alt"] and 0 <= float(row["confidence"]) <= 1 for row in rows)
    assert all((row["check"] == "yes") == (float(row["confidence"]) < 0.5) for row in rows)
    said = capsys.readouterr()
    assert status == 1
    assert "broken.jpg" in said.err
    assert "2 of 3 pictures" in said.out


def test_finetune_lowers_the_loss_and_writes_a_model(
    tmp_path: Path, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for colour in ("red", "blue"):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\nred.png,A dog on grass.\nred.png,the dog\nblue.png,a cat on the sofa\n")
    finetune = load("finetune")
    typed = [str(tmp_path), str(table), "--model", str(model_directory), "-o", str(tmp_path / "mine")]
    assert finetune.main([*typed, "--epochs", "15", "--batch-size", "3", "--rate", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "does not know, which it cannot learn to say: sofa" in out
    losses = [float(loss) for loss in re.findall(r"loss per word ([\d.]+)", out)]
    assert len(losses) == 15
    assert losses[-1] < 0.6 * losses[0]
    captioner = xlan.Captioner.from_pretrained(tmp_path / "mine")
    assert "dog" in captioner.caption(tmp_path / "red.png").text.split()


def test_xlinear_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert load("xlinear_layer").main(["--steps", "120"]) == 0
    (xlinear,) = re.findall(r"X-Linear attention: (\d+)% right", capsys.readouterr().out)
    assert int(xlinear) > 50  # by chance: 10
