"""A run as one HTML page: curves, scores, captions as they improve, settings. Self-contained; nothing is fetched.

Everything a run folder holds is text from somewhere else (captions, names, messages) and is escaped here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xlan.errors import DataError
from xlan.files import read_json, read_json_lines, write_text
from xlan.metrics.coco import load_results, plain_id
from xlan.pages.charts import line_chart, number
from xlan.pages.layout import page, scrolling_table, text

# What is drawn, in this order, where the log has it: (key of a step record, heading).
CURVES = (
    ("loss", "Loss per word"),
    ("reward", "Reward of samples (CIDEr-D)"),
    ("baseline", "Reward of the baseline"),
    ("length", "Words per sampled caption"),
    ("bad_endings", "Share of bad endings"),
    ("entropy", "Entropy per word (nats)"),
    ("distinct", "Share of distinct samples"),
    ("grad_norm", "Gradient norm"),
    ("lr", "Learning rate"),
    ("captions_per_second", "Captions per second"),
)
SELF_CRITICAL_LOSS = (
    "The loss of a self-critical run is not an error that falls to 0. It is minus the log-probability of the sampled "
    "captions, weighed by how much better than the baseline they scored: it is often negative and need not fall. "
    "The reward and the CIDEr of the validation split show whether the run improves."
)
# Image ids → `data:` addresses of their pictures, for those that are found.
Pictures = Callable[[Collection[str]], Mapping[str, str]]


def write_report(
    run: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *, pictures: Pictures | None = None
) -> Path:
    """Write the page of a run folder; returns its path.

    Args:
        run: the folder.
        output: where to; `RUN/report.html` when None.
        pictures: finds the pictures of the captions that are shown; none are shown when None.

    Raises:
        DataError: the folder holds no run.
    """
    folder = Path(run)
    if not (folder / "log.jsonl").is_file():
        raise DataError(f"{folder}: not a training run (there is no log.jsonl in it)")
    path = Path(output) if output is not None else folder / "report.html"
    write_text(path, render(folder, pictures))
    return path


def render(folder: Path, pictures: Pictures | None = None) -> str:
    """The page as text."""
    records = list(read_json_lines(folder / "log.jsonl"))
    steps = [record for record in records if record.get("kind") == "step"]
    evaluations = [record for record in records if record.get("kind") == "evaluation"]
    body = [
        _head(folder, records, steps, evaluations),
        _warnings(record for record in records if record.get("kind") == "warning"),
        _section("Curves", _about_loss(steps) + f'<div class="columns">{_curves(steps, evaluations)}</div>'),
        _section("Scores per epoch", _scores(evaluations)),
        _section("Captions as they improve", _samples(folder, pictures)),
        _section("Configuration", _file(folder / "config.yaml")),
        _section("Environment", _file(folder / "environment.json")),
    ]
    return page(f"{folder.name} – xlan training", "\n".join(body))


def _head(
    folder: Path,
    records: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
) -> str:
    end: Mapping[str, Any] = next(
        (record for record in reversed(records) if record.get("kind") in ("end", "start", "step")), {}
    )
    state = str(end.get("reason")) if end.get("kind") == "end" else "running, or cut off"
    tiles = []
    best = _best(evaluations)
    if best is not None:
        tiles.append(("best CIDEr", number(_score(best, "CIDEr")), f"epoch {best.get('epoch', 0) + 1}"))
    if steps:
        tiles.append(("steps", f"{steps[-1].get('step', 0):,}", f"epoch {steps[-1].get('epoch', 0) + 1}"))
        speeds = [s["captions_per_second"] for s in steps if isinstance(s.get("captions_per_second"), int | float)]
        if isinstance(spent := steps[-1].get("seconds"), int | float):
            tiles.append(("time in steps", _duration(spent), "evaluation apart"))
        if speeds:
            tiles.append(("captions/s", number(round(sorted(speeds)[len(speeds) // 2])), "median"))
    size = next((r["parameters"] for r in records if isinstance(r.get("parameters"), int)), None)
    if size is not None:
        tiles.append(("parameters", f"{size:,}", ""))
    if records and isinstance(records[-1].get("time"), int | float):
        at = datetime.fromtimestamp(records[-1]["time"], tz=UTC)
        tiles.append(("last record", at.strftime("%H:%M"), at.strftime("%Y-%m-%d UTC")))
    shown = "".join(
        f'<div class="tile"><dt>{text(name)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>'
        for name, value, note in tiles
    )
    return (
        f'<header><h1>{text(folder.name)}</h1><p class="soft">{text(state)}</p><dl class="tiles">{shown}</dl></header>'
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _warnings(records: Iterable[Mapping[str, Any]]) -> str:
    rows = [f"<li>step {record.get('step', 0)}: {text(str(record.get('text', '')))}</li>" for record in records]
    return f'<section class="warn"><h2>Warnings</h2><ul>{"".join(dict.fromkeys(rows))}</ul></section>' if rows else ""


def _curves(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> str:
    best = _best(evaluations)

    def of_epochs(name: str) -> list[tuple[float, float]]:
        return [(float(record.get("epoch", 0) + 1), _score(record, name)) for record in evaluations]

    marked = None if best is None else (float(best.get("epoch", 0) + 1), _score(best, "CIDEr"))
    charts = [
        line_chart("CIDEr on the validation split", of_epochs("CIDEr"), x_name="epoch", marked=marked),
        line_chart("Loss per word on the validation split", of_epochs("loss"), x_name="epoch"),
    ]
    self_critical = any("reward" in step for step in steps)
    for key, title in CURVES:
        if key == "loss" and self_critical:
            title = "Self-critical loss"
        points = [(float(s["step"]), float(s[key])) for s in steps if isinstance(s.get(key), int | float)]
        charts.append(line_chart(title, points, x_name="step"))
    return "".join(charts) or "<p>Nothing was logged yet.</p>"


def _about_loss(steps: Sequence[Mapping[str, Any]]) -> str:
    return f'<p class="soft">{SELF_CRITICAL_LOSS}</p>' if any("reward" in step for step in steps) else ""


def _scores(evaluations: Sequence[Mapping[str, Any]]) -> str:
    if not evaluations:
        return "<p>No evaluation yet.</p>"
    names = list(dict.fromkeys(name for record in evaluations for name in _of(record)))
    best = _best(evaluations)
    rows = []
    for record in evaluations:
        cells = "".join(f"<td>{_cell(_of(record).get(name))}</td>" for name in names)
        mark = ' class="best"' if record is best else ""
        rows.append(f'<tr{mark}><th scope="row">{record.get("epoch", 0) + 1}</th>{cells}</tr>')
    return scrolling_table("scores per epoch", ["epoch", *names], "".join(rows))


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "–"


def _samples(folder: Path, pictures: Pictures | None) -> str:
    """For a few images what people said and what the model said, epoch by epoch; unchanged captions appear once."""
    try:
        chosen = read_json(folder / "samples.json")
    except DataError:
        chosen = {}
    files = sorted((folder / "predictions").glob("*-epoch-*.json"))
    said = [(_epoch_of(path), load_results(path)) for path in files]
    if not isinstance(chosen, dict) or not chosen or not said:
        return "<p>No captions yet.</p>"
    shown = {} if pictures is None else pictures(chosen)
    articles = []
    for image, references in chosen.items():
        history: list[tuple[str, str]] = []
        for epoch, captions in said:
            caption = captions.get(plain_id(str(image)), "")
            if not history or history[-1][1] != caption:
                history.append((epoch, caption))
        lines = "".join(
            f'<li><span class="epoch">epoch {text(epoch)}</span> {text(caption) or "<em>nothing</em>"}</li>'
            for epoch, caption in history
        )
        people = "".join(f"<li>{text(str(said))}</li>" for said in references)
        shot = f'<img src="{text(shown[image])}" alt="the picture of these captions">' if image in shown else ""
        articles.append(
            f"<article>{shot}<h3>{text(str(image))}</h3><ol>{lines}</ol>"
            f'<h4>What people said</h4><ul class="facts">{people}</ul></article>'
        )
    return f'<div class="columns">{"".join(articles)}</div>'


def _epoch_of(path: Path) -> str:
    return path.stem.rpartition("-")[2].lstrip("0") or "0"


def _file(path: Path) -> str:
    try:
        content = path.read_text(encoding="utf-8", errors="replace")[:200_000]
    except OSError:
        return "<p>Not recorded.</p>"
    return f'<pre tabindex="0">{text(content)}</pre>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{text(title)}</h2>{content}</section>"


def _of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    scores = record.get("scores")
    return scores if isinstance(scores, Mapping) else {}


def _score(record: Mapping[str, Any], name: str) -> float:
    value = _of(record).get(name)
    return float(value) if isinstance(value, int | float) else float("-inf")


def _best(evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    scored = [record for record in evaluations if "CIDEr" in _of(record)]
    return max(scored, key=lambda record: _score(record, "CIDEr")) if scored else None
