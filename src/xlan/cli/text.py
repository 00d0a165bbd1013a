"""What commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def printable(text: str) -> str:
    """Text for a terminal: control characters, which names in other people's files may hold, are made visible."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, and more only where that does not tell them apart."""
    whole = [path.resolve() for path in paths]
    for names in ([path.name for path in whole], [f"{path.parent.name}/{path.name}" for path in whole]):
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(whole, start=1)]


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: "1 image", "2,000 images"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
