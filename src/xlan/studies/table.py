"""The table of a study: mean and spread over seeds, and intervals against one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, stdev
from typing import Any

from xlan.data.captions import load_captions
from xlan.errors import DataError
from xlan.metrics.bootstrap import Comparison, compare_groups
from xlan.metrics.coco import load_results, plain_id
from xlan.metrics.report import Report, evaluate
from xlan.studies.runs import Run, shown
from xlan.studies.schema import StudyConfig


@dataclass(frozen=True)
class Cell:
    """One score of one row.

    Attributes:
        mean: over seeds.
        spread: standard deviation over seeds; None with one seed.
        values: of each seed.
        low: lower end of the 95 % interval of the difference to the row compared with; None for that row itself.
        high: upper end of it.
        p_value: of the difference, None likewise.
    """

    mean: float
    spread: float | None
    values: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    p_value: float | None = None

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `not clear`, against the row compared with; empty for that row itself."""
        if self.low is None or self.high is None:
            return ""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "not clear"


@dataclass(frozen=True)
class TableRow:
    """One row: its scores, and how to make it again.

    Attributes:
        name: of the row.
        seeds: that were run.
        cells: score name → cell.
        loss: validation loss per word at the end of training, where it was logged.
        command: that trains its first seed.
        note: of the study file.
    """

    name: str
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]
    loss: Cell | None
    command: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A finished study.

    Attributes:
        rows: in the order of the study.
        against: the row the others are compared with.
        split: that was scored.
        images: how many pictures it has.
        samples: bootstrap samples.
        not_computed: scores that are missing from the table → why.
    """

    rows: tuple[TableRow, ...]
    against: str
    split: str
    images: int
    samples: int
    not_computed: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything, at full precision."""
        return asdict(self)


def score_table(study: StudyConfig, runs: Sequence[Run], *, tell: Callable[[str], None]) -> Table:
    """Score the captions of every run, on the pictures that all of them captioned, and compare the rows.

    While the row that the others are compared with is missing, there are no intervals.

    Raises:
        DataError: predictions are missing, no run is finished, or no picture was captioned by all runs.
    """
    if not runs:
        raise DataError(f"{study.output}: no run of the study is finished yet; run it without --table first")
    if missing := [run for run in runs if not run.predictions.is_file()]:
        raise DataError(f"{missing[0].predictions}: missing; run the study without --table first")
    images = load_captions(runs[0].captions).split(study.scoring.split)
    references = {plain_id(image.id): list(image.captions) for image in images}
    captions = [load_results(run.predictions) for run in runs]
    known = {image: texts for image, texts in references.items() if all(image in one for one in captions)}
    if not known:
        raise DataError(f"{study.output}: no picture of the split {study.scoring.split!r} was captioned by every run")
    if len(known) < len(references):
        tell(f"scored on the {len(known):,} of {len(references):,} pictures that every run captioned")
    reports: dict[str, list[Report]] = {}
    for run, one in zip(runs, captions, strict=True):
        tell(f"scoring {run.name}")
        results = {image: one[image] for image in known}
        reports.setdefault(run.row, []).append(evaluate(results, known, metrics=study.scoring.metrics))
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.row, run)
    rows = []
    for name, group in reports.items():
        base = reports.get(study.against, [])
        others = _against(base, group, study.scoring.samples) if base and name != study.against else {}
        rows.append(
            TableRow(
                name=name,
                seeds=tuple(run.seed for run in runs if run.row == name),
                cells=_cells(group, others),
                loss=_loss([run for run in runs if run.row == name]),
                command=shown(first[name].train),
                note=study.rows[name].note if name in study.rows else "second stage",
            )
        )
    not_computed = {
        name: score.reason
        for group in reports.values()
        for report in group
        for name, score in report.scores.items()
        if score.value is None
    }
    for name, reason in not_computed.items():
        tell(f"{name}: not computed: {reason}")
    return Table(tuple(rows), study.against, study.scoring.split, len(known), study.scoring.samples, not_computed)


def _against(base: Sequence[Report], group: Sequence[Report], samples: int) -> dict[str, Comparison]:
    return {found.name: found for found in compare_groups(base, group, samples=samples)}


def _cells(group: Sequence[Report], others: Mapping[str, Comparison]) -> dict[str, Cell]:
    cells = {}
    for name, score in group[0].scores.items():
        values = [report.scores[name].value for report in group]
        known = tuple(value for value in values if value is not None)
        if score.value is None or len(known) < len(values):
            continue
        other = others.get(name)
        interval = (other.low, other.high, other.p_value) if other is not None else (None, None, None)
        cells[name] = Cell(mean(known), _spread(known), known, *interval)
    return cells


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _loss(runs: Sequence[Run]) -> Cell | None:
    losses = [[record["loss"] for record in run.evaluations() if record.get("loss") is not None] for run in runs]
    if not all(losses):
        return None
    last = tuple(float(values[-1]) for values in losses)
    return Cell(mean(last), _spread(last), last)


def as_markdown(table: Table) -> str:
    """The table for a document: scores in percent, the loss as it is."""
    names = list(table.rows[0].cells)
    with_loss = any(row.loss is not None for row in table.rows)
    head = ["row", "seeds", *(["loss"] if with_loss else []), *names]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in table.rows:
        loss = [_shown(row.loss, scale=1, digits=3)] if with_loss else []
        cells = [_shown(row.cells.get(name), scale=100, digits=1) for name in names]
        lines.append(f"| {' | '.join([row.name, str(len(row.seeds)), *loss, *cells])} |")
    lines.append("")
    lines.append(
        f"Mean ± standard deviation over seeds, in percent, {table.images:,} pictures of the {table.split} split. In "
        f"brackets: 95 % interval of the difference to {table.against} (paired bootstrap over pictures, "
        f"{table.samples:,} samples)."
    )
    lines += [line for name, reason in table.not_computed.items() for line in ("", f"{name}: not computed ({reason}).")]
    lines += ["", *(f"- {row.name}: `{row.command}`{f' ({row.note})' if row.note else ''}" for row in table.rows)]
    return "\n".join(lines) + "\n"


def _shown(cell: Cell | None, *, scale: float, digits: int) -> str:
    if cell is None:
        return "–"
    spread = "" if cell.spread is None else f" ± {scale * cell.spread:.{digits}f}"
    interval = ""
    if cell.low is not None and cell.high is not None:
        interval = f" [{scale * cell.low:+.{digits}f}, {scale * cell.high:+.{digits}f}]"
    return f"{scale * cell.mean:.{digits}f}{spread}{interval}"
