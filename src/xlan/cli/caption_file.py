"""The file behind `xlan caption -o`: a line per picture, written as soon as it is known; the next run continues there.

If a process is killed in the middle of a line, the incomplete line is removed and its picture captioned again. A small
file beside it, `.NAME.made-with.json`, records model and options, so that captions of different ones are never mixed.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from xlan.caption_json import caption_record
from xlan.errors import DataError
from xlan.files import open_locked, read_json, write_json
from xlan.types import Caption

# Longer than any line we write: a file without line ends is refused instead of read into memory.
MAX_LINE_BYTES = 1 << 22
_BEGINNING = b'{"image": "'


def as_json(name: str, caption: Caption) -> str:
    """One picture's line of JSON, without the line end: `image`, then `caption_record` without explanations."""
    record = {"image": name, **caption_record(caption, explained=False)}
    try:
        line = json.dumps(record, ensure_ascii=False)
        line.encode("utf-8")
    except UnicodeEncodeError:  # a file name that is not valid text
        line = json.dumps(record)
    return line


def coco_ids(path: Path, names: Iterable[str]) -> dict[int | str, str]:
    """Pictures by the ids that they get in COCO results, `path`.

    The id is the number at the end of a file name, as in `COCO_val2014_000000391895.jpg`; without one, the name itself.

    Raises:
        DataError: two pictures have the same id.
    """
    found: dict[int | str, str] = {}
    for name in names:
        number = re.search(r"([0-9]+)$", Path(name).stem)
        image_id: int | str = int(number.group(1)[-18:]) if number else Path(name).stem
        other = found.setdefault(image_id, name)
        if other != name:
            same = f"{other} and {name} have the same image_id {image_id}"
            raise DataError(f"{path}: {same}; rename one, or use two runs")
    return found


def write_coco(path: Path, captions: Mapping[str, str]) -> int:
    """Write captions by picture as COCO results, a list of `image_id` and `caption`; returns how many.

    Raises:
        DataError: two pictures have the same id.
    """
    names = coco_ids(path, captions)
    write_json(path, [{"image_id": i, "caption": captions[name]} for i, name in names.items()], indent=None)
    return len(names)


# A CSV file with this and nothing else has no captions yet, whatever options its run had.
_HEADER = re.compile(rb"image,caption,confidence,score(,caption_\d+)*\n?")


