"""`xlan report`: a run folder in, one page out."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from xlan.cli.named_pictures import PICTURES_HELP, find_thumbnails
from xlan.cli.outputs import check_page


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write the page (.html); RUN/report.html by default.")
    ] = None,
    pictures: Annotated[Path | None, typer.Option("--pictures", metavar="FOLDER", help=PICTURES_HELP)] = None,
) -> None:
    """Show a run as one self-contained HTML page: curves, scores, captions as they improve, settings."""
    from xlan.pages.report import write_report

    def find(images: Collection[str]) -> dict[str, str]:
        assert pictures is not None
        found = find_thumbnails(pictures, {image: [image] for image in images}, note=_note)
        return {str(image): address for image, address in found.items()}

    if output is not None:
        check_page(output)
    path = write_report(run, output, pictures=None if pictures is None else find)
    typer.echo(str(path))


def _note(line: str) -> None:
    typer.echo(f"note: {line}", err=True)
