from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from xlan.cli.main import app

TRUTH = {i: f"a {color} {thing} on the {place}" for i, (color, thing, place) in enumerate(
    [("red", "bus", "street"), ("big", "dog", "grass"), ("small", "cat", "sofa"), ("old", "man", "bench")] * 3
)}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    annotations = [{"image_id": i, "caption": text} for i, text in TRUTH.items()]
    (tmp_path / "refs.json").write_text(json.dumps({"annotations": annotations}))
    (tmp_path / "a.json").write_text(json.dumps([{"image_id": i, "caption": "a thing on the street"} for i in TRUTH]))
    (tmp_path / "b.json").write_text(json.dumps(annotations))
    return [str(tmp_path / name) for name in ("a.json", "b.json", "refs.json")]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def test_both_scores_their_difference_and_the_images_are_shown(files: list[str]) -> None:
    outcome = run(*files, "--metrics", "bleu,rouge,cider", "--samples", "100", "--images", "2")
    assert outcome.exit_code == 0, outcome.exception
    for text in ("BLEU-4", "CIDEr", "95% interval", "where they differ most (CIDEr)", "A: a thing on the street"):
        assert text in outcome.stdout


def test_json_is_complete_and_seeded(files: list[str]) -> None:
    arguments = [*files, "--metrics", "rouge,cider", "--samples", "50", "--seed", "4", "--json", "--images", "3"]
    first, second = run(*arguments), run(*arguments)
    assert first.stdout == second.stdout
    found = json.loads(first.stdout)
    assert list(found["scores"]) == ["ROUGE-L", "CIDEr"]
    rouge = found["scores"]["ROUGE-L"]
    assert rouge["difference"] == pytest.approx(rouge["B"] - rouge["A"])
    assert 0 < rouge["low"] <= rouge["difference"] <= rouge["high"]
    assert rouge["p"] == pytest.approx(2 / 51)
    assert len(found["images"]) == 3
    assert found["seed"] == 4


def test_images_can_be_ranked_by_another_score(files: list[str]) -> None:
    outcome = run(*files, "--metrics", "bleu", "--samples", "20", "--by", "bleu-4")
    assert "where they differ most (BLEU-4)" in outcome.stdout
    wrong = run(*files, "--metrics", "bleu", "--samples", "20", "--by", "cider")
    assert "--by expects one of the requested scores (BLEU-1" in str(wrong.exception)


def test_without_cider_images_are_ranked_by_the_last_score(files: list[str]) -> None:
    outcome = run(*files, "--metrics", "bleu", "--samples", "20")
    assert "where they differ most (BLEU-4)" in outcome.stdout


def test_of_two_subsets_the_images_in_both_are_compared(files: list[str]) -> None:
    for path, images, text in ((files[0], range(8), "a thing"), (files[1], range(4, 12), "a thing on the")):
        Path(path).write_text(json.dumps([{"image_id": i, "caption": text} for i in images]))
    outcome = run(*files, "--metrics", "rouge", "--samples", "20", "--json", "--subset")
    assert outcome.exit_code == 0, outcome.exception
    assert {row["image_id"] for row in json.loads(outcome.stdout)["images"]} == set(range(4, 8))
    assert "8 images captioned in one set only; 4 are compared" in outcome.stderr


def test_a_missing_folder_of_pictures_is_told_before_anything_is_printed(files: list[str], tmp_path: Path) -> None:
    outcome = run(*files, "--metrics", "rouge", "-o", str(tmp_path / "page.html"), "--pictures", str(tmp_path / "none"))
    assert "none: no such folder of pictures" in str(outcome.exception)
    assert outcome.stdout == ""


def test_brackets_in_names_are_printed_not_obeyed(tmp_path: Path) -> None:
    annotations = [{"image_id": "[/x]", "caption": "a dog"}, {"image_id": "b", "caption": "a cat"}]
    (tmp_path / "refs.json").write_text(json.dumps({"annotations": annotations}))
    (tmp_path / "a.json").write_text(json.dumps(annotations))
    (tmp_path / "b.json").write_text(json.dumps([{**entry, "caption": "a cow"} for entry in annotations]))
    places = [str(tmp_path / name) for name in ("a.json", "b.json", "refs.json")]
    outcome = run(*places, "--metrics", "rouge", "--by", "ROUGE-L", "--samples", "10")
    assert outcome.exit_code == 0, outcome.exception
    assert "[/x]" in outcome.stdout


def test_a_page_beside_what_is_printed(files: list[str], tmp_path: Path) -> None:
    arguments = [*files, "--metrics", "rouge,cider", "--samples", "50", "--images", "2"]
    plain, paged = run(*arguments), run(*arguments, "-o", str(tmp_path / "out" / "c.html"))
    assert paged.stdout == plain.stdout
    assert paged.stderr.endswith(f"{tmp_path / 'out' / 'c.html'}\n")
    page = (tmp_path / "out" / "c.html").read_text(encoding="utf-8")
    for expected in (
        "a.json against b.json",
        "50 bootstrap samples of 12 images",
        "B is better",
        "a thing on the street",
    ):
        assert expected in page


def test_a_page_has_the_name_of_one(files: list[str]) -> None:
    outcome = run(*files, "-o", "page.pdf")
    assert "page.pdf: expected a file name that ends in .html" in str(outcome.exception)


def test_the_page_shows_references_and_pictures(files: list[str], tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(3):
        Image.new("RGB", (30, 20), "red").save(photos / f"COCO_val2014_{i:012d}.jpg")
    outcome = run(*files, "-o", str(tmp_path / "page.html"), "--pictures", str(photos))
    assert outcome.exit_code == 0, outcome.exception
    page = (tmp_path / "page.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 3
    assert page.count("What people said") == 10
    assert "no usable picture for 7 images of 10" in outcome.stderr


def test_pictures_need_a_page(files: list[str], tmp_path: Path) -> None:
    assert "name the page with -o page.html" in str(run(*files, "--pictures", str(tmp_path)).exception)


def test_the_same_images_under_different_names_are_compared(files: list[str], tmp_path: Path) -> None:
    lines = [json.dumps({"image": f"photos/COCO_val2014_{i:012d}.jpg", "caption": text}) for i, text in TRUTH.items()]
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    by_name = run(files[0], str(tmp_path / "b.jsonl"), files[2], "--json", "--metrics", "rouge,cider")
    by_number = run(*files, "--json", "--metrics", "rouge,cider")
    assert json.loads(by_name.stdout)["scores"] == json.loads(by_number.stdout)["scores"]
