"""`xlan explain`: a picture → a page or a figure that shows where the model looked for each word."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.caption_json import caption_record
from xlan.cli.engine import EngineChoice, detector_for_names
from xlan.cli.outputs import PAGES
from xlan.cli.pictures import STDIN, read_stdin
from xlan.cli.shared_options import Beams, Detector, Device, Engine, Model, Must, caption_options
from xlan.cli.text import printable, short_names
from xlan.errors import DataError, DecodingError, ModelError
from xlan.threads import leave_a_core

if TYPE_CHECKING:
    from PIL import Image

FIGURES = (".png",)


def explain(
    photo: Annotated[
        str, typer.Argument(metavar="PHOTO", help="A picture, or - for standard input.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write: a page (.html) or a figure (.png).", show_default=False),
    ],
    model: Model = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A second model, to be shown beside the first.")
    ] = None,
    beams: Beams = None,
    must: Must = None,
    detector: Detector = None,
    as_lines_of_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON per model: for each word where it looked, and at what.")
    ] = False,
    engine: Engine = EngineChoice.auto,
    device: Device = "cpu",
) -> None:
    """Show where the model looked for each word of its caption, how sure it was and what it nearly said.

    The page is self-contained. Prints the caption and the path of the page or figure. With a detector, words point
    at boxes with names.
    """
    _check_output(output, photo)
    from xlan.files import atomic_path, write_text
    from xlan.options import EXPLAINED_RUNNERS_UP
    from xlan.pages.explanation import Account, explanation_page
    from xlan.pages.figure import figure_png
    from xlan.pipeline import Captioner

    warnings.filterwarnings("ignore", module=r"PIL\.")
    options = caption_options(beams=beams, must=must, attention=True, runners_up=EXPLAINED_RUNNERS_UP)
    models = [model] if compare is None else [model, compare]
    threads = leave_a_core()
    captioners = [
        Captioner.from_pretrained(
            directory,
            engine=engine.engine,
            device=device,
            threads=threads,
            detector=detector_for_names(detector, directory),
        )
        for directory in models
    ]
    for label, captioner in zip(model_names(*models), captioners, strict=True):
        try:
            captioner.check(options)
        except (DecodingError, ModelError) as error:
            if compare is None:
                raise
            raise type(error)(f"{label}: {error}") from None
    source = read_stdin() if photo == STDIN else Path(photo)
    name = "standard input" if photo == STDIN else photo
    image = open_for_page(source, name)
    accounts = [
        Account(label, captioner.caption_prepared([captioner.prepare(source, name=name)], options)[0])
        for label, captioner in zip(model_names(*models), captioners, strict=True)
    ]
    if output.suffix.lower() in PAGES:
        write_text(output, explanation_page(image, Path(name).name, accounts))
    else:
        with atomic_path(output) as temporary:
            temporary.write_bytes(figure_png(image, accounts))
    if as_lines_of_json:
        for account in accounts:
            record = {"image": name, "model": account.model, "page": str(output), **caption_record(account.caption)}
            typer.echo(json.dumps(record))
        return
    for account in accounts:
        said = printable(account.caption.text)
        typer.echo(said if compare is None else f"{printable(account.model)}\t{said}")
    typer.echo(printable(str(output)))


def _check_output(output: Path, photo: str) -> None:
    if output.suffix.lower() not in PAGES + FIGURES:
        raise DataError(f"{output}: expected a file name that ends in .html (a page) or .png (a figure)")
    with contextlib.suppress(OSError):
        if photo != STDIN and output.samefile(photo):
            raise DataError(f"{output}: is the picture itself; choose another name for its explanation")


def open_for_page(source: Path | bytes, name: str) -> Image.Image:
    """The picture upright, decoded no larger than a page needs."""
    from xlan.pages.explanation import SIDE
    from xlan.vision.image import open_image

    return open_image(source, min_side=SIDE, name=name)


def model_names(*directories: Path | None) -> list[str]:
    """What to call models: as their folders are called; the one that comes with xlan is `xlan`."""
    return short_names([Path("xlan") if directory is None else directory for directory in directories])
