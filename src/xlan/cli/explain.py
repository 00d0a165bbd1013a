"""`xlan explain`: a picture → a page or a figure that shows where the model looked for each word."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.engine import ENGINE_HELP, MODEL_HELP, EngineChoice
from xlan.cli.pictures import STDIN, read_stdin
from xlan.cli.text import printable, short_names
from xlan.errors import DataError, DecodingError
from xlan.threads import leave_a_core

if TYPE_CHECKING:
    from PIL import Image

PAGES, FIGURES = (".html", ".htm"), (".png",)


def explain(
    photo: Annotated[
        str, typer.Argument(metavar="PHOTO", help="A picture, or - for standard input.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Where to: a page (.html) or a figure (.png).", show_default=False),
    ],
    model: Annotated[Path | None, typer.Option(metavar="DIR", help=MODEL_HELP)] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A second model, to be shown beside the first.")
    ] = None,
    beams: Annotated[int, typer.Option(metavar="N", help="Sentences kept while searching, 1 to 10.")] = 3,
    must: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="A word or phrase that has to appear; 'dog|dogs' for either; repeatable."),
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)] = EngineChoice.auto,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps.")] = "cpu",
) -> None:
    """Show where the model looked for each word of its caption, how sure it was and what it nearly said.

    The page needs nothing but itself. Prints the caption and where the page or figure is.
    """
    _check_output(output, photo)
    from xlan.files import atomic_path, write_text
    from xlan.options import EXPLAINED_RUNNERS_UP, CaptionOptions
    from xlan.pages.explanation import Account, explanation_page
    from xlan.pages.figure import figure_png
    from xlan.pipeline import Captioner

    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        options = CaptionOptions(beams=beams, must=tuple(must or ()), attention=True, runners_up=EXPLAINED_RUNNERS_UP)
    except DecodingError as error:
        raise typer.BadParameter(str(error)) from None
    models = [model] if compare is None else [model, compare]
    threads = leave_a_core()
    captioners = [
        Captioner.from_pretrained(directory, engine=engine.engine, device=device, threads=threads)
        for directory in models
    ]
    for captioner in captioners:
        captioner.check(options)
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
