"""`xlan caption`: pictures → sentences."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xlan.alt.sentence import alt_sentence
from xlan.cli import shared_options as shared
from xlan.cli.caption_file import CaptionFile, as_json, coco_ids, write_coco
from xlan.cli.engine import EngineChoice
from xlan.cli.explain import model_names
from xlan.cli.explain_folder import ExplainFolder
from xlan.cli.outputs import check_output
from xlan.cli.pictures import STDIN, count_pictures, find_pictures, picture_names
from xlan.cli.text import counted, printable
from xlan.errors import ImageError
from xlan.files import file_sha256
from xlan.options import EXPLAINED_RUNNERS_UP, CaptionOptions
from xlan.threads import leave_a_core

if TYPE_CHECKING:
    from rich.progress import Progress

    from xlan.photos.library import PhotoLibrary
    from xlan.pipeline import Captioner
    from xlan.types import Caption

    Write = Callable[[str, Caption], None]

# Below this, a caption on a terminal is marked: it is more likely wrong than right.
LOW_CONFIDENCE = 0.3


def caption(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PICTURE", help="Pictures, folders (with all subfolders), quoted globs, or - for standard input."
        ),
    ],
    model: shared.Model = None,
    beams: shared.Beams = None,
    samples: shared.Samples = None,
    temperature: shared.Temperature = None,
    top_p: shared.TopP = None,
    seed: shared.Seed = None,
    must: shared.Must = None,
    max_length: shared.MaxLength = None,
    as_lines_of_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON per picture: words, confidence, other captions.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write to this .jsonl or .csv instead; pictures it already has are skipped.",
        ),
    ] = None,
    coco: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write COCO results (image_id and caption) to this .json at the end."),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write a page per picture into DIR that shows where the model looked."),
    ] = None,
    sidecar: Annotated[
        bool,
        typer.Option("--sidecar", help="Also write each caption beside its photo, into an XMP file (photo.jpg.xmp)."),
    ] = False,
    embed: Annotated[
        bool,
        typer.Option("--embed", help="Also write each caption into its photo (JPEG, PNG, WebP); pixels stay the same."),
    ] = False,
    overwrite_description: Annotated[
        bool,
        typer.Option("--overwrite-description", help="With --sidecar and --embed: also replace what a person wrote."),
    ] = False,
    detector: shared.Detector = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again: replace what -o and --explain already have.")
    ] = False,
    engine: shared.Engine = EngineChoice.auto,
    device: shared.Device = "cpu",
    batch_size: shared.BatchSize = 16,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Threads that compute; default: OMP_NUM_THREADS, else cores - 1.", min=1, max=256
        ),
    ] = None,
) -> None:
    """Caption pictures.

    A picture that cannot be used is reported on standard error, the others are captioned all the same, and the exit
    status is then 1. A run with -o, --explain, --sidecar or --embed may be stopped at any time: the same command
    continues.
    """
    drawing = {"samples": samples, "temperature": temperature, "top_p": top_p, "seed": seed}
    options = shared.caption_options(beams=beams, **drawing, must=must, max_length=max_length)
    if explain is not None:
        options = replace(options, attention=True, runners_up=EXPLAINED_RUNNERS_UP)
    if as_lines_of_json and output is not None:
        raise typer.BadParameter("prints on standard output, but -o writes a file; leave one out", param_hint="--json")
    if overwrite and output is None and explain is None:
        raise typer.BadParameter("has an effect only together with -o or --explain", param_hint="--overwrite")
    if coco is not None and coco.suffix.lower() != ".json":
        raise typer.BadParameter(f"{coco}: expected a file name that ends in .json", param_hint="--coco")
    if coco is not None and output is None and (explain is not None or sidecar or embed):
        raise typer.BadParameter(
            "needs -o too: it has the captions of the pictures that a continued run skips", param_hint="--coco"
        )
    if coco is not None:
        check_output(coco)
        coco_ids(coco, picture_names(paths))  # a clash is told now, not behind an hour of work
    if (sidecar or embed) and STDIN in paths:
        raise typer.BadParameter("need files, not standard input", param_hint="--sidecar and --embed")
    if overwrite_description and not (sidecar or embed):
        raise typer.BadParameter("needs --sidecar or --embed", param_hint="--overwrite-description")
    from xlan.pipeline import Captioner

    warnings.filterwarnings("ignore", module=r"PIL\.")  # about broken EXIF data and odd palettes
    computing = threads or leave_a_core()
    captioner = Captioner.from_pretrained(
        model, engine=engine.engine, device=device, threads=computing, detector=detector
    )
    captioner.check(options)
    if as_lines_of_json and captioner.names_things:
        options = replace(options, attention=True)
    made_with = _made_with(captioner, model_names(model)[0], options, detector)
    write: Write = _write_json if as_lines_of_json else _plain_writer(options, named=not _is_one_picture(paths))
    with contextlib.ExitStack() as stack:
        file = pages = photos = None
        if sidecar or embed:
            from xlan.photos.library import PhotoLibrary

            whose = f"{model_names(model)[0]} {captioner.identity[:12]}".strip()
            photos = PhotoLibrary(whose, sidecar=sidecar, embed=embed, overwrite_description=overwrite_description)
        if output is not None:
            file = CaptionFile(output, samples=options.samples, made_with=made_with, overwrite=overwrite)
            stack.enter_context(file)
        if explain is not None:
            name = model_names(model)[0]
            pages = ExplainFolder(
                explain, model=name, drawn=options.samples > 0, made_with=made_with, overwrite=overwrite
            )
        console = stack.enter_context(_Console(paths, bar=output is not None or not sys.stdout.isatty()))
        found = find_pictures(paths, console.problem)
        todo = (item for item in found if not console.skip(_is_known(item[0], file, pages, photos)))
        pictures = todo if pages is None else pages.remember(todo)
        said: dict[str, str] = {}
        try:
            for name, result in captioner.caption_many(pictures, options, batch_size=batch_size):
                if isinstance(result, Exception):
                    console.problem(str(result))
                else:
                    if coco is not None:
                        said[name] = result.text
                    if pages is not None:
                        try:
                            pages.add(name, result)
                        except ImageError as error:  # gone since it was captioned
                            console.problem(str(error))
                    if photos is not None:
                        try:
                            photos.add(Path(name), alt_sentence(result.text), result.confidence)
                        except ImageError as error:
                            console.problem(str(error))
                    if file is None:
                        write(name, result)
                    elif name not in file.done:
                        file.add(name, result)
                        console.written += 1
                console.move()
        except KeyboardInterrupt:
            console.stop()
            _say_what_is_saved(file, pages, photos)
            raise typer.Exit(130) from None
    if coco is not None:
        count = write_coco(coco, said if file is None else file.done)
        typer.echo(f"{coco}: {counted(count, 'result')} written", err=True)
    if output is not None:
        typer.echo(f"{output}: {counted(console.written, 'caption')} written{_kept(console.skipped)}", err=True)
    if pages is not None:
        typer.echo(f"{pages.folder}: {counted(pages.written, 'page')} written{_kept(console.skipped)}", err=True)
    if photos is not None:
        kept = f", {photos.kept:,} described by a person (--overwrite-description replaces it)" if photos.kept else ""
        done = f", {photos.done:,} already described" if photos.done else ""
        typer.echo(f"{counted(photos.written, 'photo')} described{done}{kept}", err=True)
    if console.problems:
        raise typer.Exit(1)


def _kept(count: int) -> str:
    return f", {count:,} already existed (--overwrite replaces them)" if count else ""


def _say_what_is_saved(file: CaptionFile | None, pages: ExplainFolder | None, photos: PhotoLibrary | None) -> None:
    saved = []
    if file is not None:
        saved.append(f"{file.path} has {counted(len(file.done), 'caption')}")
    if pages is not None:
        saved.append(f"{pages.folder} has {counted(pages.written, 'new page')}")
    if photos is not None:
        saved.append(f"{counted(photos.written, 'photo')} described")
    if saved:
        typer.echo(f"interrupted: {' and '.join(saved)}; the same command continues from there", err=True)
    else:
        typer.echo("interrupted: nothing was saved; with -o FILE a run can be continued", err=True)


def _made_with(captioner: Captioner, name: str, options: CaptionOptions, detector: Path | None) -> dict[str, Any]:
    """The model, the detector and the options that change captions, for an output that must not mix them."""
    from xlan.vision.detector.directory_settings import CONFIG

    chosen = {key: value for key, value in asdict(options).items() if key not in ("attention", "runners_up")}
    return {
        "model": name,
        "model_sha256": captioner.identity,
        "detector_sha256": None if detector is None else file_sha256(detector / CONFIG),  # it has the weights' hashes
        **chosen,
        "must": list(options.must),
    }


def _is_known(
    name: str, file: CaptionFile | None, pages: ExplainFolder | None, photos: PhotoLibrary | None = None
) -> bool:
    """Whether every requested output of a picture already exists."""
    there = [] if file is None else [name in file.done]
    if pages is not None:
        there.append(pages.has(name))
    if photos is not None:
        there.append(photos.is_done(Path(name)))
    return bool(there) and all(there)


def _is_one_picture(paths: list[str]) -> bool:
    return len(paths) == 1 and (paths[0] == STDIN or Path(paths[0]).is_file())


def _plain_writer(options: CaptionOptions, *, named: bool, confidence: bool | None = None) -> Write:
    """The sentence alone for one picture; name, tab, sentence for several. A line for each sample that was drawn.

    On a terminal, or when `confidence` says so, the confidence follows, with a mark where it is low; programs that read
    the output get the sentences alone.
    """
    sure = sys.stdout.isatty() if confidence is None else confidence

    def write(name: str, found: Caption) -> None:
        for one in (found, *found.others) if options.samples else (found,):
            line = f"{printable(name)}\t{one.text}" if named else one.text
            low = ", low" if one.confidence < LOW_CONFIDENCE else ""
            typer.echo(f"{line}  (confidence {100 * one.confidence:.0f} %{low})" if sure else line)

    return write


def _write_json(name: str, found: Caption) -> None:
    typer.echo(as_json(name, found))


class _Console:
    """Standard error: a line for every problem and, unless captions are printed to a terminal, a progress bar."""

    def __init__(self, paths: list[str], *, bar: bool) -> None:
        self.problems = self.skipped = self.written = 0
        self._bar = _bar(paths) if bar and sys.stderr.isatty() else None

    def problem(self, line: str) -> None:
        """Count and report something that could not be captioned."""
        self.problems += 1
        if self._bar is not None:
            self._bar.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(printable(line), err=True)

    def skip(self, known: bool) -> bool:
        """Count a picture if its caption is already known; returns `known`."""
        if known:
            self.skipped += 1
            self.move()
        return known

    def move(self) -> None:
        """Advance by one picture."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> _Console:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _bar(paths: list[str]) -> Progress:
    # Imported here: most runs show no bar, and importing rich takes a quarter of the start.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("captioning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    # Captions go to standard output themselves; a bar that redirects it would print them on standard error.
    bar = Progress(*columns, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False)
    bar.add_task("", total=count_pictures(paths))
    return bar
