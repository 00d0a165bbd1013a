"""`xlan submit`: the files that the COCO captions server takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xlan.cli.text import counted

VAL_HELP = "Captions of val2014: a COCO result file (.json), or what `xlan caption -o` wrote (.jsonl, .csv)."


def submit(
    val: Annotated[Path, typer.Argument(metavar="VAL", help=VAL_HELP, show_default=False)],
    test: Annotated[Path, typer.Argument(metavar="TEST", help="Captions of test2014, likewise.", show_default=False)],
    name: Annotated[
        str, typer.Option("--name", help="Name of the algorithm; it goes into the file names.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = Path("submission"),
    val_images: Annotated[
        Path | None,
        typer.Option("--val-images", metavar="FILE", help="captions_val2014.json, to check every image id."),
    ] = None,
    test_images: Annotated[
        Path | None,
        typer.Option("--test-images", metavar="FILE", help="image_info_test2014.json, to check every image id."),
    ] = None,
) -> None:
    """Write and check captions_val2014_NAME_results.json, captions_test2014_NAME_results.json and their zip.

    Every image must have exactly one caption. With the two lists of images every id is checked; without them ids are
    only counted.
    """
    from xlan.metrics.submission import write_submission

    lists = {"val2014": val_images, "test2014": test_images}
    written = write_submission(
        {"val2014": val, "test2014": test},
        name=name,
        folder=out,
        image_lists={which: path for which, path in lists.items() if path is not None},
    )
    for which, path in written.files.items():
        how = "every image id checked" if which in written.ids_checked else "image ids counted, not checked"
        typer.echo(f"{path}: {counted(written.captions[which], 'caption')}, {how}")
    typer.echo(f"{written.archive}: ready to upload")
