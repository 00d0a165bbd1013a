"""A document on disk: read it, change only alternative texts, verify that, and replace the file by rename."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from xlan.alt import html, markdown, notebook, rst
from xlan.alt.encoding import decode
from xlan.alt.images import Edit, Image, apply_edits, one_line
from xlan.errors import DataError
from xlan.files import read_bytes, replace_file

MAX_BYTES = 64 << 20
MAX_MARKDOWN_BYTES = 8 << 20  # its parser is slower


@dataclass(frozen=True)
class Kind:
    """How one kind of document is read."""

    name: str
    find: Callable[[str], list[Image]]
    skeleton: Callable[[str], Iterator[object]]
    max_bytes: int = MAX_BYTES
    entities: bool = True  # whether `&#8217;` stands for a character


_HTML = Kind("HTML", lambda text: list(html.find(text)), html.skeleton)
_XHTML = Kind("XHTML", lambda text: list(html.find(text, xml=True)), lambda text: html.skeleton(text, xml=True))
_MARKDOWN = Kind("Markdown", markdown.find, markdown.skeleton, max_bytes=MAX_MARKDOWN_BYTES)
_RST = Kind("reStructuredText", rst.find, rst.skeleton, entities=False)
_NOTEBOOK = Kind("notebook", notebook.find, notebook.skeleton)
KINDS: dict[str, Kind] = {
    ".html": _HTML,
    ".htm": _HTML,
    ".xhtml": _XHTML,
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".rst": _RST,
    ".ipynb": _NOTEBOOK,
}


class Document:
    """A document and its images.

    Args:
        path: the file; links are followed, so that writing replaces the file and not the link.

    Raises:
        DataError: it cannot be read, is too large, or is not what its name says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kind = kind_of(path)
        self._data = read_bytes(path, max_bytes=self.kind.max_bytes)
        self.digest = hashlib.sha256(self._data).hexdigest()
        try:
            self._decoded = decode(self._data, html=self.kind in (_HTML, _XHTML))
            self.images = self.kind.find(self.text)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    @property
    def text(self) -> str:
        """Its characters."""
        return self._decoded.text

    def describe(self, texts: Mapping[int, str], *, marked: bool) -> bytes:
        """The document with alternative texts written for some images, by their number in `images`.

        Raises:
            DataError: the change would touch something else, or cannot be made.
        """
        wanted = {number: one_line(text) for number, text in texts.items()}
        edits: list[Edit] = []
        for number, text in wanted.items():
            edits += (self._fitting(edit, text) for edit in self._edits(number, text, marked=marked))
        changed, again = self._checked(edits)
        for number, text in wanted.items():
            if again[number].alt != text or again[number].state not in ("marked", "described", "file name"):
                raise DataError(
                    f"{self.path}: the text of image {number + 1} could not be written; nothing was changed"
                )
        if marked:
            fresh = [number for number in wanted if self.images[number].state != "marked"]
            undone = [edit for number in fresh for edit in again[number].undo()]
            if len(fresh) == len(wanted) and self._decoded.encode(apply_edits(changed, undone)) != self._data:
                raise DataError(f"{self.path}: the change could not be undone; nothing was changed")
        return self._decoded.encode(changed)

    def undo(self, numbers: list[int]) -> bytes:
        """The document without the marked texts of some images.

        Raises:
            DataError: the change would touch something else.
        """
        changed, _ = self._checked([edit for number in numbers for edit in self.images[number].undo()])
        return self._decoded.encode(changed)

    def decorate(self, number: int) -> bytes:
        """The document with one image marked as decorative.

        Raises:
            DataError: this kind of document has no way to say so.
        """
        image = self.images[number]
        if not image.can_be_decorative:
            raise DataError(f"{self.path}: {self.kind.name} has no way to mark an image as decorative")
        return self._decoded.encode(apply_edits(self.text, image.decorate()))

    def write(self, content: bytes) -> None:
        """Replace the file, keeping its permissions.

        Raises:
            DataError: the file has changed since it was read, or may not be written.
            OSError: it cannot be written (a full disk); the old file is then still there.
        """
        now = read_bytes(self.path, max_bytes=self.kind.max_bytes)
        if now != self._data:
            raise DataError(f"{self.path}: changed by another program meanwhile; nothing was written, run again")
        try:
            replace_file(self.path, content)
        except PermissionError as error:
            raise DataError(f"{self.path}: {error.strerror}; nothing was written") from None

    def _edits(self, number: int, text: str, *, marked: bool) -> list[Edit]:
        try:
            return self.images[number].describe(text, marked=marked)
        except DataError as error:
            raise DataError(f"{self.path}: image {number + 1}: {error}") from None

    def _fitting(self, edit: Edit, text: str) -> Edit:
        """The edit with characters that the encoding lacks as character references, where the format has them."""
        written = edit.text
        for character in set(text) if self.kind.entities and not self._decoded.fits(text) else ():
            if not self._decoded.fits(character):
                written = written.replace(character, f"&#{ord(character)};")
        return Edit(edit.start, edit.end, written)

    def _checked(self, edits: list[Edit]) -> tuple[str, list[Image]]:
        """The changed text and its images, once it is certain that only alternative texts differ."""
        changed = apply_edits(self.text, edits)
        again = self.kind.find(changed)
        same = all(old == new for old, new in zip_longest(self.kind.skeleton(self.text), self.kind.skeleton(changed)))
        touched = len(again) != len(self.images) or [i.sources for i in again] != [i.sources for i in self.images]
        if not same or touched:
            raise DataError(f"{self.path}: a change would touch more than alternative text; nothing was changed")
        return changed, again


def kind_of(path: Path) -> Kind:
    """How a file is read, by its name.

    Raises:
        DataError: it is none of the known kinds.
    """
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"{path}: expected a document ({', '.join(KINDS)})")
    return kind


def find_documents(start: Path, problem: Callable[[str], None]) -> Iterator[Path]:
    """A document, or all below a folder, sorted; hidden names, `node_modules` and links are left out in folders.

    Raises:
        DataError: there is no such file or folder.
    """
    if not start.is_dir():
        if not start.exists():
            raise DataError(f"{start}: no such file or folder")
        kind_of(start)
        yield Path(os.path.realpath(start)) if start.is_symlink() else start
        return

    def failed(error: OSError) -> None:
        problem(f"{error.filename}: cannot be read: {error.strerror or error}")

    for folder, folders, names in os.walk(start, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for name in sorted(names):
            path = Path(folder) / name
            if not name.startswith(".") and path.suffix.lower() in KINDS and path.is_file() and not path.is_symlink():
                yield path
