"""`xlan alt`: alternative text for the pictures of web pages, Markdown, reStructuredText and notebooks."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.engine import EngineChoice
from xlan.cli.progress import count_progress
from xlan.cli.shared_options import BatchSize, Device, Engine, Model
from xlan.cli.text import counted, printable
from xlan.threads import leave_a_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xlan.alt.survey import Finding, Problem
    from xlan.pipeline import Captioner

DEFAULT_CONFIDENCE = 0.7


def alt(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE_OR_FOLDER", help="Documents (.html, .md, .rst, .ipynb, …) or folders with all subfolders."
        ),
    ],
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Write the suggestions into the documents, marked so that they can be undone."),
    ] = False,
    min_confidence: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help=f"With --apply: only suggestions of at least this confidence; default {DEFAULT_CONFIDENCE}.",
            min=0,
            max=1,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check: exit status 1 when an image lacks a text. Needs no model.")
    ] = False,
    list_marked: Annotated[
        bool, typer.Option("--list", help="List the texts that --apply wrote and that are not reviewed yet.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Remove the texts that --apply wrote and restore the old bytes.")
    ] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Open a page on this machine to accept, edit or reject each suggestion.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON per image.")] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for addresses that begin with /; default: the folder given, else that of the document.",
        ),
    ] = None,
    model: Model = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="With --review: port; by default a free one.", min=0, max=65535)
    ] = None,
    engine: Engine = EngineChoice.auto,
    device: Device = "cpu",
    batch_size: BatchSize = 16,
) -> None:
    """Find images without alternative text and suggest one for each picture on this machine.

    Without options, prints where text is missing, with suggestions, and changes nothing. An image lacks a text when it
    has none, an empty one without being decorative, or only the name of a file. Nothing is fetched: pictures from the
    web are listed as "not local".
    """
    chosen = [name for name, on in _modes(apply, check, list_marked, undo, review) if on]
    if len(chosen) > 1:
        raise typer.BadParameter(f"cannot be combined with {chosen[1]}; choose one", param_hint=chosen[0])
    if min_confidence is not None and not apply:
        raise typer.BadParameter("has an effect only together with --apply", param_hint="--min-confidence")
    if port is not None and not review:
        raise typer.BadParameter("has an effect only together with --review", param_hint="--port")
    if as_json and review:
        raise typer.BadParameter("cannot be combined with --review; choose one", param_hint="--json")
    if root is not None and not root.is_dir():
        raise typer.BadParameter(f"{root}: no such folder", param_hint="--root")
    from xlan.alt import survey

    problems: list[str] = []

    def problem(line: str) -> None:
        problems.append(line)
        typer.echo(printable(line), err=True)

    seen: set[str] = set()
    found = [one for path in paths for one in _survey(path, root, seen, problem)]
    marked = [one for one in found if one.state == "marked"]
    missing = [one for one in found if one.lacks_text]
    if list_marked:
        _report(marked, as_json, "")
        _say(f"{counted(len(marked), 'text')} to review in {_files(marked)}")
    elif undo:
        done = survey.undo(marked, problem)
        _report(done, as_json, "undone")
        _say(f"{counted(len(done), 'text')} removed from {_files(done)}")
    elif check:
        _report(missing, as_json, "")
        _say(_summary(missing))
        raise typer.Exit(1 if missing or problems else 0)
    else:
        shown = [one for one in found if one.state != "marked" or review]
        if any(one.picture is not None and one.lacks_text for one in shown):
            captioner = _captioner(model, engine, device)
            with count_progress("captioning") as move:
                shown = survey.suggest(shown, captioner, batch_size=batch_size, progress=move)
        if review:
            _review(shown, port or 0)
        elif apply:
            least = DEFAULT_CONFIDENCE if min_confidence is None else min_confidence
            good = [one for one in shown if one.suggestion and one.confidence >= least]
            written = survey.apply(good, problem)
            _report(written, as_json, "written")
            done_with = set(written)
            rest = [one for one in shown if one.lacks_text and one not in done_with]
            if not as_json:
                _report(rest, as_json, "left")
            _say(f"{counted(len(written), 'text')} written to {_files(written)}; {_left(rest, least)}")
        else:
            _report([one for one in shown if one.state != "marked"], as_json, "")
            _say(_summary([one for one in shown if one.lacks_text]))
    if problems:
        raise typer.Exit(1)


def _modes(*values: bool) -> list[tuple[str, bool]]:
    return list(zip(("--apply", "--check", "--list", "--undo", "--review"), values, strict=True))


def _survey(path: Path, root: Path | None, seen: set[str], problem: Problem) -> list[Finding]:
    """The images of the documents that are not in `seen`, where they are then noted: paths may overlap."""
    from xlan.alt import survey
    from xlan.alt.document import find_documents

    documents = []
    for document in find_documents(path, problem):
        if (place := os.path.realpath(document)) not in seen:
            seen.add(place)
            documents.append(document)
    top = root or (path if path.is_dir() else None)
    return list(survey.survey(documents, top, problem))


def _captioner(model: Path | None, engine: EngineChoice, device: str) -> Captioner:
    from xlan.pipeline import Captioner

    warnings.filterwarnings("ignore", module=r"PIL\.")  # about broken EXIF data and odd palettes
    return Captioner.from_pretrained(model, engine=engine.engine, device=device, threads=leave_a_core())


def _review(findings: Sequence[Finding], port: int) -> None:
    from xlan.alt.review import ReviewServer

    if not findings:
        typer.echo("nothing to review: every image has a text", err=True)
        return
    with ReviewServer(findings, port=port) as server:
        typer.echo(f"review on {server.address}", err=False)
        _say("Ctrl-C ends the review; decisions are written at once")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            _say(f"{counted(server.decided, 'decision')} written")


def _report(findings: Sequence[Finding], as_json: bool, action: str) -> None:
    """A line per image: place, picture, and the suggestion with its confidence or why there is none."""
    for one in findings:
        if as_json:
            typer.echo(json.dumps(_record(one, action), ensure_ascii=False).encode("utf-8", "replace").decode())
        else:
            start = f"{printable(one.place)}: {printable(one.source)}: "
            typer.echo(start + printable(_text(one)))


def _text(one: Finding) -> str:
    if one.suggestion:
        return f"{one.suggestion} (confidence {100 * one.confidence:.0f} %)"
    if one.state == "marked":
        return one.alt or ""
    return one.note or {"missing": "no text", "empty": "empty text", "file name": f"only a name: {one.alt}"}[one.state]


def _record(one: Finding, action: str) -> dict[str, object]:
    record: dict[str, object] = {
        "document": str(one.document),
        "line": one.line,
        "column": one.column,
        "picture": one.source,
        "state": one.state,
        "alt": one.alt,
        "suggestion": one.suggestion or None,
        "confidence": round(one.confidence, 4) if one.suggestion else None,
        "note": one.note or None,
    }
    return {**record, "action": action} if action else record


def _summary(missing: Sequence[Finding]) -> str:
    if not missing:
        return "every image has a text"
    return f"{counted(len(missing), 'image')} without text in {_files(missing)}"


def _left(rest: Sequence[Finding], confidence: float) -> str:
    doubtful = sum(1 for one in rest if one.suggestion)
    parts = [f"{doubtful:,} below confidence {confidence:g}"] if doubtful else []
    if len(rest) > doubtful:
        parts.append(f"{len(rest) - doubtful:,} without a suggestion")
    return f"{counted(len(rest), 'image')} left without text ({', '.join(parts)})" if rest else "none left without text"


def _files(findings: Sequence[Finding]) -> str:
    return counted(len({one.document for one in findings}), "file")


def _say(line: str) -> None:
    typer.echo(line, err=True)
