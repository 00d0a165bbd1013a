"""`xlan report`: a run folder in, one page out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write the page; RUN/report.html by default.")
    ] = None,
) -> None:
    """Show a run as one self-contained HTML page: curves, scores, captions as they improve, settings."""
    from xlan.pages.report import write_report

    path = write_report(run, output)
    typer.echo(str(path))
