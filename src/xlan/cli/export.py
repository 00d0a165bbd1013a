"""`xlan export`: a model directory → ONNX files that any runtime can use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.engine import MODEL_WORDS
from xlan.cli.pictures import find_pictures

if TYPE_CHECKING:
    from PIL import Image


def export(
    model: Annotated[Path, typer.Argument(help=f"{MODEL_WORDS}, for example out/coco/xlan_scst/best.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The export directory to write.", show_default=False)],
    fp16: Annotated[
        bool, typer.Option("--fp16", help="Store weights in 16 bits: half the size, the same captions.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Store weights and compute in 8 bits: a quarter of the size, and faster.")
    ] = False,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(help="Of --int8: pictures or folders like those it will see; may be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that already exists.")] = False,
) -> None:
    """Write a captioner as ONNX: vision, encoder, one decoding step, vocabulary and preprocessing in one directory.

    What was written is compared with PyTorch on test inputs; a difference beyond rounding is an error and nothing is
    left behind. `xlan caption --model OUTPUT` uses the result.
    """
    if fp16 and int8:
        raise typer.BadParameter("stores 16 bits, --int8 stores 8; leave one out", param_hint="--fp16")
    if calibrate and not int8:
        raise typer.BadParameter("does something only together with --int8", param_hint="--calibrate")
    from xlan.exporting import export_model

    exported = export_model(
        model,
        output,
        precision="int8" if int8 else "float16" if fp16 else "float32",
        pictures=_pictures(calibrate or []),
        replace=force,
        tell=lambda line: typer.echo(line, err=True),
    )
    agreement = f"log-probabilities differ from PyTorch by at most {exported.log_probs:.1e}"
    if exported.features is not None:
        agreement += f", region features by {100 * exported.features:.2g} %"
    typer.echo(f"{agreement}; {exported.same_captions} of {exported.captions} test captions are the same", err=True)
    typer.echo(f"{exported.path}: {exported.bytes / 1e6:.1f} MB; try: xlan caption --model {exported.path} PHOTO")


def _pictures(sources: list[str]) -> Iterator[Image.Image]:
    from xlan.errors import ImageError
    from xlan.vision.image import open_image

    def problem(line: str) -> None:
        typer.echo(line, err=True)

    for name, source in find_pictures(sources, problem):
        try:
            yield open_image(source, name=name)
        except ImageError as error:
            problem(f"{error}; skipped")
