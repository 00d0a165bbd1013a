"""A study as one page: the table with intervals, and the curves of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from xlan.pages.charts import dots_by_row, many_lines, thin_out
from xlan.pages.layout import page, scrolling_table, text
from xlan.studies.runs import Run
from xlan.studies.table import Cell, Table, TableRow

POINTS = 60  # of a curve: more would show the noise of single batches


def study_page(title: str, table: Table, runs: Sequence[Run]) -> str:
    """The whole document."""
    how = (
        f"{table.images:,} pictures of the {table.split} split; mean ± standard deviation over seeds, in percent. "
        f"Below a score: the 95 % interval of its difference to {table.against}, from {table.samples:,} bootstrap "
        "samples of the pictures."
    )
    how += "".join(f" {name}: not computed ({reason})." for name, reason in table.not_computed.items())
    body = (
        f'<header><h1>{text(title)}</h1><p class="soft">{text(how)}</p></header>'
        f"<section><h2>Scores</h2>{_table(table)}</section>"
        f'<section><h2>Curves</h2><div class="columns">{_charts(table, runs)}</div></section>'
        f"<section><h2>Commands</h2>{''.join(_command(row) for row in table.rows)}</section>"
    )
    return page(f"{title} – xlan study", body)


def _table(table: Table) -> str:
    names = list(table.rows[0].cells)
    with_loss = any(row.loss is not None for row in table.rows)
    columns = [*(["loss"] if with_loss else []), *names]
    rows = []
    for row in table.rows:
        cells = [_cell(row.loss, scale=1, digits=3)] if with_loss else []
        cells += [_cell(row.cells.get(name), scale=100, digits=1) for name in names]
        mark = '<br><small class="soft">compared with</small>' if row.name == table.against else ""
        rows.append(f'<tr><th scope="row">{text(row.name)}{mark}</th><td>{len(row.seeds)}</td>{"".join(cells)}</tr>')
    return scrolling_table("scores", ["row", "seeds", *columns], "".join(rows))


def _cell(cell: Cell | None, *, scale: float, digits: int) -> str:
    if cell is None:
        return "<td>–</td>"
    spread = "" if cell.spread is None else f" ± {scale * cell.spread:.{digits}f}"
    below = ""
    if cell.low is not None and cell.high is not None:
        interval = f"{scale * cell.low:+.{digits}f} … {scale * cell.high:+.{digits}f}".replace("-", "−")
        below = f'<br><small class="soft">{interval}, {cell.verdict}</small>'
    return f"<td>{scale * cell.mean:.{digits}f}{spread}{below}</td>"


def _charts(table: Table, runs: Sequence[Run]) -> str:
    scored = [row for row in table.rows if "CIDEr" in row.cells]
    scores = {row.name: [100 * value for value in row.cells["CIDEr"].values] for row in scored}
    losses = {row.name: row.loss.values for row in table.rows if row.loss is not None}
    charts = [
        dots_by_row("CIDEr of every seed", scores, x_name=f"CIDEr, {table.split} split"),
        dots_by_row("Loss per word of every seed", losses, x_name="loss, validation split"),
        many_lines("Loss per word in training, mean over seeds, from a tenth on", _training(runs), x_name="step"),
    ]
    for key, title in (("CIDEr", "CIDEr on the validation split"), ("loss", "Loss per word on the validation split")):
        curves = {}
        for run in runs:
            values = [(float(i), record.get(key)) for i, record in enumerate(run.evaluations(), start=1)]
            curves[run.name] = [(x, float(y)) for x, y in values if isinstance(y, int | float)]
        if any(len(points) > 1 for points in curves.values()):  # one point is no curve, and the dots have it
            charts.append(many_lines(title, curves, x_name="evaluation"))
    return "".join(charts)


def _training(runs: Sequence[Run]) -> dict[str, list[tuple[float, float]]]:
    """Step and loss of every row of the first stage, averaged over the steps that all its seeds logged."""
    losses: dict[str, list[dict[int, float]]] = {}
    for run in runs:
        if found := run.losses():
            losses.setdefault(run.row, []).append(found)
    curves = {}
    for row, seeds in losses.items():
        steps = sorted(set.intersection(*(set(found) for found in seeds)))
        points = [(float(step), mean(found[step] for found in seeds)) for step in steps]
        curves[row] = thin_out(points[len(points) // 10 :], POINTS)
    return curves


def _command(row: TableRow) -> str:
    note = f'<p class="soft">{text(row.note)}</p>' if row.note else ""
    return f'<h3>{text(row.name)}</h3>{note}<pre tabindex="0">{text(row.command)}</pre>'
