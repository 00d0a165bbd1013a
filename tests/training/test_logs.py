from __future__ import annotations

import json
from pathlib import Path

import pytest

from xlan.errors import DataError
from xlan.files import read_json_lines
from xlan.training.logs import RunLog


def quiet_log(folder: Path) -> RunLog:
    log = RunLog(folder, tensorboard=False, quiet=False)
    log.console.quiet = True
    return log


def test_records_are_lines_of_json(tmp_path: Path) -> None:
    quiet_log(tmp_path).write("step", step=3, loss=1.5)
    record = json.loads((tmp_path / "log.jsonl").read_text())
    assert (record["kind"], record["step"], record["loss"]) == ("step", 3, 1.5)


def test_a_number_json_cannot_write_is_null(tmp_path: Path) -> None:
    quiet_log(tmp_path).write("step", step=1, loss=float("nan"))
    assert json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=pytest.fail)["loss"] is None


def test_a_nested_number_json_cannot_write_is_null_too(tmp_path: Path) -> None:
    quiet_log(tmp_path).write("evaluation", step=1, scores={"CIDEr": float("nan"), "loss": float("inf"), "BLEU-4": 0.5})
    record = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=pytest.fail)
    assert record["scores"] == {"CIDEr": None, "loss": None, "BLEU-4": 0.5}


def test_rewind_drops_what_will_happen_again_and_a_line_cut_short(tmp_path: Path) -> None:
    log = quiet_log(tmp_path)
    for step in (1, 2, 3):
        log.write("step", step=step)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    log.rewind(2)
    assert [record["step"] for record in read_json_lines(tmp_path / "log.jsonl")] == [1, 2]
    log.write("step", step=3)
    assert [record["step"] for record in read_json_lines(tmp_path / "log.jsonl")] == [1, 2, 3]


def test_rewind_drops_an_evaluation_that_will_happen_again(tmp_path: Path) -> None:
    log = quiet_log(tmp_path)
    for step in (3, 6):
        log.write("step", step=step)
        log.write("evaluation", step=step, scores={})
    log.rewind(6)
    assert len(list(read_json_lines(tmp_path / "log.jsonl"))) == 4
    log.rewind(6, unevaluated=True)
    assert [(r["kind"], r["step"]) for r in read_json_lines(tmp_path / "log.jsonl")] == [
        ("step", 3),
        ("evaluation", 3),
        ("step", 6),
    ]


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"log\.jsonl: no such file"):
        list(read_json_lines(tmp_path / "log.jsonl"))


def test_a_quiet_log_writes_nothing(tmp_path: Path) -> None:
    log = RunLog(tmp_path, tensorboard=True, quiet=True)
    log.write("step", step=1)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_events_are_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path, tensorboard=True, quiet=False)
    log.write("evaluation", step=1, scores={"CIDEr": 1.0})
    log.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_without_a_terminal_lines_appear_now_and_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(tmp_path, tensorboard=False, quiet=False)
    with log.epoch(0, 3, done=0, total=2) as display:
        display.seconds_between_lines = 0.0
        display.advance("loss 1.000")
    assert "epoch 1/3  1/2  loss 1.000" in capsys.readouterr().err
