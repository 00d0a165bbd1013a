"""Finding Java, with small scripts in its place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xlan.errors import MetricError
from xlan.metrics.spice_process import TAIL_BYTES, find_java, run_to_end

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses shell scripts")


def fake_java(folder: Path, script: str) -> Path:
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('java version "1.8.0_101"', 8),
        ('openjdk version "9"', 9),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "17.0.15" 2025-04-15', 17),
    ],
)
def test_versions_old_and_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, version: int) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, f"cat >&2 <<'END'\n{line}\nEND")))
    java = find_java()
    assert (java.version, java.executable) == (version, tmp_path / "bin" / "java")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java version \"1.7.0_80\"' >&2", "needs Java 8 or later, .* is Java 7"),
        ("echo hello", "gives no version number"),
        ("echo 'java version \"17\"'; exit 1", "gives no version number"),
    ],
)
def test_unusable_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, script)))
    with pytest.raises(MetricError, match=f"{message}.*JAVA_HOME"):
        find_java()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MetricError, match=r"SPICE needs Java and none was found: install Java 8 to 21"):
        find_java()


def test_a_java_home_without_java_falls_back_to_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path, "echo 'openjdk version \"17\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.defpath}")
    assert find_java().executable == home / "bin" / "java"


def test_status_and_only_the_end_of_stderr_are_kept(tmp_path: Path) -> None:
    script = "import sys; sys.stderr.write('x' * 300000 + 'the end'); sys.exit(3)"
    outcome = run_to_end([sys.executable, "-c", script], folder=tmp_path, timeout=60)
    assert outcome.status == 3
    assert outcome.errors.endswith("xthe end")
    assert len(outcome.errors) == TAIL_BYTES


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="does not start: No such file"):
        run_to_end([str(tmp_path / "nothing")], folder=tmp_path, timeout=1)
