"""`xlan search`: photos of a folder that a sentence describes."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xlan.cli.engine import EngineChoice
from xlan.cli.outputs import check_page
from xlan.cli.progress import count_progress
from xlan.cli.shared_options import BatchSize, Device, Engine, Model
from xlan.cli.text import counted, printable
from xlan.errors import SearchError
from xlan.threads import leave_a_core

if TYPE_CHECKING:
    from xlan.search import Answer, PhotoSearch
    from xlan.search.update import Update

_LISTED = 20  # unreadable photos listed; further ones are only counted


def search(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The photos, with all subfolders.")],
    sentence: Annotated[
        str | None,
        typer.Argument(
            metavar="SENTENCE", help="What is in the photo. Without it, the index is only brought up to date."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="N", help="Most photos to show.", min=1, max=1000)
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON per photo.")] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with the photos found, one HTML file.")
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(metavar="N", help="How many of the best photos to compare word by word.", min=1, max=100_000),
    ] = 256,
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the index; default: one in your cache, by folder and model."),
    ] = None,
    do_update: Annotated[
        bool, typer.Option("--update/--no-update", help="Look for new, changed and removed photos first.")
    ] = True,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Index all photos again.")] = False,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="List all photos that cannot be indexed, and why.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove the indexes of this folder for all models, and exit.")
    ] = False,
    model: Model = None,
    engine: Engine = EngineChoice.auto,
    device: Device = "cpu",
    batch_size: BatchSize = 16,
) -> None:
    """Find the photos of a folder that a sentence describes, such as "a dog on the beach".

    The first search indexes every photo, which may take a while; if you interrupt it with Ctrl-C, the next search
    continues. Later searches index only new and changed photos. The score says how much better the sentence fits a
    photo than an average photo of the folder, which has 0: best first. The folder is only read.
    """
    from xlan.search.index import BusyIndexError
    from xlan.search.index import forget as forget_indexes
    from xlan.search.library import check_folder

    if forget and sentence is not None:
        raise typer.BadParameter("removes the index and does not search; leave out the sentence", param_hint="--forget")
    if forget:
        removed = forget_indexes(folder.resolve(), index)
        _say(f"{removed} {'index' if removed == 1 else 'indexes'} of {printable(str(folder))} removed")
        return
    if rebuild and not do_update:
        raise typer.BadParameter("cannot be combined with --no-update; choose one", param_hint="--rebuild")
    if skipped and not do_update:
        raise typer.BadParameter("cannot be combined with --no-update; choose one", param_hint="--skipped")
    of_searches = {"--page": page is not None, "--json": as_json, "--no-update": not do_update}
    if sentence is None and (given := [option for option, is_given in of_searches.items() if is_given]):
        raise typer.BadParameter('expected a sentence too, such as "a dog on the beach"', param_hint=given[0])
    if page is not None:
        check_page(page)
    check_folder(folder)
    photos = _open(folder, index, model, engine, device)
    if sentence is not None:
        photos.check(sentence)
    if do_update:
        try:
            with count_progress("indexing") as move:
                done = photos.update(problem=_problem, progress=move, rebuild=rebuild, batch_size=batch_size)
            _report_update(done, photos, every=skipped)
        except BusyIndexError:
            _say("another process is indexing this folder; searching the photos indexed so far")
    if sentence is None:
        _say(f"{counted(len(photos), 'photo')} indexed in {printable(str(photos.place))} ({_size(photos)})")
        return
    answer = photos.search(sentence, count=count, candidates=candidates)
    for unknown in answer.query.unknown:
        _say(printable(str(unknown)))
    if not answer.photos and not do_update:
        raise SearchError(f"{folder}: has no index for this model yet; search without --no-update")
    if not answer.photos:
        raise SearchError(f"{folder}: no photos to search; expected files such as .jpg, .png or .webp in it")
    _print(answer, folder, as_json)
    if page is not None:
        _write_page(page, answer, folder)


def _open(folder: Path, index: Path | None, model: Path | None, engine: EngineChoice, device: str) -> PhotoSearch:
    from xlan.pipeline import Captioner
    from xlan.search import PhotoSearch

    warnings.filterwarnings("ignore", module=r"PIL\.")  # about broken EXIF data and odd palettes
    captioner = Captioner.from_pretrained(model, engine=engine.engine, device=device, threads=leave_a_core())
    return PhotoSearch(folder, captioner, place=index)


def _report_update(done: Update, photos: PhotoSearch, *, every: bool) -> None:
    listed = done.skipped if every else done.fresh
    for name, why in list(listed.items())[: None if every else _LISTED]:
        _problem(f"{photos.folder / os.fsdecode(name)}: {why}")
    if not every and len(listed) > _LISTED:
        _say(f"and {len(listed) - _LISTED:,} more that cannot be indexed; --skipped lists them")
    parts = [f"{number:,} {what}" for number, what in _changes(done) if number]
    if parts:
        _say(f"{counted(len(photos), 'photo')} in the index: {', '.join(parts)}")


def _changes(done: Update) -> list[tuple[int, str]]:
    return [
        (done.added, "new"),
        (done.changed, "changed"),
        (done.removed, "removed"),
        (len(done.skipped), "cannot be indexed"),
    ]


def _print(answer: Answer, folder: Path, as_json: bool) -> None:
    if as_json:
        for place, one in enumerate(answer.found, start=1):
            record: dict[str, Any] = {
                "rank": place,
                "photo": str(folder / one.name),
                "score": round(one.score, 4),
                "words": [{"word": word, "score": round(value, 4)} for word, value in one.words],
                "caption": one.caption,
            }
            # A name that is no text is written with escapes, from which a reader of JSON gets its bytes back.
            typer.echo(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode())
        return
    names = [printable(str(folder / one.name)) for one in answer.found]
    width = max(len(name) for name in names)
    for one, name in zip(answer.found, names, strict=True):
        typer.echo(f"{one.score:7.2f}  {name:<{width}}  {one.caption}")
    _say(f"{counted(answer.photos, 'photo')}, {answer.compared:,} compared word by word, {answer.seconds:.2f} s")


def _write_page(path: Path, answer: Answer, folder: Path) -> None:
    from xlan.errors import ImageError
    from xlan.files import write_text
    from xlan.pages.found import FoundPhoto, search_page
    from xlan.pages.layout import thumbnail
    from xlan.vision.image import open_image

    shown = []
    for one in answer.found:
        try:
            picture = thumbnail(open_image(one.path, min_side=480))
        except ImageError as error:
            _problem(str(error))
            picture = ""
        shown.append(FoundPhoto(one.name, picture, one.caption, one.score, one.words))
    unknown = [str(word) for word in answer.query.unknown]
    write_text(path, search_page(answer.query.text, shown, folder=str(folder), photos=answer.photos, unknown=unknown))
    _say(f"wrote {printable(str(path))}")


def _size(photos: PhotoSearch) -> str:
    return f"{photos.size / 1e6:,.1f} MB"


def _problem(line: str) -> None:
    _say(printable(line))


def _say(line: str) -> None:
    typer.echo(line, err=True)
