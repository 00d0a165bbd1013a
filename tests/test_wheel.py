"""What a user gets: the wheel alone, in an environment and a folder that know nothing of this repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import check_dist
from xlan.pretrained import SHIPPED

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SHIPPED.is_dir(), reason="this checkout has no trained model in src/xlan/models"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what the build needs."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    target = source / "dist"
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "-q", "-w"]
    subprocess.run([*command, str(target)], check=True, capture_output=True, timeout=300)
    return next(target.glob("*.whl"))


def test_it_passes_the_checks_of_a_release(wheel: Path) -> None:
    assert list(check_dist.wheel_faults(wheel, expected=check_dist.version())) == []


def test_it_carries_the_model_and_the_page(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("config.json", "model.safetensors", "vocab.json", "vision.safetensors", "README.md"):
        assert f"xlan/models/default/{name}" in names
    for name in ("index.html", "app.js", "app.css"):
        assert f"xlan/serving/static/{name}" in names
    for name in ("worker.js", "search.js", "sw.js"):
        assert f"xlan/web/static/{name}" in names
    assert not [name for name in names if name.endswith((".pyc", ".pt", ".pth", ".bin"))]


def test_installed_elsewhere_it_captions_a_photo_without_a_network(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    # torch and the other dependencies are taken from where the tests run; a path file does not bring in their own path
    # files, so the repository's editable installation stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    Image.effect_mandelbrot((320, 240), (-2, -1, 1, 1), 50).convert("RGB").save(tmp_path / "photo.jpg")
    offline = ["unshare", "-rn"]  # a namespace of its own, with no network in it
    if shutil.which("unshare") is None or subprocess.run([*offline, "true"], capture_output=True).returncode:
        pytest.skip("this system gives no network namespace (unshare -rn)")
    code = "import xlan, sys; print(xlan.__file__); from xlan.cli.main import main; main()"
    command = [*offline, str(python), "-I", "-c", code, "caption", "photo.jpg"]  # -I: no PYTHONPATH
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    where, caption = done.stdout.splitlines()
    assert Path(where).is_relative_to(site)
    assert len(caption.split()) >= 3
