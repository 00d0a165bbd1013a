"""Images of the Markdown cells of a Jupyter notebook.

The notebook is JSON; edits are made inside its string literals, so that nothing else of the file changes.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from xlan.alt import markdown
from xlan.alt.images import Edit, Image
from xlan.errors import DataError

_TOKEN = re.compile(r'[\s,:]*+("(?:[^"\\]|\\.)*+"|[{}\[\]]|[^\s,:{}\[\]"]++)', re.DOTALL)
_PIECE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL
)  # what makes one character


@dataclass(frozen=True)
class _Literal:
    start: int  # of the opening quote
    raw: str  # with its quotes
    text: str


@dataclass
class Cell:
    """The source of a Markdown cell: its text, the JSON literals it is made of, and its attachments."""

    literals: list[_Literal] = field(default_factory=list)
    attachments: dict[str, str] = field(default_factory=dict)  # name → data: address
    _offsets: dict[int, list[int]] = field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        """The Markdown."""
        return "".join(one.text for one in self.literals)

    def place(self, at: int) -> tuple[int, int]:
        """Which literal a character of the text is in, and where it is written in the file."""
        number = max(0, bisect_right(self._starts, at) - 1)
        if number not in self._offsets:
            self._offsets[number] = _offsets(self.literals[number].raw)
        return number, self.literals[number].start + self._offsets[number][at - self._starts[number]]

    @cached_property
    def _starts(self) -> list[int]:
        """Where in the text each literal begins."""
        return [0, *accumulate(len(one.text) for one in self.literals[:-1])]


def _offsets(raw: str) -> list[int]:
    """Where each character of a JSON literal is written, and where the last one ends."""
    places, at = [], 1
    for piece in _PIECE.finditer(raw, 1, len(raw) - 1):
        places.append(at)
        at = piece.end()
    return [*places, at]


@dataclass(frozen=True)
class NotebookImage(Image):
    """An image of a Markdown cell; edits are those of the cell, written as JSON."""

    inner: Image
    cell: Cell

    def describe(self, text: str, *, marked: bool) -> list[Edit]:
        """As in Markdown."""
        return self._outer(self.inner.describe(text, marked=marked))

    def undo(self) -> list[Edit]:
        """As in Markdown."""
        return self._outer(self.inner.undo())

    @property
    def can_be_decorative(self) -> bool:
        """As in Markdown, where images may be written as HTML."""
        return self.inner.can_be_decorative

    def decorate(self) -> list[Edit]:
        """As in Markdown."""
        return self._outer(self.inner.decorate())

    def _outer(self, edits: list[Edit]) -> list[Edit]:
        moved = []
        for edit in edits:
            first, start = self.cell.place(edit.start)
            # The end of a literal is a better place to write than the beginning of the next.
            last, end = (first, start) if edit.end == edit.start else self.cell.place(edit.end - 1)
            if edit.end > edit.start:
                end = self._behind(edit.end, last)
            if last != first:
                raise DataError("the image is written over several lines of the cell; describe it by hand")
            moved.append(Edit(start, end, json.dumps(edit.text, ensure_ascii=False)[1:-1]))
        return moved

    def _behind(self, at: int, number: int) -> int:
        """The place behind the character before `at`, in the literal that has it."""
        last, place = self.cell.place(at)
        if last == number:
            return place
        return self.cell.literals[number].start + len(self.cell.literals[number].raw) - 1


def find(text: str) -> list[Image]:
    """The images of the Markdown cells in order.

    Raises:
        DataError: it is not a notebook.
    """
    images: list[Image] = []
    for _, cell in cells(text):
        for inner in markdown.find(cell.text):
            sources = tuple(cell.attachments.get(one.removeprefix("attachment:"), one) for one in inner.sources)
            start = cell.place(inner.start)[1]
            images.append(NotebookImage(start, sources, inner.alt, inner.state, inner, cell))
    return images


def skeleton(text: str) -> Iterator[object]:
    """All of a notebook but the alternative texts in its Markdown cells."""
    spans: list[tuple[int, int]] = []
    for _, cell in cells(text):
        yield tuple(markdown.skeleton(cell.text))
        spans += [(one.start, one.start + len(one.raw)) for one in cell.literals]
    at = 0
    for start, end in spans:
        yield text[at:start]
        at = end
    yield text[at:]


def cells(text: str) -> Iterator[tuple[int, Cell]]:
    """The Markdown cells with their numbers, from 1.

    Raises:
        DataError: the text is not JSON or not a notebook.
    """
    try:
        book = json.loads(text)
    except RecursionError:
        raise DataError("JSON is nested too deeply") from None
    except ValueError as error:
        raise DataError(f"not valid JSON: {error}") from None
    listed = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(listed, list):
        raise DataError("not a notebook of version 4: no list of cells")
    literals = _sources(text)
    for number, content in enumerate(listed):
        if isinstance(content, dict) and content.get("cell_type") == "markdown" and literals.get(number):
            cell = Cell(literals[number], _attachments(content.get("attachments")))
            source = content.get("source")
            if cell.text == ("".join(map(str, source)) if isinstance(source, list) else source):
                yield number + 1, cell


def _attachments(value: Any) -> dict[str, str]:
    """Pictures that a cell carries with it, as `data:` addresses."""
    found: dict[str, str] = {}
    for name, kinds in value.items() if isinstance(value, dict) else ():
        for kind, content in kinds.items() if isinstance(kinds, dict) else ():
            if isinstance(content, str) and str(kind).startswith("image/"):
                found[str(name)] = f"data:{kind};base64,{content}"
    return found


def _sources(text: str) -> dict[int, list[_Literal]]:
    """The string literals of `cells[n].source`, by n; the text is known to be JSON."""
    found: dict[int, list[_Literal]] = {}
    path: list[str | int] = []  # keys and numbers on the way to the present value
    kinds: list[str] = []
    key: str | None = None
    for token in _TOKEN.finditer(text):
        word = token[1]
        if word in ("{", "["):
            if kinds:
                path.append(_step(kinds, path, key))
            kinds.append(word)
            path.append(-1)
            key = None
            continue
        if word in ("}", "]"):
            kinds.pop()
            path.pop()
            if path:
                path[-1:] = []
            key = None
            continue
        if kinds and kinds[-1] == "{" and key is None:
            key = json.loads(word)
            continue
        step = _step(kinds, path, key) if kinds else 0
        key = None
        if not word.startswith('"'):
            continue
        steps = [one for number, one in enumerate(path) if number % 2 == 1] + [step]
        if len(steps) in (3, 4) and steps[0] == "cells" and steps[2] == "source" and isinstance(steps[1], int):
            found.setdefault(steps[1], []).append(_Literal(token.start(1), word, json.loads(word)))
    return found


def _step(kinds: list[str], path: list[str | int], key: str | None) -> str | int:
    """The key, or the number in a list, of the value that begins; counts it."""
    if kinds[-1] == "{":
        return key if key is not None else ""
    count = path[-1]
    assert isinstance(count, int)
    path[-1] = count + 1
    return count + 1
