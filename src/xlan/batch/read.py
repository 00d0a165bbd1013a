"""The bytes of a shard's pictures, read by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xlan.batch.items import Item
from xlan.batch.storage import is_local, open_place, reason, trying
from xlan.batch.tables import Table
from xlan.errors import DataError, ImageError
from xlan.vision.image import DEFAULT_LIMITS, ImageLimits, read_path

_WEB = ("http://", "https://")


@dataclass(frozen=True)
class ShardPicture:
    """A picture of a shard that can be read when it is needed, in any thread, once.

    Attributes:
        id: the id its features get.
        name: what rows and messages call it.
    """

    id: str
    name: str
    item: Item
    tables: _Tables
    limits: ImageLimits = DEFAULT_LIMITS

    def read(self, limits: ImageLimits | int | None = None) -> bytes:
        """The picture's bytes, at most one more than the limit allows.

        Raises:
            ImageError: this picture cannot be read.
            DataError: the storage does not answer; other pictures could not be read either.
        """
        allowed = limits if isinstance(limits, ImageLimits) else self.limits
        item = self.item
        if item.row >= 0:
            return self.tables.read(item, allowed)
        if item.offset < 0 and is_local(item.place):
            return read_path(item.place.removeprefix("file://"), self.name, allowed)
        try:
            data: bytes = trying(item.place, lambda: _read(item, allowed))
        except ImageError:
            raise
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            raise ImageError(f"{self.name}: cannot be read: {reason(error)}") from None
        except Exception as error:
            line = f"{self.name}: cannot be read: {reason(error)}"
            # On the web, single hosts may be gone for good. A store that does not answer now may later: record nothing.
            if item.place.startswith(_WEB) or is_local(item.place):
                raise ImageError(line) from None
            raise DataError(f"{line}; run the same command again when the storage is back") from None
        if item.offset >= 0 and len(data) < min(item.size, allowed.max_bytes + 1):
            raise ImageError(f"{self.name}: is truncated: expected {item.size:,} bytes, got {len(data):,}")
        return data


def _read(item: Item, limits: ImageLimits) -> bytes:
    fs, path = open_place(item.place)
    with fs.open(path, "rb", block_size=0) if item.place.startswith(_WEB) else fs.open(path, "rb") as file:
        left = limits.max_bytes + 1
        if item.offset >= 0:
            file.seek(item.offset)
            left = min(item.size, left)
        pieces: list[bytes] = []
        while left and (piece := file.read(left)):  # a stream gives what has arrived, not all that was asked for
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


class _Tables:
    """Rows of tables, read in order. Threads ask nearly in order too: a few rows wait until they are asked for."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._lock = threading.Lock()
        self._wanted = {(item.place, item.row) for item in items if item.row >= 0}
        self._table: Table | None = None
        self._rows: Any = None
        self._key: tuple[str, str] = ("", "")
        self._next = 0
        self._ready: dict[tuple[str, int], Any] = {}

    def read(self, item: Item, limits: ImageLimits) -> bytes:
        key = (item.place, item.row)
        with self._lock:
            while key not in self._ready:
                self._advance(item)
            value = self._ready.pop(key)
            self._wanted.discard(key)
        if isinstance(value, dict):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise ImageError(f"{item.name}: column {item.column!r} holds no picture in this row")
        return value[: limits.max_bytes + 1]

    def _advance(self, item: Item) -> None:
        if self._key != (item.place, item.column) or item.row < self._next:  # another thread was faster
            self.close()
            self._key = (item.place, item.column)
            self._table = Table(item.place)
            if item.column not in self._table.schema.names:
                raise DataError(f"{item.place}: has no column {item.column!r} any more; it was changed during the job")
            self._rows, self._next = self._table.rows([item.column], item.row), item.row
        found = next(self._rows, None)
        if found is None:
            raise DataError(f"{item.place}: has no row {item.row} any more; it was changed during the job")
        row, (value,) = found
        self._next = row + 1
        if (item.place, row) in self._wanted:
            self._ready[item.place, row] = value

    def close(self) -> None:
        if self._table is not None:
            self._table.__exit__()
        self._table, self._rows, self._key = None, None, ("", "")


class ShardPictures:
    """The pictures of a shard, ready to be read; use it as a context manager."""

    def __init__(self, items: Sequence[Item], limits: ImageLimits = DEFAULT_LIMITS) -> None:
        self._tables = _Tables(items)
        self.pictures = [ShardPicture(item.id, item.name, item, self._tables, limits) for item in items]

    def __enter__(self) -> ShardPictures:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()
