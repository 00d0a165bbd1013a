"""One picture of a job: where its bytes are. A plan is a table of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """Where one picture is.

    Attributes:
        id: short name that is unique in a feature store: the path inside the input, without the suffix.
        name: what rows and messages call the picture.
        place: path or address of the file that holds it: a picture, a tar, or a table.
        offset: where its bytes begin in a tar; -1 elsewhere.
        size: how many bytes it has in a tar; -1 elsewhere.
        row: its row in a table, from 0; -1 elsewhere.
        column: the column of the table that holds its bytes; empty elsewhere.
        version: what identifies this version of the file (size, time, tag); empty where unknown.
    """

    id: str
    name: str
    place: str
    offset: int = -1
    size: int = -1
    row: int = -1
    column: str = ""
    version: str = ""
