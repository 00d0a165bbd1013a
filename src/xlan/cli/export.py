"""`xlan export`: a model directory → ONNX files that any runtime can use."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.engine import MODEL_WORDS
from xlan.cli.pictures import find_pictures

if TYPE_CHECKING:
    from PIL import Image

    from xlan.export.graph import Precision
    from xlan.exporting import Exported


def export(
    model: Annotated[
        Path | None,
        typer.Argument(help=f"{MODEL_WORDS}, for example out/coco/xlan_scst/best. [default: the one that ships]"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The export directory to write.", show_default=False)
    ] = None,
    web: Annotated[
        Path | None,
        typer.Option(
            help="Write a folder with a page that captions photos inside the browser instead; in 8 bits, or --fp16. "
            "MODEL may also be an export directory.",
            show_default=False,
        ),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(
            help="With --web: the npm package onnxruntime-web, as the .tgz file of `npm pack` or as a folder. "
            "[default: that file in the current folder]",
            show_default=False,
        ),
    ] = None,
    fp16: Annotated[
        bool, typer.Option("--fp16", help="Store weights in 16 bits: half the size, the same captions.")
    ] = False,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Store weights and compute in 8 bits: a third of the size (a quarter with --calibrate), and faster.",
        ),
    ] = False,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            help="With --int8 and --web: pictures or folders like those it will see, to store the vision network in "
            "8 bits too (else 16); may be repeated."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that already exists.")] = False,
) -> None:
    """Write a captioner as ONNX: vision, encoder, one decoding step, vocabulary and preprocessing in one directory.

    What was written is compared with PyTorch on test inputs; a difference beyond rounding is an error and nothing is
    left behind. `xlan caption --model OUTPUT` uses the result. Detectors are not exported: a model on the regions of
    one is written without what makes them.
    """
    if (output is None) == (web is None):
        raise typer.BadParameter(
            "give one of them: an export directory or a page to write", param_hint="--output/--web"
        )
    if runtime is not None and web is None:
        raise typer.BadParameter("has an effect only together with --web", param_hint="--runtime")
    if fp16 and int8:
        raise typer.BadParameter("stores 16 bits, --int8 stores 8; leave one out", param_hint="--fp16")
    int8 = int8 or (web is not None and not fp16)
    if calibrate and not int8:
        raise typer.BadParameter("has an effect only together with --int8", param_hint="--calibrate")
    precision: Precision = "int8" if int8 else "float16" if fp16 else "float32"
    pictures = _pictures(calibrate or [])
    if model is None:
        from xlan.pretrained import find_model

        model = find_model(None)
    if web is not None:
        _export_page(model, web, runtime, precision, pictures, replace=force)
    elif output is not None:
        exported = _export(model, output, precision, pictures, replace=force)
        hint = f"try: xlan caption --model {exported.path} PHOTO"
        if exported.features is None:
            hint = "it captions region features, not pictures: see Captioner.caption_regions"
        typer.echo(f"{exported.path}: {exported.bytes / 1e6:.1f} MB; {hint}")


def _export(
    model: Path,
    output: Path,
    precision: Precision,
    pictures: Iterator[Image.Image],
    *,
    replace: bool = False,
) -> Exported:
    from xlan.exporting import export_model

    exported = export_model(
        model,
        output,
        precision=precision,
        pictures=pictures,
        replace=replace,
        tell=lambda line: typer.echo(line, err=True),
    )
    agreement = f"log-probabilities differ from PyTorch by at most {exported.log_probs:.1e}"
    if exported.features is not None:
        agreement += f", region features by {100 * exported.features:.2g} %"
    typer.echo(f"{agreement}; {exported.same_captions} of {exported.captions} test captions are the same", err=True)
    return exported


def _export_page(
    model: Path,
    target: Path,
    runtime: Path | None,
    precision: Precision,
    pictures: Iterator[Image.Image],
    *,
    replace: bool,
) -> None:
    from xlan.export.directory import is_export_directory
    from xlan.web.folder import check_place, write_web
    from xlan.web.runtime import read_runtime

    check_place(target, replace=replace)
    made = is_export_directory(model)
    if not made:
        _check_captions_pictures(model)
    files = read_runtime(runtime)
    with tempfile.TemporaryDirectory() as scratch:
        ready = model
        if not made:
            ready = _export(model, Path(scratch) / "model", precision, pictures).path
        size = write_web(ready, target, name=model.resolve().name, runtime=files, replace=replace)
    typer.echo(f"{target}: {size / 1e6:.1f} MB; try: python -m http.server --bind 127.0.0.1 -d {target}")


def _check_captions_pictures(model: Path) -> None:
    """Refuse a model that no page can use before it is exported."""
    from xlan.engines.load import uses_own_detector
    from xlan.errors import ModelError
    from xlan.export.captioner import check_has_graphs
    from xlan.pretrained import VISION, read_model_directory

    found = read_model_directory(model)
    check_has_graphs(found.spec, str(model))
    if uses_own_detector(found):
        raise ModelError(
            f"{model}: captions the regions of its detector, which does not run in a page; give a model on grid cells, "
            f"or use xlan serve --model {model}"
        )
    if VISION not in found.extras:
        raise ModelError(
            f"{model}: captions region features, not pictures; add the vision network that made them with "
            "xlan pack --vision FILE"
        )


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
