"""`xlan study`: many training runs as one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xlan.cli.stopping import ended_by_sigterm


def study(
    config: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study: a recipe, rows and seeds.")],
    gpus: Annotated[str, typer.Option(metavar="NAMES", help="Train on these GPUs, one run on each: 0,1,2.")] = "",
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Without --gpus: runs at once, which share the processor's cores evenly."
        ),
    ] = 1,
    rows: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Train only these rows now: base,4x. The table has all that is finished."),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the study and print its commands; * marks finished runs.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Train nothing: make the table of the runs that are finished.")
    ] = False,
) -> None:
    """Train every row of a study with every seed, score them, and compare them with one row.

    Stop it at any time; the same command resumes. The results are in the study's folder: table.md, table.json, and
    study.html with the curves of all runs.
    """
    from xlan.files import write_json, write_text
    from xlan.studies.page import study_page
    from xlan.studies.runs import carry_out, check_split, cpu_places, first_stage, gpu_places, second_stage, shown
    from xlan.studies.schema import load_study
    from xlan.studies.table import as_markdown, score_table

    if table and dry_run:
        raise typer.BadParameter("give one of --table and --dry-run", param_hint="--table")
    wanted = load_study(config)
    folder = Path(wanted.output)
    runs = first_stage(wanted)
    chosen = _split(rows) or list(wanted.rows)
    if unknown := [name for name in chosen if name not in wanted.rows]:
        known = ", ".join(wanted.rows)
        raise typer.BadParameter(f"{config} has no row {unknown[0]!r}; it has {known}", param_hint="--rows")
    if not table:
        check_split([run for run in runs if run.row in chosen], wanted.scoring.split)
    if dry_run:
        for run in (run for run in runs if run.row in chosen):
            for command in (run.train, run.predict):
                typer.echo(f"{'*' if run.is_done() else ' '} {shown(command)}")
        if wanted.then is not None:
            which = ", ".join(wanted.then.rows) or f"the best {wanted.then.best}"
            typer.echo(f"  then {wanted.then.recipe} for {which}")
        return

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    names = _split(gpus)
    if names and jobs > 1:
        raise typer.BadParameter("give --gpus or --jobs, not both: every GPU has one run at a time")
    places = gpu_places(names) if names else cpu_places(jobs)
    with ended_by_sigterm():
        if not table:
            carry_out([run for run in runs if run.row in chosen], logs=folder / "logs", places=places, tell=tell)
        more = second_stage(wanted, runs)
        if more and not table:
            carry_out([run for run in more if run.row[:-1] in chosen], logs=folder / "logs", places=places, tell=tell)
        runs += more
    finished = [run for run in runs if run.is_done()]
    if len(finished) < len(runs):
        tell(f"{len(runs) - len(finished)} of {len(runs)} runs are not finished and are left out of the table")
    result = score_table(wanted, finished, tell=tell)
    text = as_markdown(result)
    write_text(folder / "table.md", text)
    write_json(folder / "table.json", result.as_json())
    write_text(folder / "study.html", study_page(config.stem, result, finished))
    typer.echo(text, nl=False)
    tell(f"the curves are in {folder / 'study.html'}")


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
