"""`xlan doctor`: findings, what to type, and an exit status that says whether captioning works."""

from __future__ import annotations

import json
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import xlan
from xlan.cli import health
from xlan.cli.health import Check, Probe, Requirement
from xlan.cli.main import app

ROOT = Path(__file__).parent.parent.parent


def doctor(*arguments: str):
    return CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)


def pretend(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    def all_checks(model: Path | None) -> Iterator[Check]:
        yield from checks

    monkeypatch.setattr(health, "all_checks", all_checks)


def test_the_real_thing(model_directory: Path) -> None:
    result = doctor("--json", "--model", str(model_directory))
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["ok"] is True
    assert found["xlan"] == xlan.__version__
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["Python"]["status"] == "ok"
    assert "threads on" in by_name["torch"]["detail"]
    assert "build" in by_name["torch"]["detail"]
    assert by_name["onnxruntime"]["status"] == "ok"
    assert "with onnx, captions a picture" in by_name["model"]["detail"]
    assert by_name["model"]["status"] == "ok"
    assert "captions a picture in" in by_name["model"]["detail"]
    assert {"bf16", "pictures", "Java", "spaCy model", "fonts", "cache folder", "extra train"} <= set(by_name)
    assert all(check["fix"] for check in found["checks"] if check["status"] != "ok")


def test_every_finding_is_a_line_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("A", "ok", "fine"), Check("B", "absent", "no B", "pip install b")]
    pretend(monkeypatch, *checks, Check("C", "ok", "c", "sit down", typed=False))
    result = doctor()
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:5] == [
        "ok     A                 fine",
        "–      B                 no B",
        "                         type: pip install b",
        "ok     C                 c",
        "                         sit down",
    ]
    assert f"xlan {xlan.__version__}: captioning works; 2 checks passed, 1 not installed" in result.stdout


@pytest.mark.parametrize(("core", "status"), [(True, 1), (False, 0)])
def test_only_a_broken_core_fails(monkeypatch: pytest.MonkeyPatch, core: bool, status: int) -> None:
    pretend(monkeypatch, Check("X", "broken", "dead", "do something", core=core))
    result = doctor()
    assert result.exit_code == status
    assert "BROKEN X" in result.stdout
    assert ("does not work here" in result.stdout) == core
    assert json.loads(doctor("--json").stdout)["ok"] is not core


def test_a_damaged_model_is_found(model_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in model_directory.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # one bit of one weight: only the hash can tell
    (copy / "model.safetensors").write_bytes(weights)
    (check,) = health.model_checks(copy, engine_works=True)
    assert (check.status, check.core) == ("broken", True)
    assert "damaged (its SHA-256 differs)" in check.detail
    (missing,) = health.model_checks(tmp_path / "none", engine_works=True)
    assert "not a model directory" in missing.detail


def test_a_package_without_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("xlan.pretrained.SHIPPED", tmp_path / "none")
    (check,) = health.model_checks(None, engine_works=True)
    assert (check.status, check.fix) == ("absent", "xlan caption --model DIR PICTURE")


def test_a_torch_that_does_not_start_is_a_finding() -> None:
    check = health.torch_check(Probe("raise ImportError('libtorch is missing')"))
    assert (check.status, check.core) == ("broken", False)
    assert check.detail == "ImportError: libtorch is missing"
    absent = health.torch_check(Probe("raise ModuleNotFoundError(\"No module named 'torch'\")"))
    assert (absent.status, absent.fix) == ("absent", 'pip install "xlan[train]"')
    (model,) = health.model_checks(None, engine_works=False)
    assert (model.status, model.core) == ("broken", True)
    assert "neither onnxruntime nor torch works" in model.detail


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_processor_that_stops_bf16_is_a_finding_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import os, signal; os.environ.get('ONEDNN_MAX_CPU_ISA') or os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(health, "_BF16", dies)
    check = health.bf16_check(Probe(dies))
    assert (check.status, check.core) == ("broken", False)
    assert "stopped by SIGILL" in check.detail
    assert check.fix == "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    always = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(health, "_BF16", always)
    assert health.bf16_check(Probe(always)).fix == "train with precision fp32"
    assert health.bf16_check(Probe("pass")).status == "ok"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.5)
    probe = Probe("import time; time.sleep(60)")
    assert probe.finish() == -signal.SIGKILL
    assert probe.reason == "stopped by SIGKILL"


def test_every_extra_is_explained() -> None:
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(health.EXTRAS) == set(extras)


def test_extras_that_are_missing_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"": [], "train": [Requirement("no-such-package", "no-such-package>=1")], "demo": []}
    monkeypatch.setattr(health, "requirements", lambda: needed)
    train, demo = health.extras()
    assert (train.status, train.fix) == ("absent", 'pip install "xlan[train]"')
    assert "no-such-package is not installed" in train.detail
    assert demo.status == "ok"


def test_a_core_package_that_is_missing_breaks_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "requirements", lambda: {"": [Requirement("nothing", "nothing>=2")]})
    (check,) = health.packages()
    assert (check.status, check.core, check.fix) == ("broken", True, 'pip install "nothing>=2"')
    monkeypatch.setattr(health, "requirements", dict)
    (check,) = health.packages()
    assert check.status == "absent"


@pytest.mark.parametrize(
    ("wanted", "installed", "fault"),
    [
        ("x>=2.6", "2.13.0+cpu", ""),
        ("x>=2.6", "2.5.1", "x 2.5.1 is not >=2.6"),
        ("x<3,>=2.2", "3.0.0", "x 3.0.0 is not <3"),
        ("x==3.8.0", "3.8", ""),
        ("x", "0.1rc1", ""),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, wanted: str, installed: str, fault: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    assert Requirement("x", wanted).fault() == fault


def test_folders_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XLAN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("XLAN_DATA_DIR", str(tmp_path / "new" / "data"))
    cache, data, temporary = health.folders()
    assert (cache.status, cache.fix) == ("broken", "export XLAN_CACHE_DIR=FOLDER")
    assert "cannot be written" in cache.detail
    assert (data.status, temporary.status) == ("ok", "ok")
    assert not (tmp_path / "new").exists()  # looking changes nothing


def test_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = health.java()
    assert check.status == "absent"
    assert "only the official SPICE needs it" in check.detail
    assert check.fix.startswith("install Java 8 to 21")


def test_the_promised_pythons_are_the_same_everywhere() -> None:
    from xlan.cli.health import NEWEST_PYTHON, OLDEST_PYTHON

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [line.rsplit(" ", 1)[1] for line in project["classifiers"] if "Python :: 3." in line]
    versions = [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1)]
    assert named == versions
    assert project["requires-python"] == f">={versions[0]}"
    assert f"Python {versions[0]} to {versions[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
