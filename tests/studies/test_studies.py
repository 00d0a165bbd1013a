"""Studies: what is refused before anything is trained, real runs on drawn shapes, and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.cli.stopping import ended_by_sigterm
from xlan.config import load_config, save_config
from xlan.data.captions import load_captions
from xlan.data.shapes import write_shapes
from xlan.errors import ConfigError, DataError, MetricError, TrainingError
from xlan.metrics import report
from xlan.model.spec import model_spec
from xlan.studies import runs as study_runs
from xlan.studies.page import study_page
from xlan.studies.runs import Run, best_rows, carry_out, cpu_places, first_stage, second_stage, shown
from xlan.studies.schema import load_study, row_config
from xlan.studies.table import Cell, Table, TableRow, as_markdown
from xlan.threads import cores

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    write_shapes(folder, 60, seed=3)
    return folder


@pytest.fixture
def write(tmp_path: Path, shapes: Path) -> Callable[..., Path]:
    """Writes a study of two tiny rows, changed as asked."""

    def make(**changes: Any) -> Path:
        recipe = yaml.safe_load((ROOT / "configs" / "smoke.yaml").read_text())
        del recipe["data"]["shapes"]
        recipe["data"] |= {"captions": str(shapes / "captions.jsonl"), "features": str(shapes / "features")}
        recipe["train"] |= {"epochs": 1, "batch_size": 15, "captions_per_image": 2}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        study = {
            "recipe": str(tmp_path / "recipe.yaml"),
            "output": str(tmp_path / "out"),
            "seeds": [1, 2],
            "against": "plain",
            "rows": {"plain": {}, "wide": {"set": {"model.options": {"dim": 48}}, "seeds": [1]}},
            "scoring": {"metrics": ["bleu", "cider"], "samples": 50},
        }
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({**study, **changes}))
        return path

    return make


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "studies").iterdir()), ids=lambda path: path.stem)
def test_every_study_that_comes_along_can_be_built(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = load_study(path)
    for row in study.rows:
        model = row_config(study, row, "out", seed=1).model
        assert model.name is not None
        model_spec(model.name, **model.options)
    if study.then is not None:
        load_config(study.then.recipe)
    assert f"xlan study {path.relative_to(ROOT)}" in path.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"against": "nobody"}, "against names 'nobody', which is not a row"),
        ({"rows": {"../up": {}}, "against": "../up"}, "names are made of letters"),
        ({"rows": {}}, "rows"),
        ({"seeds": []}, "seeds"),
        ({"seeds": 3}, "'seeds': expected a list in brackets, got 3"),
        ({"colour": "red"}, "unknown key 'colour'; allowed: against, output,"),
        ({"rows": {"plain": {"sett": {}}}}, "unknown key 'rows.plain.sett'; did you mean 'set'"),
        ({"rows": {"plain": None}}, "'rows.plain': expected keys and values, got nothing"),
        ({"rows": {2: {}}}, "row 2: expected a name; put it in quotation marks: '2'"),
        ({"then": {"recipe": "x.yaml"}}, "either 'rows' .names. or 'best'"),
        ({"then": {"recipe": "x.yaml", "best": 9}}, "only 2 rows"),
        ({"rows": {"plain": {"set": {"train.epochz": 3}}}}, "row 'plain': .*epochz"),
        ({"recipe": "nowhere.yaml"}, "nowhere.yaml: no such file"),
        ({"recipe": str(ROOT / "configs" / "smoke.yaml")}, "row 'plain': a study needs files"),
        ({"rows": {"plain": {"set": {"model.name": "xlam"}}}}, "row 'plain': model: expected one of .*, got 'xlam'"),
        ({"rows": {"plain": {"set": {"model.options": {"dimm": 8}}}}}, "row 'plain': .*unknown key 'dimm'"),
        ({"seeds": [1, 2, 1]}, "seeds: 1 is given twice"),
        ({"rows": {"plain": {"seeds": [4, 4]}}}, "seeds: 4 is given twice"),
        ({"scoring": {"metrics": ["cider", "cidre"]}}, "there is no metric 'cidre'; choose from: bleu"),
        ({"then": {"recipe": "x.yaml", "best": 1}}, "then, row 'plain': x.yaml: no such file"),
        ({"then": {"recipe": "recipe.yaml", "best": 1, "set": {"train.epochz": 3}}}, "then, row 'plain': .*epochz"),
        ({"then": {"recipe": "recipe.yaml", "best": 1}, "rows": {"plain": {}, "plain+": {}}}, "'plain\\+': .*rename"),
    ],
)
def test_a_wrong_study_is_refused_before_training(
    write: Callable[..., Path], changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_study(write(**changes))


def test_all_rows_have_a_first_seed_before_any_has_a_second(write: Callable[..., Path]) -> None:
    runs = first_stage(load_study(write()))
    assert [(run.row, run.seed) for run in runs] == [("plain", 1), ("wide", 1), ("plain", 2)]


def test_commands_are_those_a_user_types(write: Callable[..., Path]) -> None:
    run = first_stage(load_study(write()))[1]
    assert shown(run.train).startswith("xlan train ")
    assert """'model.options={"dim": 48}'""" in shown(run.train)
    assert shown(run.predict).startswith("xlan predict ")
    assert "--skip-missing" not in run.predict


@pytest.mark.parametrize(("value", "read"), [("out/😀/é", "out/😀/é"), (date(2026, 1, 2), "2026-01-02")])
def test_changes_of_any_text_reach_the_run(write: Callable[..., Path], value: object, read: str) -> None:
    study = load_study(write(set={"data.val_split": value}))
    assert row_config(study, "plain", "out", seed=1).data.val_split == read


def test_pictures_without_features_are_skipped_in_captioning_as_in_training(write: Callable[..., Path]) -> None:
    [run, *_] = first_stage(load_study(write(set={"data.missing": "skip"})))
    assert "--skip-missing" in run.predict


@pytest.mark.slow
def test_a_study_trains_resumes_and_compares(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write()
    study = load_study(path)
    runs = first_stage(study)
    lines: list[str] = []
    carry_out(runs[:1], logs=tmp_path / "out" / "logs", places=cpu_places(1), tell=lines.append)
    before = runs[0].predictions.stat().st_mtime_ns

    result = CliRunner().invoke(app, ["study", str(path), "--jobs", "2"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"wide, seed 1: training on {max(1, cores() // 2)} of {cores()} cores" in result.stderr
    assert "1 of 3 runs are finished already" in result.stderr
    assert runs[0].predictions.stat().st_mtime_ns == before  # a finished run is not repeated
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["name"] for row in table["rows"]] == ["plain", "wide"]
    plain, wide = (row["cells"]["CIDEr"] for row in table["rows"])
    assert len(plain["values"]) == 2
    assert plain["mean"] == pytest.approx(sum(plain["values"]) / 2)
    assert plain["low"] is None
    assert wide["spread"] is None
    assert wide["low"] <= wide["mean"] - plain["mean"] <= wide["high"]
    assert "study.html" in result.stderr
    page = (tmp_path / "out" / "study.html").read_text()
    assert page.count("<figure") == 3  # scores and losses of every seed, and the training loss

    again = CliRunner().invoke(app, ["study", str(path), "--dry-run"], catch_exceptions=False)
    assert again.output.count("* xlan train") == 3

    changed = load_study(write(set={"train.optimizer.lr": 0.5}))
    with pytest.raises(DataError, match=r"plain-1: holds a run with other settings \(train.optimizer.lr\)"):
        first_stage(changed)

    then = {"recipe": str(tmp_path / "recipe.yaml"), "best": 1}
    second = second_stage(load_study(write(then=then)), runs)
    assert {run.row for run in second} == {f"{best_rows(runs, 1)[0]}+"}
    assert all(f'model.init="{runs[0].folder.parent}' in " ".join(run.train) for run in second)


def write_predictions(run: Run, shapes: Path, *, without: int = 0) -> None:
    """Captions as `xlan predict` leaves them, without training; the first pictures may be missing."""
    test = load_captions(shapes / "captions.jsonl").split("test")[without:]
    run.folder.mkdir(parents=True)
    run.predictions.write_text(json.dumps([{"image_id": image.id, "caption": image.captions[0]} for image in test]))


def test_a_table_of_nothing_says_so(write: Callable[..., Path]) -> None:
    result = CliRunner().invoke(app, ["study", str(write()), "--table"])
    assert isinstance(result.exception, DataError)
    assert "no run of the study is finished yet" in str(result.exception)


def test_a_table_without_the_row_to_compare_with_has_no_intervals(
    write: Callable[..., Path], shapes: Path, tmp_path: Path
) -> None:
    path = write()
    [wide] = [run for run in first_stage(load_study(path)) if run.row == "wide"]
    write_predictions(wide, shapes)
    result = CliRunner().invoke(app, ["study", str(path), "--table"], catch_exceptions=False)
    assert result.exit_code == 0
    [row] = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    assert row["name"] == "wide"
    assert row["cells"]["CIDEr"]["low"] is None


def test_all_runs_are_scored_on_the_pictures_that_all_of_them_captioned(
    write: Callable[..., Path], shapes: Path, tmp_path: Path
) -> None:
    path = write(seeds=[1])
    for without, run in enumerate(first_stage(load_study(path))):
        write_predictions(run, shapes, without=without)
    result = CliRunner().invoke(app, ["study", str(path), "--table"], catch_exceptions=False)
    assert result.exit_code == 0
    pictures = len(load_captions(shapes / "captions.jsonl").split("test"))
    assert f"scored on the {pictures - 1} of {pictures} pictures that every run captioned" in result.stderr
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert table["images"] == pictures - 1
    assert table["rows"][1]["cells"]["CIDEr"]["low"] == 0


def test_a_score_that_cannot_be_computed_is_named_with_the_reason(
    write: Callable[..., Path], shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(corenlp: Path | None) -> None:
        raise MetricError("there is no Java")

    monkeypatch.setattr(report, "_spice", no_java)
    path = write(scoring={"metrics": ["bleu", "spice"], "samples": 50})
    write_predictions(first_stage(load_study(path))[0], shapes)
    result = CliRunner().invoke(app, ["study", str(path), "--table"], catch_exceptions=False)
    assert "SPICE: not computed: there is no Java" in result.stderr
    assert "SPICE: not computed (there is no Java)." in (tmp_path / "out" / "table.md").read_text()
    assert "SPICE: not computed (there is no Java)." in (tmp_path / "out" / "study.html").read_text()


def test_captions_of_another_search_do_not_count(write: Callable[..., Path], shapes: Path) -> None:
    [run, *_] = first_stage(load_study(write()))
    write_predictions(run, shapes)
    run.said.write_text(shown(run.predict))
    assert run.is_done()
    wider = {"metrics": ["cider"], "beams": 7}
    [changed, *_] = first_stage(load_study(write(scoring=wider)))
    assert not changed.is_done()


@pytest.mark.parametrize("change", [{"train.epochs": 2}, {"train.max_steps": 1}, {"evaluation.early_stop": 1}])
def test_a_run_that_was_trained_for_another_time_does_not_count(
    write: Callable[..., Path], shapes: Path, change: dict[str, int]
) -> None:
    study = load_study(write())
    [run, *_] = first_stage(study)
    write_predictions(run, shapes)
    save_config(row_config(study, "plain", run.folder, seed=1), run.folder / "config.yaml")
    assert first_stage(load_study(write(set={"data.workers": 0, "logging.every": 7})))
    with pytest.raises(DataError, match=f"plain-1: holds a run with other settings .{next(iter(change))}.; remove it"):
        first_stage(load_study(write(set=change)))


@pytest.mark.parametrize("dotted", [True, False], ids=["keys", "section"])
def test_the_second_stage_reads_the_data_of_its_row(write: Callable[..., Path], shapes: Path, dotted: bool) -> None:
    rows = {"plain": {}, "few": {"set": {"data.max_regions": 2}}}
    data = {"captions": str(shapes / "captions.jsonl"), "features": str(shapes / "features"), "shapes": None}
    study = load_study(
        write(
            rows=rows,
            then={"recipe": str(ROOT / "configs" / "smoke_scst.yaml"), "rows": ["few"]},
            set={f"data.{key}": value for key, value in data.items()} if dotted else {"data": data},
        )
    )
    first = first_stage(study)
    for run in first:
        write_predictions(run, shapes)
    [second, *_] = second_stage(study, first)
    assert "data.max_regions=2" in second.train
    assert "--max-regions" in second.predict
    assert second.captions == data["captions"]


def test_a_second_stage_begins_when_what_it_needs_is_finished(
    write: Callable[..., Path], shapes: Path, tmp_path: Path
) -> None:
    recipe = str(tmp_path / "recipe.yaml")
    named = load_study(write(seeds=[1, 2], then={"recipe": recipe, "rows": ["wide"]}))
    best = load_study(write(seeds=[1, 2], then={"recipe": recipe, "best": 1}))
    runs = first_stage(named)
    wide = [run for run in runs if run.row == "wide"]
    assert second_stage(named, runs) == []
    write_predictions(wide[0], shapes)
    assert [(run.row, run.seed) for run in second_stage(named, runs)] == [("wide+", wide[0].seed)]
    assert second_stage(best, runs) == []  # which is best is not known yet


def test_a_second_stage_can_be_kept_to_some_seeds(write: Callable[..., Path], shapes: Path, tmp_path: Path) -> None:
    then = {"recipe": str(tmp_path / "recipe.yaml"), "rows": ["plain"], "seeds": [2]}
    study = load_study(write(seeds=[1, 2], then=then))
    runs = first_stage(study)
    for run in runs:
        write_predictions(run, shapes)
    assert [run.name for run in second_stage(study, runs)] == ["plain+, seed 2"]


def test_of_a_second_stage_only_the_chosen_rows_are_trained(
    write: Callable[..., Path], shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(seeds=[1], then={"recipe": str(tmp_path / "recipe.yaml"), "rows": ["plain", "wide"]})
    for run in first_stage(load_study(path)):
        write_predictions(run, shapes)
    begun: list[str] = []
    monkeypatch.setattr(study_runs, "carry_out", lambda runs, **_: begun.extend(run.row for run in runs))
    CliRunner().invoke(app, ["study", str(path), "--rows", "wide"], catch_exceptions=False)
    assert begun == ["wide", "wide+"]


def test_gpus_and_jobs_exclude_each_other(write: Callable[..., Path]) -> None:
    result = CliRunner().invoke(app, ["study", str(write()), "--gpus", "0,1", "--jobs", "2"])
    assert result.exit_code == 2
    assert "give --gpus or --jobs, not both" in result.output


@pytest.mark.parametrize("option", [(), ("--dry-run",)])
def test_a_split_that_the_captions_do_not_have_is_refused_before_training(
    write: Callable[..., Path], tmp_path: Path, option: tuple[str, ...]
) -> None:
    path = write(scoring={"split": "tset", "metrics": ["cider"]})
    with pytest.raises(DataError, match=r"split 'tset' has no images; there are: train \(45 images\)"):
        CliRunner().invoke(app, ["study", str(path), *option], catch_exceptions=False)
    assert not (tmp_path / "out").exists()


def test_rows_can_be_chosen_by_name(write: Callable[..., Path]) -> None:
    one = CliRunner().invoke(app, ["study", str(write()), "--dry-run", "--rows", "wide"])
    assert one.output.count("xlan train") == 1
    assert "wide-1" in one.output
    none = CliRunner().invoke(app, ["study", str(write()), "--dry-run", "--rows", "wide,deep"])
    assert none.exit_code == 2
    assert "has no row 'deep'; it has plain, wide" in " ".join(none.output.replace("│", " ").split())


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(write: Callable[..., Path], tmp_path: Path) -> None:
    study = load_study(write(rows={"broken": {"set": {"data.vocab": "nowhere.json"}}, "plain": {}}, seeds=[1]))
    runs = first_stage(study)
    lines: list[str] = []
    with pytest.raises(TrainingError, match=r"1 of 2 runs failed: broken, seed 1 .*broken-1\.log"):
        carry_out(runs, logs=tmp_path / "logs", places=cpu_places(1), tell=lines.append)
    [reason] = [line for line in lines if line.startswith("broken, seed 1: failed, see ")]
    assert reason.endswith("broken-1.log: error: nowhere.json: no such file")
    assert [run.is_done() for run in runs] == [False, True]
    assert "nowhere.json" in (tmp_path / "logs" / "broken-1.log").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_to_the_study_lets_its_runs_save(
    tmp_path: Path, number: signal.Signals, error: type[BaseException]
) -> None:
    """The run is a small program that saves when it is asked to end, as training does."""
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    program = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path({str(saved)!r}).touch()))\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        "time.sleep(60)\n"
    )
    run = Run("slow", 1, tmp_path, (sys.executable, "-c", program), (), tmp_path / "test.json")

    def send() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    lines: list[str] = []
    with pytest.raises(error), ended_by_sigterm():
        carry_out([run, run], logs=tmp_path / "logs", places=cpu_places(1), tell=lines.append)
    sender.join()
    assert saved.exists()
    assert lines == ["slow, seed 1: training", "stopping when the runs have saved; the same command continues"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_study_that_is_killed_takes_its_run_with_it(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(set={"train.epochs": 100_000, "evaluation.every": 100_000, "logging.every": 1})
    study = subprocess.Popen([sys.executable, "-m", "xlan", "study", str(path)], stderr=subprocess.DEVNULL)
    try:
        _wait_for(tmp_path / "out" / "plain-1" / "log.jsonl", '"step": 3')
    finally:
        study.kill()
        study.wait()
    _wait_for(tmp_path / "out" / "logs" / "plain-1.log", "stopped by SIGTERM")


def _wait_for(log: Path, word: str) -> None:
    end = time.monotonic() + 60
    while not (log.is_file() and word in log.read_text()):
        assert time.monotonic() < end, log.read_text() if log.is_file() else "no log"
        time.sleep(0.05)


def row(name: str, mean: float, **interval: float) -> TableRow:
    cell = Cell(mean, 0.01, (mean - 0.01, mean + 0.01), **interval)
    return TableRow(name, (1, 2), {"CIDEr": cell}, Cell(2.5, None, (2.5,)), f"xlan train {name}.yaml", "a <note>")


TABLE = Table((row("base", 0.62), row("more", 0.65, low=0.01, high=0.05, p_value=0.01)), "base", "test", 4407, 2000)


def test_the_markdown_table_has_mean_spread_interval_and_command() -> None:
    text = as_markdown(TABLE)
    assert "| base | 2 | 2.500 | 62.0 ± 1.0 |" in text
    assert "| more | 2 | 2.500 | 65.0 ± 1.0 [+1.0, +5.0] |" in text
    assert "- more: `xlan train more.yaml` (a <note>)" in text


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.01, 0.05, "better"), (-0.05, -0.01, "worse"), (-0.01, 0.02, "not clear")]
)
def test_an_interval_is_put_in_words(low: float, high: float, verdict: str) -> None:
    assert Cell(0.5, None, (0.5,), low, high, 0.1).verdict == verdict


@pytest.mark.parametrize(("evaluations", "curves"), [(1, 1), (2, 5)])
def test_the_page_escapes_and_draws_every_run(tmp_path: Path, evaluations: int, curves: int) -> None:
    """The training loss of a row, and of every run score and loss where there is more than one evaluation."""
    runs = []
    for seed in (1, 2):
        folder = tmp_path / f"base-{seed}"
        folder.mkdir()
        records: list[dict[str, Any]] = [
            {"kind": "evaluation", "scores": {"CIDEr": 0.1 * epoch, "loss": 3.0}} for epoch in range(1, evaluations + 1)
        ]
        records += [{"kind": "step", "step": step, "loss": 4.0 + seed} for step in range(20)]
        (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        runs.append(Run("<base>", seed, folder, (), (), folder / "test.json"))
    document = study_page("ablation", TABLE, runs)
    assert "<note>" not in document
    assert document.count("<polyline") == curves
    assert document.count('<circle class="dot"') == 6  # a score for each of two rows and seeds, a loss for each row
    assert "&lt;base&gt; <span>5.5</span>" in document  # the mean over both seeds
    assert ("&lt;base&gt;, seed 2" in document) is (evaluations > 1)
