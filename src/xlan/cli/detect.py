"""`xlan detect`: pictures → boxes with names, as a table, as JSON, or drawn."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.drawings import plan_drawings, save_drawing
from xlan.cli.engine import ENGINE_HELP, EngineChoice
from xlan.cli.pictures import STDIN, find_pictures
from xlan.cli.text import printable
from xlan.errors import ImageError, ModelError
from xlan.threads import leave_a_core

if TYPE_CHECKING:
    from xlan.engines.load import EngineName
    from xlan.vision.detector.detections import Detections, Detector


def detect(
    paths: Annotated[
        list[str],
        typer.Argument(help="Pictures, folders (with all subfolders), quoted globs, or - for standard input."),
    ],
    detector: Annotated[
        Path | None,
        typer.Option(help="Detector directory; without it, the detector that comes with xlan."),
    ] = None,
    min_score: Annotated[float, typer.Option(help="Leave out detections with a lower score.", min=0.0, max=1.0)] = 0.3,
    most: Annotated[int, typer.Option(help="Most boxes per picture.", min=1, max=1000)] = 36,
    as_lines_of_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON per picture: names, scores, boxes as fractions.")
    ] = False,
    draw: Annotated[
        Path | None,
        typer.Option(
            help="Write pictures with boxes drawn on them: a .png or .jpg file, or a folder for several, where only "
            "earlier drawings are replaced."
        ),
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)] = EngineChoice.auto,
) -> None:
    """Find things in pictures: what they are, where, and how sure the detector is.

    A picture that cannot be used is reported on standard error, the others are searched all the same, and the exit
    status is then 1.
    """
    from xlan.vision.detector.drawing import draw as drawn
    from xlan.vision.image import open_image

    # Decoders warn about broken EXIF and odd palettes; users can do nothing about it.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    leave_a_core()
    found_by = _load(detector, min_score, most, engine.engine)
    problems: list[str] = []

    def problem(line: str) -> None:
        problems.append(line)
        typer.echo(printable(line), err=True)

    one = len(paths) == 1 and (paths[0] == STDIN or Path(paths[0]).is_file())
    write = _json if as_lines_of_json else _table
    pictures: Iterable[tuple[str, Path | bytes, Path | None]]
    if draw is None:
        pictures = ((name, source, None) for name, source in find_pictures(paths, problem))
    else:
        pictures = plan_drawings(draw, list(find_pictures(paths, problem)), one=one)
    for name, source, drawing in pictures:
        try:
            image = open_image(source, min_side=None if drawing is not None else found_by.min_side, name=name)
            found = _likely(found_by.detect([found_by.prepare(image)])[0], min_score, most)
            if drawing is not None:
                save_drawing(drawn(image, found), drawing)
        except ImageError as error:
            problem(str(error))
            continue
        write(name, found, one)
    if problems:
        raise typer.Exit(1)


def _load(directory: Path | None, min_score: float, most: int, engine: EngineName) -> Detector:
    from xlan.engines.load import open_detector
    from xlan.pretrained import DETECTOR, SHIPPED, VISION
    from xlan.vision.detector.directory_settings import is_detector_directory

    shipped = SHIPPED / DETECTOR
    if directory is None and not is_detector_directory(shipped):
        raise ModelError(
            "this version of xlan comes without a detector; give one with --detector DIR "
            "(see `xlan import-detector` and `xlan detector train`)"
        )
    source = shipped if directory is None else directory
    vision = source.parent / VISION  # a detector inside a model directory shares the model's vision network
    return open_detector(
        source,
        engine=engine,
        regions=(1, most),
        confidence=min_score,
        vision=vision if vision.is_file() else None,
    )


def _likely(found: Detections, min_score: float, most: int) -> Detections:
    """Detections above the score, best first; there may be none."""
    import numpy as np

    from xlan.vision.detector.detections import selected

    scores = found.regions.scores
    if scores is None:
        return found
    order = np.argsort(-scores, kind="stable")
    likely = order[scores[order] >= min_score][:most]
    return selected(found, likely)


def _json(name: str, found: Detections, _: bool) -> None:
    regions = found.regions
    line = {"picture": name, "width": regions.width, "height": regions.height, "objects": found.records()}
    typer.echo(json.dumps(line))


def _table(name: str, found: Detections, one: bool) -> None:
    """Name, score, attribute and box in pixels, one detection a line."""
    if not one:
        typer.echo(printable(name))
    indent = "" if one else "  "
    if not len(found):
        typer.echo(f"{indent}nothing found")
        return
    records = found.records()
    names = [_named(record) for record in records]
    wide = max(len(text) for text in names)
    for record, text in zip(records, names, strict=True):
        x0, y0, x1, y1 = (
            round(value * side)
            for value, side in zip(record["box"], [found.regions.width, found.regions.height] * 2, strict=True)
        )
        typer.echo(f"{indent}{text:<{wide}}  {record.get('score', 0):.2f}  {x0},{y0} {x1},{y1}")


def _named(record: dict[str, object]) -> str:
    return printable(f"{record['attribute']} {record['name']}" if "attribute" in record else str(record["name"]))
