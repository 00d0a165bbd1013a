from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import DataError
from xlan.pages.charts import line_chart, nice_ticks, number, thin_out
from xlan.pages.report import render, write_report

NASTY = "<script>alert(1)</script>\" onload='x' & </style>"


def a_run(folder: Path, text: str = "a dog") -> Path:
    records: list[dict[str, Any]] = [{"kind": "start", "time": 1.0, "step": 0, "parameters": 1234}]
    records += [{"kind": "step", "time": 2.0, "step": s, "epoch": 0, "loss": 3.0 / s, "lr": 0.1} for s in range(1, 5)]
    for epoch, score in enumerate((0.5, 0.9, 0.7)):
        scores = {"loss": 2.0, "CIDEr": score, "BLEU-4": 0.3}
        records.append({"kind": "evaluation", "step": 4, "epoch": epoch, "scores": scores})
    records.append({"kind": "warning", "step": 3, "text": text})
    records.append({"kind": "end", "time": 3.0, "step": 4, "reason": text})
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "samples.json").write_text(json.dumps({"7": [text, "people said this"]}))
    (folder / "predictions").mkdir()
    for epoch, caption in enumerate((text, text, "a better caption"), start=1):
        rows = [{"image_id": 7, "caption": caption}]
        (folder / "predictions" / f"val-epoch-{epoch:03d}.json").write_text(json.dumps(rows))
    (folder / "config.yaml").write_text(f"stage: {text}\n")
    (folder / "environment.json").write_text(json.dumps({"xlan": text}))
    return folder


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def parsed(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    return tags


def test_the_page_tells_the_run(tmp_path: Path) -> None:
    page = write_report(a_run(tmp_path / "run")).read_text(encoding="utf-8")
    titles = ("CIDEr on the validation split", "Loss per word on the validation split", "Loss per word:")
    for expected in (*titles, "1,234", "a better caption", "people said this"):
        assert expected in page
    assert '<tr class="best"><th scope="row">2</th>' in page


def test_an_unchanged_caption_is_told_once(tmp_path: Path) -> None:
    page = render(a_run(tmp_path / "run"))
    assert page.count('<span class="epoch">') == 2


def test_text_from_outside_cannot_become_markup(tmp_path: Path) -> None:
    tags = parsed(render(a_run(tmp_path / "run", NASTY)))
    assert "script" not in tags.tags
    assert tags.tags.count("style") == 1
    assert not [name for name, _ in tags.attributes if name.startswith("on")]


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = render(a_run(tmp_path / "run"))
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed(page).tags)
    assert not re.search(r"https?://|url\(|@import|src=", page)


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"kind": "start", "step": 0}\n{"kind": "st')
    assert "running, or cut off" in render(tmp_path)


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a training run"):
        write_report(tmp_path)


def test_damaged_records_do_no_harm(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    with (run / "log.jsonl").open("a") as log:
        log.write('[1]\n{"kind": "step", "step": 9, "loss": null}\n{"kind": "evaluation", "step": 9, "scores": 3}\n')
    assert "Loss per word" in render(run)


@pytest.mark.slow
@pytest.mark.parametrize(("color_scheme", "width"), [("light", 1200), ("dark", 390)])
def test_axe_finds_no_fault(page_of: Callable[..., Any], tmp_path: Path, color_scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'xlan[dev]'")
    page = page_of(color_scheme=color_scheme, width=width)
    page.goto(write_report(a_run(tmp_path / "run")).resolve().as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [fault["id"] for fault in axe.Axe().run(page).response["violations"]] == []


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(-1e9, 1e9)), max_size=700), st.text(max_size=20))
def test_any_curve_is_drawn_inside_its_frame(points: list[tuple[float, float]], title: str) -> None:
    chart = line_chart(title, sorted(points), x_name="step")
    for pair in re.findall(r'points="([^"]*)"', chart):
        for point in pair.split():
            x, y = map(float, point.split(","))
            assert -0.1 <= x <= 420.1
            assert -0.1 <= y <= 200.1


@settings(deadline=None, max_examples=60)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_span_the_range(low: float, width: float) -> None:
    ticks = nice_ticks(low, low + width, 4)
    assert ticks[0] <= low + 1e-9 * abs(low)
    assert ticks[-1] >= (low + width) - 1e-9 * abs(low + width)
    assert 2 <= len(ticks) <= 12


def test_thinning_keeps_few_points_and_the_mean() -> None:
    points = [(float(i), float(i % 7)) for i in range(2100)]
    thin = thin_out(points)
    assert len(thin) == 300
    assert sum(y for _, y in thin) / 300 == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("value", "text"), [(3.0, "3"), (1234.0, "1,234"), (0.12345, "0.1235"), (1e-5, "1e-05"), (2.5e7, "2.5e+07")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
