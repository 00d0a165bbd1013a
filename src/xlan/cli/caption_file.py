"""The file behind `xlan caption -o`: a line per picture, written as soon as it is known; the next run goes on there.

A process killed in the middle of a line leaves a torn one; it is cut off and its picture captioned again.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from xlan.errors import DataError
from xlan.files import open_locked
from xlan.types import Caption

# Longer than any line we write: a file without line ends is refused instead of read into memory.
MAX_LINE_BYTES = 1 << 22
_BEGINNING = b'{"image": "'


def as_json(name: str, caption: Caption) -> str:
    """One picture's line of JSON, without the line end."""
    record = {
        "image": name,
        "caption": caption.text,
        "confidence": round(caption.confidence, 6),
        "score": round(caption.score, 6),
        "words": [[word.text, round(word.probability, 6)] for word in caption.words],
        "others": [
            {"caption": other.text, "confidence": round(other.confidence, 6), "score": round(other.score, 6)}
            for other in caption.others
        ],
    }
    try:
        line = json.dumps(record, ensure_ascii=False)
        line.encode("utf-8")
    except UnicodeEncodeError:  # a file name that is no text
        line = json.dumps(record)
    return line


class CaptionFile:
    """A file of captions, JSON lines or CSV by its suffix, that only grows.

    Args:
        path: `.jsonl` or `.csv`; gone on with when it exists.
        samples: captions drawn per picture; CSV gets a column for each, JSON lines have them under `others`.

    Attributes:
        done: names of the pictures it already had.

    Raises:
        DataError: the file is something else, was begun with other columns, is being written, or cannot be written.
    """

    def __init__(self, path: Path, *, samples: int = 0) -> None:
        self.path = path
        self.done: set[str] = set()
        self._columns = ["image", "caption", "confidence", "score", *(f"caption_{i}" for i in range(2, samples + 1))]
        suffix = path.suffix.lower()
        if suffix not in (".jsonl", ".csv"):
            raise DataError(f"{path}: expected a file name that ends in .jsonl or .csv")
        self._is_csv = suffix == ".csv"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = open_locked(path)
        except BlockingIOError:
            raise DataError(f"{path}: another process is writing to this file") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
        try:
            self._go_on()
        except BaseException:
            os.close(self._handle)
            raise

    def add(self, name: str, caption: Caption) -> None:
        """Append a picture's line and hand it to the system, so that it survives the end of this process."""
        if self._is_csv:
            drawn = [other.text for other in caption.others][: len(self._columns) - 4]
            numbers = [f"{caption.confidence:.6f}", f"{caption.score:.6f}"]
            self._write(_csv_line([name, caption.text, *numbers, *drawn]))
        else:
            self._write((as_json(name, caption) + "\n").encode("utf-8"))

    def close(self) -> None:
        """Make sure of the disk and let others write."""
        with contextlib.suppress(OSError):
            os.fsync(self._handle)
        os.close(self._handle)

    def __enter__(self) -> CaptionFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._handle, line) :]
        except OSError as error:
            raise DataError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _go_on(self) -> None:
        """Learn what the file has, cut off a torn end, and stand behind the last line."""
        with self.path.open("rb") as file:
            end = self._read_csv(file) if self._is_csv else self._read_jsonl(file)
            file.seek(max(0, end - 1))
            ends_a_line = not end or file.read(1) == b"\n"
        os.ftruncate(self._handle, end)
        os.lseek(self._handle, end, os.SEEK_SET)
        if not ends_a_line:
            self._write(b"\n")
        if self._is_csv and not end:
            self._write(_csv_line(self._columns))

    def _read_jsonl(self, file: BinaryIO) -> int:
        """Remember the names in the file; returns where its last whole line ends."""
        good = 0
        for number, line in enumerate(_lines(file, self.path), start=1):
            try:
                self.done.add(_name_of(line))
            except (ValueError, RecursionError) as error:
                if _is_torn(line):
                    return good
                raise DataError(f"{self.path}: line {number} is not ours: {error}; choose another file") from None
            good = file.tell()
        return good

    def _read_csv(self, file: BinaryIO) -> int:
        """Likewise; a last row without line end counts as torn, since half a number still is one."""
        good = 0
        last = b""

        def lines() -> Iterator[str]:
            nonlocal last
            for last in _lines(file, self.path):
                yield last.decode("utf-8", "surrogateescape")

        rows = csv.reader(lines(), strict=True)
        while True:
            try:
                row = next(rows, None)
                if row is None or not last.endswith(b"\n"):
                    if good or not last or _csv_line(self._columns).startswith(last):
                        return good
                    row = row or []
                self._take_row(row, first=not good)
            except (csv.Error, ValueError) as error:
                if good and isinstance(error, csv.Error) and _at_end(file):
                    return good  # torn inside quotes
                where = f"{self.path}: line {rows.line_num}"
                raise DataError(f"{where} is not ours: {error}; choose another file") from None
            good = file.tell()

    def _take_row(self, row: list[str], *, first: bool) -> None:
        if first and row != self._columns:
            raise ValueError(f"expected the columns {','.join(self._columns)}, got {','.join(row)[:200]}")
        if len(row) != len(self._columns):
            raise ValueError(f"expected {len(self._columns)} columns, got {len(row)}")
        if not first:
            float(row[2]), float(row[3])
            self.done.add(row[0])


def _at_end(file: BinaryIO) -> bool:
    return file.tell() == os.fstat(file.fileno()).st_size


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    file.seek(0)
    read: Callable[[], bytes] = lambda: file.readline(MAX_LINE_BYTES + 1)  # noqa: E731
    for line in iter(read, b""):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{path}: has a line of more than {MAX_LINE_BYTES:,} bytes; choose another file")
        yield line


def _name_of(line: bytes) -> str:
    """The picture of a line of JSON; ValueError when it is not a whole line of ours."""
    record = json.loads(line)
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("image", "caption")):
        raise ValueError("expected an object with 'image' and 'caption'")
    return str(record["image"])


def _is_torn(line: bytes) -> bool:
    """Whether this is the beginning of a line of ours; a power failure may leave zeros where the rest would be."""
    begun = line.rstrip(b"\0")
    return not line.endswith(b"\n") and (begun.startswith(_BEGINNING) or _BEGINNING.startswith(begun))


def _csv_line(values: list[str]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode("utf-8", "surrogateescape")
