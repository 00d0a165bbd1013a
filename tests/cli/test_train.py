from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from xlan.cli import health
from xlan.cli.main import app
from xlan.errors import ConfigError, ModelError

ROOT = Path(__file__).parent.parent.parent
SMOKE = ROOT / "configs" / "smoke.yaml"


def xlan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "xlan", *arguments], capture_output=True, text=True, check=False)


def test_check_prints_every_setting() -> None:
    result = CliRunner().invoke(app, ["train", str(SMOKE), "train.epochs=3", "--check"])
    assert result.exit_code == 0
    settings = yaml.safe_load(result.stdout)
    assert settings["train"]["epochs"] == 3
    assert settings["train"]["label_smoothing"] == 0.0


@pytest.mark.parametrize(
    ("override", "message"), [("model.name=xlam", "expected one of .*, got 'xlam'"), ("model.options.dimm=8", "'dimm'")]
)
def test_check_refuses_a_model_that_cannot_be_built(override: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CliRunner().invoke(app, ["train", str(SMOKE), override, "--check"], catch_exceptions=False)


def test_check_refuses_attributes_for_a_model_without_any() -> None:
    with pytest.raises(ConfigError, match=r"model\.attributes is for models with attributes"):
        CliRunner().invoke(
            app, ["train", str(SMOKE), "model.attributes=w.safetensors", "--check"], catch_exceptions=False
        )


def test_check_and_resume_do_not_go_together() -> None:
    result = CliRunner().invoke(app, ["train", str(SMOKE), "--check", "--resume", "auto"])
    assert result.exit_code == 2
    assert "leave out --resume" in result.stderr


def test_a_typo_is_one_line_and_status_1() -> None:
    result = xlan("train", str(SMOKE), "train.epoch=3")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "unknown key 'train.epoch'; did you mean 'epochs'?" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_file_is_one_line_and_status_1(tmp_path: Path) -> None:
    result = xlan("train", str(tmp_path / "none.yaml"))
    assert result.returncode == 1
    assert result.stderr.endswith("none.yaml: no such file\n")


def test_help_explains_every_option() -> None:
    result = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"})
    for expected in ("key=value", "--resume", "--check", "torchrun"):
        assert expected in result.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_processor_that_stops_bf16_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real child processes, ended by the signal such a processor sends."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(health, "_BF16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    run = ["train", str(SMOKE), "train.precision=bf16", f"output={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match=r"'bf16': a bfloat16 product was stopped by SIGILL.* precision fp32"):
        CliRunner().invoke(app, run, catch_exceptions=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_smoke_configs_train_and_self_critical_training_raises_cider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `make smoke` runs, from the shipped files, with their paths moved."""
    from xlan.files import read_json_lines

    scores = []
    for name, overrides in (("smoke", []), ("smoke_scst", [f"model.init={tmp_path}/smoke/best"])):
        folder = tmp_path / name
        config = ROOT / "configs" / f"{name}.yaml"
        result = CliRunner().invoke(app, ["train", str(config), f"output={folder}", *overrides])
        assert result.exit_code == 0, result.output
        log = list(read_json_lines(folder / "log.jsonl"))
        scores.append(max(record["scores"]["CIDEr"] for record in log if record["kind"] == "evaluation"))
        assert not [record for record in log if record["kind"] == "warning"]
        page = CliRunner().invoke(app, ["report", str(folder)])
        assert page.exit_code == 0
        assert (folder / "report.html").stat().st_size > 10_000
    assert scores[0] > 1.0
    assert scores[1] > scores[0]
