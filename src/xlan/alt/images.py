"""What every kind of document gives: its images, and the edits that change their alternative text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from xlan.errors import DataError

State = Literal["missing", "empty", "file name", "described", "decorative", "computed", "marked"]
NEEDS_TEXT: frozenset[State] = frozenset({"missing", "empty", "file name"})

MARK = "xlan"


@dataclass(frozen=True)
class Edit:
    """Replace the characters `start:end` of a document by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Image(ABC):
    """An image of a document.

    Attributes:
        start: its first character in the document.
        sources: addresses of its picture, the best first, as written in the document but decoded; may be empty.
        alt: its alternative text; None where it has none.
        state: `missing`, `empty` or `file name` need a text; `described` has one; `decorative` needs none; `computed`
            is made by a template; `marked` has a text that `xlan alt --apply` wrote and nobody has reviewed.
    """

    start: int
    sources: tuple[str, ...]
    alt: str | None
    state: State

    @abstractmethod
    def describe(self, text: str, *, marked: bool) -> list[Edit]:
        """Edits that write an alternative text, with or without the mark that makes it undoable."""

    @abstractmethod
    def undo(self) -> list[Edit]:
        """Edits that take a marked text out and put back what was there."""

    @property
    def can_be_decorative(self) -> bool:
        """Whether the format has a way to say that the image needs no text."""
        return False

    def decorate(self) -> list[Edit]:
        """Edits that say that the image needs no text; only where `can_be_decorative`."""
        raise NotImplementedError


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made; they must not overlap.

    Raises:
        DataError: two edits overlap.
    """
    pieces: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        if edit.start < at:
            raise DataError("two changes overlap")
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    pieces.append(text[at:])
    return "".join(pieces)


class LineIndex:
    """Line and column, both from 1, of a place in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line = 1
        self._start = 0  # of the line
        self._at = 0

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of a character; call it with increasing places."""
        if at < self._at:
            self._line, self._start, self._at = 1, 0, 0
        self._line += self._text.count("\n", self._at, at)
        self._start = self._text.rfind("\n", 0, at) + 1 if "\n" in self._text[self._at : at] else self._start
        self._at = at
        return self._line, at - self._start + 1


def one_line(text: str) -> str:
    """A text without line breaks and other control characters, as alternative text has to be."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def texts(images: Sequence[Image]) -> list[str | None]:
    """The alternative texts of images in order."""
    return [image.alt for image in images]
