"""What commands print."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text for a terminal: control characters, which names in other people's files may hold, are made visible."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
