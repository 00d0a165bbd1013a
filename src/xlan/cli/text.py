"""What commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def printable(text: str, *, lines: bool = False) -> str:
    """Text for a terminal: control characters and undecodable bytes, which file names may have, become escapes.

    With `lines`, ends of lines stay as they are.
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, and more only where that does not tell them apart."""
    whole = [path.resolve() for path in paths]
    for names in ([path.name for path in whole], [f"{path.parent.name}/{path.name}" for path in whole]):
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(whole, start=1)]


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 image", "2,000 images"."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
