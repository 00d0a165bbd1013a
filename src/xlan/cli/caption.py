"""`xlan caption`: pictures → sentences."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.caption_file import CaptionFile, as_json
from xlan.cli.engine import ENGINE_HELP, EngineChoice
from xlan.cli.explain import RUNNERS_UP, model_names
from xlan.cli.explain_folder import ExplainFolder
from xlan.cli.pictures import STDIN, count_pictures, find_pictures, printable
from xlan.errors import ImageError
from xlan.threads import leave_a_core

if TYPE_CHECKING:
    from xlan.options import CaptionOptions
    from xlan.types import Caption

    Write = Callable[[str, Caption], None]


def caption(
    paths: Annotated[
        list[str],
        typer.Argument(help="Pictures, folders (searched to the bottom), globs in quotes, or - for standard input."),
    ],
    model: Annotated[
        Path | None, typer.Option(help="Model directory; without it, the model that comes with xlan.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Sentences kept while searching; 3 unless given.", min=1)] = None,
    samples: Annotated[
        int | None, typer.Option("--sample", help="Draw this many captions per picture instead of searching.", min=1)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of --sample: below 1 is bolder, above 1 more varied; 1 unless given.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Of --sample: only the likeliest words that have this probability together.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of --sample: the same seed draws the same captions; 0 unless given.", min=0)
    ] = None,
    must: Annotated[
        list[str] | None,
        typer.Option(help="A word or phrase that has to appear; 'dog|dogs' for either; may be repeated."),
    ] = None,
    as_lines_of_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON per picture: words, confidence, runners-up.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write to this .jsonl or .csv instead; pictures it already has are skipped."
        ),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write a page per picture into DIR that shows where the model looked."),
    ] = None,
    detector: Annotated[
        Path | None, typer.Option(help="Detector directory whose regions the model takes, such as bottom-up attention.")
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)] = EngineChoice.auto,
    batch: Annotated[int, typer.Option(help="Pictures per call of the model.", min=1, max=1024)] = 16,
    threads: Annotated[int, typer.Option(help="Threads that open pictures meanwhile.", min=1, max=256)] = 2,
) -> None:
    """Say what is in pictures.

    A picture that cannot be used is reported on standard error and the rest goes on; the exit status is then 1. A run
    with -o or --explain may be stopped at any time: the same command goes on where it was.
    """
    options = _options(beams=beams, samples=samples, temperature=temperature, top_p=top_p, seed=seed, must=must or [])
    if explain is not None:
        options = replace(options, attention=True, runners_up=RUNNERS_UP)
    if as_lines_of_json and output is not None:
        raise typer.BadParameter("prints on standard output, but -o writes a file; leave one out", param_hint="--json")
    from xlan.pipeline import Captioner

    # Decoders warn of oddities (broken EXIF, odd palettes) that are no concern of who captions a folder.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    captioner = Captioner.from_pretrained(model, engine=engine.engine, threads=leave_a_core(), detector=detector)
    captioner.check(options)
    write: Write = _write_json if as_lines_of_json else _plain_writer(options, named=not _is_one_picture(paths))
    with contextlib.ExitStack() as stack:
        file = None if output is None else stack.enter_context(CaptionFile(output, samples=options.samples))
        pages = None
        if explain is not None:
            pages = ExplainFolder(explain, model=model_names(model)[0], drawn=options.samples > 0)
        console = stack.enter_context(_Console(paths, bar=output is not None or not sys.stdout.isatty()))
        found = find_pictures(paths, console.problem)
        todo = (item for item in found if not console.skip(_is_known(item[0], file, pages)))
        pictures = todo if pages is None else pages.remember(todo)
        for name, result in captioner.caption_many(pictures, options, batch=batch, threads=threads):
            if isinstance(result, Exception):
                console.problem(str(result))
            else:
                if pages is not None:
                    try:
                        pages.add(name, result)
                    except ImageError as error:  # gone since it was captioned
                        console.problem(str(error))
                if file is None:
                    write(name, result)
                elif name not in file.done:
                    file.add(name, result)
                    console.written += 1
            console.move()
    skipped = f", {console.skipped} were there" if console.skipped else ""
    if output is not None:
        typer.echo(f"{output}: {console.written} captions written{skipped}", err=True)
    if pages is not None:
        typer.echo(f"{pages.folder}: {pages.written} pages written{skipped}", err=True)
    if console.problems:
        raise typer.Exit(1)


def _is_known(name: str, file: CaptionFile | None, pages: ExplainFolder | None) -> bool:
    """Whether nothing is left to do for a picture: all that was asked for and lasts is there."""
    there = [] if file is None else [name in file.done]
    if pages is not None:
        there.append(pages.has(name))
    return bool(there) and all(there)


def _options(
    *,
    beams: int | None,
    samples: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    must: list[str],
) -> CaptionOptions:
    """Options as the pipeline takes them; those that would do nothing are refused."""
    from xlan.options import CaptionOptions

    if samples is not None and beams is not None:
        raise typer.BadParameter("searches, but --sample draws; leave one out", param_hint="--beams")
    given = {"--temperature": temperature, "--top-p": top_p, "--seed": seed}
    for option, value in given.items():
        if samples is None and value is not None:
            raise typer.BadParameter("does something only together with --sample N", param_hint=option)
    if temperature is not None and not 0 < temperature < float("inf"):
        raise typer.BadParameter(f"expected a number above 0, got {temperature}", param_hint="--temperature")
    if top_p is not None and not 0 < top_p <= 1:
        raise typer.BadParameter(f"expected a number above 0 and up to 1, got {top_p}", param_hint="--top-p")
    return CaptionOptions(
        beams=3 if beams is None else beams,
        samples=samples or 0,
        temperature=1.0 if temperature is None else temperature,
        top_p=top_p,
        seed=seed or 0,
        must=tuple(must),
    )


def _is_one_picture(paths: list[str]) -> bool:
    return len(paths) == 1 and (paths[0] == STDIN or Path(paths[0]).is_file())


def _plain_writer(options: CaptionOptions, *, named: bool) -> Write:
    """The sentence alone for one picture; name, tab, sentence for several. A line for each sample that was drawn."""

    def write(name: str, found: Caption) -> None:
        for one in (found, *found.others) if options.samples else (found,):
            typer.echo(f"{printable(name)}\t{one.text}" if named else one.text)

    return write


def _write_json(name: str, found: Caption) -> None:
    typer.echo(as_json(name, found))


class _Console:
    """Standard error: a line for every problem and, where nothing else moves on the terminal, a progress bar."""

    def __init__(self, paths: list[str], *, bar: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.problems = self.skipped = self.written = 0
        screen = Console(stderr=True)
        columns = (TextColumn("captioning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._shown = bar and screen.is_terminal
        # Captions go to standard output themselves; a bar that redirects it would print them on standard error.
        self._bar = Progress(
            *columns,
            console=screen,
            disable=not self._shown,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=count_pictures(paths) if self._shown else None)

    def problem(self, line: str) -> None:
        """Count and report something that could not be captioned."""
        self.problems += 1
        if self._shown:
            self._bar.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(printable(line), err=True)

    def skip(self, known: bool) -> bool:
        """Count a picture whose caption is known already; returns whether it is."""
        if known:
            self.skipped += 1
            self.move()
        return known

    def move(self) -> None:
        """One picture further."""
        self._bar.advance(self._task)

    def __enter__(self) -> _Console:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
