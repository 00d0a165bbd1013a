from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.errors import DataError, MetricError, MissingExtraError

PURE = ["--metrics", "bleu,rouge,cider"]
REFERENCES = {
    "annotations": [
        {"image_id": 1, "caption": "A dog runs over the grass."},
        {"image_id": 1, "caption": "The dog is running."},
        {"image_id": 2, "caption": "Two red buses at a stop"},
    ]
}
RESULTS = [{"image_id": 1, "caption": "a dog runs over the grass"}, {"image_id": 2, "caption": "a red bus at a"}]


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    (tmp_path / "references.json").write_text(json.dumps(REFERENCES))
    return str(tmp_path / "results.json"), str(tmp_path / "references.json")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["evaluate", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def test_scores_are_printed_as_a_table(paths: tuple[str, str]) -> None:
    outcome = run(*paths, *PURE)
    assert outcome.exit_code == 0
    for name in ("BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr", "different words", "end on a, the, of"):
        assert name in outcome.stdout
    assert "2 images" in outcome.stdout
    assert "50.0%" in outcome.stdout


def test_json_has_the_official_names_at_full_precision(paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from xlan.metrics import report

    def cannot(*_: object) -> Any:
        raise MetricError("not today")

    monkeypatch.setattr(report, "_meteor", cannot)
    monkeypatch.setattr(report, "_spice", lambda corenlp: cannot())
    outcome = run(*paths, "--json")
    scores = json.loads(outcome.stdout)
    assert list(scores) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]
    assert scores["SPICE"] is None
    assert "SPICE not computed: not today" in outcome.stderr
    assert len(repr(scores["ROUGE-L"])) > 10


def test_what_is_not_computed_is_said_in_the_table(paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from xlan.metrics import report

    def cannot(corenlp: Path | None) -> Any:
        raise MetricError("CoreNLP is away; type: fetch it")

    monkeypatch.setattr(report, "_spice", cannot)
    outcome = run(*paths, "--metrics", "spice,rouge")
    assert outcome.exit_code == 0
    assert re.search(r"SPICE\W+not computed\W+CoreNLP is away; type: fetch it", outcome.stdout)
    required = run(*paths, "--metrics", "rouge", "--require", "spice")
    assert isinstance(required.exception, MetricError)
    assert "SPICE is required but cannot be computed: CoreNLP is away" in str(required.exception)


def test_scores_of_every_image_are_written(paths: tuple[str, str], tmp_path: Path) -> None:
    outcome = run(*paths, *PURE, "--per-image", str(tmp_path / "out.jsonl"))
    assert outcome.exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["image_id"] for line in lines] == [1, 2]
    assert lines[1]["bad_ending"] is True
    assert set(lines[0]) > {"BLEU-1", "ROUGE-L", "CIDEr", "length"}


def test_novel_captions_are_counted_against_the_train_split(tmp_path: Path) -> None:
    images = [
        {"cocoid": 1, "split": "test", "sentences": [{"raw": "A dog."}]},
        {"cocoid": 2, "split": "test", "sentences": [{"raw": "A cat."}]},
        {"cocoid": 3, "split": "train", "sentences": [{"raw": "A small dog!"}]},
    ]
    (tmp_path / "d.json").write_text(json.dumps({"images": images}))
    results = [{"image_id": 1, "caption": "a small dog"}, {"image_id": 2, "caption": "a cat"}]
    (tmp_path / "r.json").write_text(json.dumps(results))
    for extra in ([], ["--split", "test"], ["--training", str(tmp_path / "d.json")]):
        outcome = run(str(tmp_path / "r.json"), str(tmp_path / "d.json"), "--metrics", "rouge", *extra)
        assert re.search(r"not said in the training captions\W+50\.0%", outcome.stdout), extra


def test_missing_images_are_an_error_unless_a_part_is_asked_for(paths: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "part.json").write_text(json.dumps(RESULTS[:1]))
    outcome = run(str(tmp_path / "part.json"), paths[1], *PURE)
    assert isinstance(outcome.exception, DataError)
    assert "1 of 2 images have no caption: 2" in str(outcome.exception)
    assert run(str(tmp_path / "part.json"), paths[1], *PURE, "--subset").exit_code == 0


def test_swapped_files_are_recognised(paths: tuple[str, str]) -> None:
    outcome = run(paths[1], paths[0], *PURE)
    assert isinstance(outcome.exception, DataError)


def test_unknown_metrics_are_named(paths: tuple[str, str]) -> None:
    outcome = run(*paths, "--metrics", "bleu,rogue")
    assert "no metric 'rogue'" in str(outcome.exception)


def test_empty_captions_are_pointed_out(paths: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps([RESULTS[0], {"image_id": 2, "caption": ""}]))
    outcome = run(str(tmp_path / "e.json"), paths[1], *PURE, "--json")
    assert "1 of 2 captions are empty" in outcome.stderr
    assert json.loads(outcome.stdout)["ROUGE-L"] > 0


def test_bad_input_is_one_line_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("[{")
    command = [sys.executable, "-m", "xlan", "evaluate", str(tmp_path / "r.json"), str(tmp_path / "none.json")]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("\n") == 1


def test_references_may_be_the_captions_that_training_takes(tmp_path: Path) -> None:
    results = [{"image_id": 7, "caption": "a dog"}, {"image_id": "b", "caption": "a cat"}]
    (tmp_path / "results.json").write_text(json.dumps(results))
    table = "file,caption,split\n7.jpg,a dog,test\nb.jpg,a cat,test\nc.jpg,a cow,train\n"
    (tmp_path / "captions.csv").write_text(table)
    for place in (tmp_path / "captions.csv", tmp_path):
        outcome = run(str(tmp_path / "results.json"), str(place), "--metrics", "rouge", "--json")
        assert outcome.exit_code == 0, outcome.output
        assert json.loads(outcome.stdout) == {"ROUGE-L": 1.0}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_what_xlan_caption_writes_is_scored(tmp_path: Path, model_directory: Path, suffix: str) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for colour, name in (("red", "COCO_val2014_000000000001.jpg"), ("blue", "COCO_val2014_000000000002.jpg")):
        Image.new("RGB", (64, 48), colour).save(photos / name)
    (tmp_path / "references.json").write_text(json.dumps(REFERENCES))
    captions = tmp_path / f"captions{suffix}"
    typed = ["caption", str(photos), "-o", str(captions), "--model", str(model_directory)]
    assert CliRunner().invoke(app, typed).exit_code == 0
    outcome = run(str(captions), str(tmp_path / "references.json"), *PURE, "--json")
    assert outcome.exit_code == 0, outcome.exception
    assert 0 <= json.loads(outcome.stdout)["ROUGE-L"] <= 1


def test_one_image_is_one_image(paths: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(RESULTS[:1]))
    outcome = run(str(tmp_path / "one.json"), paths[1], "--metrics", "bleu", "--subset")
    assert "1 image " in outcome.stdout
    assert "1 images" not in outcome.stdout


def test_the_table_shows_the_name_of_the_extra_to_install(
    paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xlan.metrics import report

    def missing(*_: object) -> Any:
        raise MissingExtraError("METEOR", "metrics")

    monkeypatch.setattr(report, "_meteor", missing)
    assert 'pip install "xlan[metrics]"' in run(*paths, "--metrics", "meteor").stdout


SCORER = """
class Bytes:
    name = "bytes"
    def score(self, pictures, captions):
        return [float(len(path.read_bytes()) > 0) for path in pictures.values()]
def broken():
    raise RuntimeError("no weights here")
"""


def test_a_scorer_of_ones_own_is_run_by_name(
    paths: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "my_scores_1.py").write_text(SCORER)
    (tmp_path / "photos").mkdir()
    for i in (1, 2):
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / f"COCO_val2014_{i:012d}.jpg")
    typed = [*paths, "--metrics", "rouge", "--json", "--pictures", str(tmp_path / "photos")]
    outcome = run(*typed, "--scorer", "my_scores_1:Bytes")
    assert json.loads(outcome.stdout)["bytes"] == 1.0
    for name, message in (
        ("my_scores_1:broken", "RuntimeError: no weights here"),
        ("my_scores_1:none", "AttributeError"),
        ("no_such_module:x", "ModuleNotFoundError"),
        ("json:JSONDecoder", "expected an object with a name and a method score"),
        ("my_scores_1", "expected module:name"),
    ):
        assert message in str(run(*typed, "--scorer", name).exception)
    assert "--pictures FOLDER" in str(run(*paths, "--scorer", "my_scores_1:Bytes").exception)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--pictures", "photos", "--pictures has an effect only together with --scorer"),
        ("--corenlp", "jars", "--corenlp has an effect only with the metric spice"),
        ("--spacy-model", "en", "--spacy-model has an effect only with the metric spice-spacy"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    paths: tuple[str, str], option: str, value: str, message: str
) -> None:
    outcome = run(*paths, "--metrics", "bleu", option, value)
    assert message in str(outcome.exception)
