"""All documents of a folder: find images without text, suggest texts, write them and undo them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xlan.alt.document import Document
from xlan.alt.images import NEEDS_TEXT, LineIndex, State
from xlan.alt.pictures import LocalPicture, is_spacer, locate, shown
from xlan.alt.sentence import alt_sentence
from xlan.errors import DataError, ImageError
from xlan.pipeline import Captioner

Problem = Callable[[str], None]
# A document with more images is changed as a whole or not at all: trying them one by one would take too long.
_MOST_ONE_BY_ONE = 200


@dataclass(frozen=True)
class Finding:
    """An image of a document.

    Attributes:
        document: the file.
        digest: SHA-256 of the file when it was read.
        number: which image of the document it is, from 0.
        line: its line, from 1.
        column: its column, from 1.
        source: the picture's address as the document has it.
        state: see `Image`.
        alt: its present alternative text.
        can_be_decorative: whether the document can say that the image needs no text.
        picture: the picture on this machine; None where there is none.
        note: why there is no suggestion.
        suggestion: what could be written; empty where there is none.
        confidence: how much it can be trusted, 0 to 1.
    """

    document: Path
    digest: str
    number: int
    line: int
    column: int
    source: str
    state: State
    alt: str | None
    can_be_decorative: bool
    picture: LocalPicture | None
    note: str = ""
    suggestion: str = ""
    confidence: float = 0.0

    @property
    def place(self) -> str:
        """File, line and column as compilers write it."""
        return f"{self.document}:{self.line}:{self.column}"

    @property
    def lacks_text(self) -> bool:
        """Whether a reader who cannot see the picture gets nothing."""
        return self.state in NEEDS_TEXT


def survey(documents: Iterable[Path], root: Path | None, problem: Problem) -> Iterator[Finding]:
    """The images of documents that lack a text, are made by templates or have a text that nobody has reviewed.

    Args:
        documents: the files.
        root: where addresses that begin with `/` begin; by default the folder of each document.
        problem: called with each document that cannot be read.
    """
    for path in documents:
        try:
            document = Document(path)
        except DataError as error:
            problem(str(error))
            continue
        places = LineIndex(document.text)
        located: dict[tuple[str, ...], LocalPicture | str] = {}
        for number, image in enumerate(document.images):
            if image.state in ("described", "decorative"):
                continue
            line, column = places.place(image.start)
            if image.sources not in located:
                located[image.sources] = locate(image.sources, path.parent, root or path.parent)
            found = located[image.sources]
            picture, note = (found, "") if isinstance(found, LocalPicture) else (None, found)
            if image.state == "computed":
                picture, note = None, "written by a template or across lines; describe it by hand"
            elif picture is not None and image.state in ("missing", "empty") and is_spacer(picture):
                continue
            source = shown(image.sources[0]) if image.sources else "(no address)"
            yield Finding(
                document=path,
                digest=document.digest,
                number=number,
                line=line,
                column=column,
                source=source,
                state=image.state,
                alt=image.alt,
                can_be_decorative=image.can_be_decorative,
                picture=picture,
                note=note,
            )


def suggest(
    findings: Sequence[Finding], captioner: Captioner, *, batch_size: int = 16, progress: Callable[[int, int], None]
) -> list[Finding]:
    """The findings with suggestions; every picture is captioned once, however often it is used.

    Args:
        findings: what `survey` gave.
        captioner: makes the sentences.
        batch_size: pictures per call of the model.
        progress: called with how many pictures are done, and how many there are.
    """
    pictures = {one.picture.key: one.picture for one in findings if one.picture is not None and one.lacks_text}
    said: dict[str, tuple[str, float] | str] = {}
    named = ((key, one.source) for key, one in pictures.items())
    for key, result in captioner.caption_many(named, batch_size=batch_size):
        if isinstance(result, ImageError):
            said[key] = str(result).removeprefix(f"{key}: ")
        else:
            said[key] = (alt_sentence(result.text), result.confidence)
        progress(len(said), len(pictures))
    return [_with_suggestion(one, said.get(one.picture.key) if one.picture else None) for one in findings]


def _with_suggestion(finding: Finding, said: tuple[str, float] | str | None) -> Finding:
    if said is None or not finding.lacks_text:
        return finding
    if isinstance(said, str):
        return replace(finding, note=said)
    return replace(finding, suggestion=said[0], confidence=said[1])


def apply(findings: Iterable[Finding], problem: Problem) -> list[Finding]:
    """Write the suggestions into their documents, marked; returns those that were written.

    Documents that are read-only or changed since they were read are reported and left alone.

    Raises:
        OSError: a file cannot be written (a full disk); what was written before stays.
    """
    written: list[Finding] = []
    for group in by_document(findings):
        try:
            document = _unchanged(group[0])
            content, done = _describe(document, group, problem)
            if done:
                document.write(content)
                written += done
        except DataError as error:
            problem(str(error))
    return written


def undo(findings: Iterable[Finding], problem: Problem) -> list[Finding]:
    """Remove marked texts from their documents; returns the removed ones.

    Raises:
        OSError: a file cannot be written.
    """
    removed: list[Finding] = []
    for group in by_document(one for one in findings if one.state == "marked"):
        try:
            document = _unchanged(group[0])
            document.write(document.undo([one.number for one in group]))
            removed += group
        except DataError as error:
            problem(str(error))
    return removed


def by_document(findings: Iterable[Finding]) -> list[list[Finding]]:
    """The findings of each document, in order."""
    groups: dict[Path, list[Finding]] = {}
    for one in findings:
        groups.setdefault(one.document, []).append(one)
    return list(groups.values())


def _unchanged(finding: Finding) -> Document:
    document = Document(finding.document)
    if document.digest != finding.digest:
        raise DataError(f"{finding.document}: changed by another program meanwhile; nothing was written, run again")
    return document


def _describe(document: Document, group: list[Finding], problem: Problem) -> tuple[bytes, list[Finding]]:
    """The changed document: with all texts or, where some cannot be written, with all others."""
    try:
        return document.describe({one.number: one.suggestion for one in group}, marked=True), group
    except DataError:
        if len(group) > _MOST_ONE_BY_ONE or len(group) == 1:
            raise
    good: list[Finding] = []
    for one in group:
        try:
            document.describe({one.number: one.suggestion}, marked=True)
            good.append(one)
        except DataError as error:
            problem(f"{one.place}: {error}")
    if not good:
        return b"", []
    return document.describe({one.number: one.suggestion for one in good}, marked=True), good
