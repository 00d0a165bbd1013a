"""Parquet and Arrow files as inputs: which column holds the pictures, and its values a few rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from xlan.batch.storage import open_place, reason, trying
from xlan.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")
ROWS = 32  # read at a time: pictures of some megabytes each must fit the memory
_BYTES_NAMES = ("image", "bytes", "image_bytes", "jpg", "jpeg", "png", "webp", "picture", "content")
_PATH_NAMES = ("path", "file", "url", "image", "image_path", "file_name", "filename", "image_url", "picture")
_ID_NAMES = ("id", "key", "__key__", "image_id")


@dataclass(frozen=True)
class Columns:
    """Columns of a table.

    Attributes:
        picture: the one with the pictures.
        is_bytes: whether it holds their bytes, and not their paths or addresses.
        id: the one with their ids; None for a table without.
    """

    picture: str
    is_bytes: bool
    id: str | None


def is_table(name: str) -> bool:
    """Whether a file is a table by its name."""
    return name.lower().endswith(SUFFIXES)


def arrow() -> Any:
    """The package pyarrow.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("xlan batch", "batch") from None
    return pyarrow


class Table:
    """A Parquet or Arrow file opened for reading; use it as a context manager.

    Raises:
        DataError: it is missing, damaged, or cannot be read.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._stack = contextlib.ExitStack()
        with self._told():
            fs, path = open_place(place)
            self._file: BinaryIO = self._stack.enter_context(trying(place, lambda: fs.open(path, "rb")))
            self._parquet = None
            if place.lower().endswith(".parquet"):
                self._parquet = arrow().parquet.ParquetFile(self._file, pre_buffer=False)
                self.schema: pa.Schema = self._parquet.schema_arrow
            else:
                self.schema = self._arrow_reader().schema

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def columns(self, picture: str | None, id_column: str | None) -> Columns:
        """The columns to use: those given by name, or the first of the usual names that fits.

        Raises:
            DataError: there is no such column, or it holds neither bytes nor text.
        """
        if picture is None:
            picture = next(
                (name for name in _BYTES_NAMES if name in self.schema.names and self._holds(name) == 1), None
            )
            picture = picture or next(
                (name for name in _PATH_NAMES if name in self.schema.names and self._holds(name) == 2), None
            )
            if picture is None:
                raise DataError(f"{self.place}: cannot tell which column holds the pictures; {self._choices()}")
        holds = self._holds(picture)
        if not holds:
            kind = self.schema.field(picture).type if picture in self.schema.names else "missing"
            raise DataError(
                f"{self.place}: column {picture!r} is {kind}, expected bytes or paths of pictures; {self._choices()}"
            )
        if id_column is None:
            id_column = next((name for name in _ID_NAMES if name in self.schema.names), None)
        elif id_column not in self.schema.names:
            raise DataError(f"{self.place}: has no column {id_column!r} for the ids; it has {self._names()}")
        return Columns(picture, holds == 1, id_column)

    def _holds(self, name: str) -> int:
        """1 for a column of bytes, 2 for one of text, 0 for what is neither or not there."""
        types = arrow().types
        if name not in self.schema.names:
            return 0
        kind = self.schema.field(name).type
        if types.is_struct(kind):  # {bytes, path}, as image datasets have it
            kind = next((kind.field(i).type for i in range(kind.num_fields) if kind.field(i).name == "bytes"), None)
            return 1 if kind is not None and _is_binary(kind) else 0
        if _is_binary(kind):
            return 1
        return 2 if types.is_string(kind) or types.is_large_string(kind) else 0

    def _choices(self) -> str:
        good = [name for name in self.schema.names if self._holds(name)]
        named = f"choose with --column: {', '.join(good)}" if good else "no column has bytes or text"
        return f"{named} (columns: {self._names()})"

    def _names(self) -> str:
        names = list(self.schema.names)
        return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")

    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[tuple[int, list[Any]]]:
        """Rows from `start` on: number, and the values of the columns `names` (structs as dictionaries).

        Raises:
            DataError: the file is damaged.
        """
        batches = self._batches(names, start)
        while True:
            with self._told():
                found = next(batches, None)
                if found is None:
                    return
                first, batch = found
                lists = [batch.column(name).to_pylist() for name in names]
            for i in range(max(0, start - first), batch.num_rows):
                yield first + i, [values[i] for values in lists]

    def count(self) -> int:
        """How many rows there are.

        Raises:
            DataError: the file is damaged.
        """
        if self._parquet is not None:
            return int(self._parquet.metadata.num_rows)
        with self._told():
            return sum(batch.num_rows for _, batch in self._batches([], 0))

    def _batches(self, names: Sequence[str], start: int) -> Iterator[tuple[int, Any]]:
        """Where each batch that ends behind `start` begins, and the batch."""
        first = 0
        if self._parquet is not None:
            groups: list[int] = []
            for number in range(self._parquet.metadata.num_row_groups):
                rows = self._parquet.metadata.row_group(number).num_rows
                if not groups and first + rows <= start:
                    first += rows
                else:
                    groups.append(number)
            if not groups:
                return
            for batch in self._parquet.iter_batches(ROWS, row_groups=groups, columns=list(names), use_threads=False):
                if first + batch.num_rows > start:
                    yield first, batch
                first += batch.num_rows
            return
        self._file.seek(0)
        for whole in self._arrow_batches():
            for at in range(0, whole.num_rows, ROWS):
                piece = whole.slice(at, ROWS)
                if first + piece.num_rows > start:
                    yield first, piece
                first += piece.num_rows

    def _arrow_reader(self) -> Any:
        pa = arrow()
        self._file.seek(0)
        try:
            return pa.ipc.open_file(self._file)
        except pa.ArrowInvalid:  # not the file form of the format; the stream form is common too
            self._file.seek(0)
            return pa.ipc.open_stream(self._file)

    def _arrow_batches(self) -> Iterator[Any]:
        reader = self._arrow_reader()
        if hasattr(reader, "num_record_batches"):
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            yield from reader

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (DataError, MissingExtraError):
            raise
        except Exception as error:
            raise DataError(f"{self.place}: is not a readable table: {reason(error)}") from None


def _is_binary(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))
