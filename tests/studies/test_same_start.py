"""runs/same_start.py: the two groups of pictures add up to the difference that `evaluate` finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import same_start
from xlan.metrics.report import evaluate

REFERENCES = {
    1: ["a cat on a sofa", "the cat lies on a couch"],
    2: ["a dog in the park", "a brown dog runs in a park"],
    3: ["two people on a beach", "people walk along the beach"],
}
FIRST = {1: "a cat on a sofa", 2: "a dog in the snow", 3: "a man on a beach"}
SECOND = {1: "a cat on a table", 2: "a dog in the park", 3: "two people on a beach"}


def test_the_groups_add_up_to_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions = [
        {"id": str(image), "file": f"{image}.jpg", "split": "test", "caption": texts}
        for image, texts in REFERENCES.items()
    ]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in captions))
    for name, said in (("a", FIRST), ("b", SECOND)):
        results = [{"image_id": image, "caption": text} for image, text in said.items()]
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    a, b = (evaluate(said, REFERENCES, metrics=("cider",)).scores["CIDEr"] for said in (FIRST, SECOND))
    assert a.value is not None
    assert b.value is not None
    assert a.images is not None
    assert b.images is not None

    same_start.main([str(tmp_path / name) for name in ("captions.jsonl", "a.json", "b.json")])
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")[2:-1]]
    assert cells[1] == "66.7%"
    assert float(cells[0]) == pytest.approx(100 * (b.value - a.value), abs=0.01)
    assert float(cells[3]) == pytest.approx(100 * (b.images[2] - a.images[2]) / 3, abs=0.01)
    assert float(cells[2]) + float(cells[3]) == pytest.approx(float(cells[0]), abs=0.02)