class CaptionFile:
    """A file of captions, JSON lines or CSV by its suffix, that only grows.

    Args:
        path: `.jsonl` or `.csv`; continued when it exists.
        samples: captions drawn per picture; CSV gets a column for each, JSON lines have them under `others`.
        made_with: model and options as JSON values; a file that was made with others is refused. None skips this check.
        overwrite: begin again with an empty file.

    Attributes:
        done: captions it has, by name of the picture.

    Raises:
        DataError: the file is something else, was made with other options, is being written, or cannot be written.
    """

    def __init__(
        self, path: Path, *, samples: int = 0, made_with: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> None:
        self.path = path
        self.done: dict[str, str] = {}
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
            if overwrite or self._has_only_a_header():
                os.ftruncate(self._handle, 0)
            if made_with is not None:
                is_new = not os.fstat(self._handle).st_size
                check_made_with(path.with_name(f".{path.name}.made-with.json"), made_with, path, is_new=is_new)
            self._continue()
        except BaseException:
            os.close(self._handle)
            raise

    def add(self, name: str, caption: Caption) -> None:
        """Append a picture's line and flush it, so that it survives the end of this process."""
        if self._is_csv:
            drawn = [other.text for other in caption.others][: len(self._columns) - 4]
            numbers = [f"{caption.confidence:.6f}", f"{caption.score:.6f}"]
            self._write(_csv_line([name, caption.text, *numbers, *drawn]))
        else:
            self._write((as_json(name, caption) + "\n").encode("utf-8"))
        self.done[name] = caption.text

    def close(self) -> None:
        """Flush to disk and release the lock."""
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

    def _has_only_a_header(self) -> bool:
        with self.path.open("rb") as file:
            return self._is_csv and _HEADER.fullmatch(file.read(1000)) is not None

    def _continue(self) -> None:
        """Read the captions in the file, remove an incomplete last line, and move to the end."""
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
                name, text = _name_of(line)
                self.done[name] = text
            except (ValueError, RecursionError) as error:
                if _is_torn(line):
                    return good
                raise DataError(
                    f"{self.path}: line {number} was not written by xlan caption: {error}; choose another file"
                ) from None
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
                raise self._foreign(rows.line_num, error) from None
            good = file.tell()

    def _foreign(self, line: int, error: Exception) -> DataError:
        return DataError(f"{self.path}: line {line} was not written by xlan caption: {error}; choose another file")

    def _take_row(self, row: list[str], *, first: bool) -> None:
        if first and row != self._columns:
            raise ValueError(f"expected the columns {','.join(self._columns)}, got {','.join(row)[:200]}")
        if len(row) != len(self._columns):
            raise ValueError(f"expected {len(self._columns)} columns, got {len(row)}")
        if not first:
            float(row[2]), float(row[3])
            self.done[row[0]] = row[1]


def check_made_with(sidecar: Path, made_with: Mapping[str, Any], output: Path, *, is_new: bool) -> None:
    """Record in `sidecar` what an output is made with, or refuse to continue one that was made with something else.

    Args:
        sidecar: the small file with the record.
        made_with: model and options, as JSON values.
        output: the file or folder it is about, for the message.
        is_new: nothing has been written yet.

    Raises:
        DataError: the output was made with another model or other options, or with unknown ones.
    """
    if is_new:
        write_json(sidecar, dict(made_with))
        return
    remedy = "use --overwrite to start again, or choose another name"
    if not sidecar.is_file():
        raise DataError(f"{output}: already exists, but the model and options it was made with are unknown; {remedy}")
    before = read_json(sidecar, max_bytes=1 << 20)
    if not isinstance(before, dict):
        raise DataError(f"{sidecar}: expected an object; {remedy}")
    wanted = json.loads(json.dumps(dict(made_with)))
    keys = [key for key in wanted if key != "model" and before.get(key) != wanted[key]]
    if "model_sha256" in keys:
        raise DataError(f"{output}: was made with another model ({before.get('model')}); {remedy}")
    if "detector_sha256" in keys:
        other = "another detector" if before.get("detector_sha256") else "the model's own regions, without --detector"
        raise DataError(f"{output}: was made with {other}; {remedy}")
    if keys:
        changes = ", ".join(f"{key} {before.get(key)!r} and not {wanted[key]!r}" for key in keys)
        raise DataError(f"{output}: was made with {changes}; {remedy}")


def _at_end(file: BinaryIO) -> bool:
    return file.tell() == os.fstat(file.fileno()).st_size


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    file.seek(0)
    read: Callable[[], bytes] = lambda: file.readline(MAX_LINE_BYTES + 1)  # noqa: E731
    for line in iter(read, b""):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{path}: has a line of more than {MAX_LINE_BYTES:,} bytes; choose another file")
        yield line


def _name_of(line: bytes) -> tuple[str, str]:
    """The picture of a line of JSON and its caption; ValueError when it is not a valid line."""
    record = json.loads(line)
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("image", "caption")):
        raise ValueError("expected an object with 'image' and 'caption'")
    return record["image"], record["caption"]


def _is_torn(line: bytes) -> bool:
    """Whether this is the beginning of a line; a power failure may leave zeros where the rest would be."""
    begun = line.rstrip(b"\0")
    return not line.endswith(b"\n") and (begun.startswith(_BEGINNING) or _BEGINNING.startswith(begun))


def _csv_line(values: list[str]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode("utf-8", "surrogateescape")
