"""One shard of an index: up to some thousand pictures in one safetensors file that is mapped into memory.

Arrays (n pictures, W words that the vision network names, K words that the captioner would say), in file order:

    ends        [n + 1]  int64    record i is bytes ends[i] to ends[i + 1] of `encodings`
    stamps      [n, 3]   int64    size, time of change (ns) and inode of each file, to notice changes
    said        [n, K]   int32    ids of words that the captioner would use; padded with -1
    names       [.]      uint8    paths below the folder, separated by zero bytes
    captions    [.]      uint8    UTF-8, a line each
    said_codes  [n, K]   uint8    how probable, see `codes.to_codes`
    seen        [W, n]   uint8    log-odds of the vision network's words, word by word, because a query reads
                                  a few words of all pictures
    encodings   [.]      uint8    records, see `codes.pack`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from xlan.engines.interface import Encoding
from xlan.errors import SearchError
from xlan.files import atomic_path
from xlan.mapped import HEADER_FAULTS, Array, header, map_file, read_header, reason, write_chunks
from xlan.search.codes import Bytes, join_texts, split_texts, unpack

FORMAT = "xlan-search-shard-1"
SAID = 64  # words of the captioner kept per picture
_ARRAYS = ("ends", "stamps", "said", "names", "captions", "said_codes", "seen", "encodings")


@dataclass(frozen=True)
class Stamp:
    """Identifies the state of a file."""

    size: int
    changed: int
    inode: int


@dataclass(frozen=True, eq=False)
class Record:
    """What the index stores of one picture.

    Attributes:
        name: its path below the folder, as bytes of the file system.
        stamp: of the file that was read.
        caption: its caption.
        said: `[K]` int32 ids of words that the captioner would use, likeliest first; padded with -1.
        said_codes: `[K]` how probable they are.
        seen: `[W]` codes of the vision network's words.
        encoding: see `codes.pack`.
    """

    name: bytes
    stamp: Stamp
    caption: str
    said: Array
    said_codes: Bytes
    seen: Bytes
    encoding: Bytes


def write_shard(path: Path, identity: str, arrays: Sequence[str], records: Sequence[Record]) -> int:
    """Write records, at least one, atomically; returns the number of bytes.

    Args:
        path: the new file.
        identity: of the model and the engine that made them.
        arrays: names of the arrays of an encoding, sorted.
        records: what to keep, of pictures in any order.

    Raises:
        OSError: it cannot be written; no file is left behind.
    """
    small: dict[str, Array] = {
        "ends": np.concatenate([[0], np.cumsum([len(one.encoding) for one in records])]).astype("<i8"),
        "stamps": np.array([[one.stamp.size, one.stamp.changed, one.stamp.inode] for one in records], "<i8"),
        "said": np.stack([one.said for one in records]).astype("<i4"),
        "names": join_texts((one.name for one in records), b"\0"),
        "captions": join_texts((_line(one.caption) for one in records), b"\n"),
        "said_codes": np.stack([one.said_codes for one in records]),
        "seen": np.ascontiguousarray(np.stack([one.seen for one in records], axis=1)),
    }
    shapes = {name: (array.shape, array.dtype) for name, array in small.items()}
    shapes["encodings"] = ((sum(len(one.encoding) for one in records),), np.dtype("u1"))
    head = header({"format": FORMAT, "identity": identity, "arrays": json.dumps(list(arrays))}, shapes)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        return write_chunks(file, head, [*small.values(), *(one.encoding for one in records)])[1]


def _line(text: str) -> bytes:
    return " ".join(text.split()).encode("utf-8", "replace")


class Shard:
    """A shard opened for reading.

    Args:
        path: the file.
        identity: the model and the engine whose encodings are wanted.
        size: expected number of bytes; None if unknown.

    Raises:
        SearchError: it is missing, damaged, not a shard, or of another model.
    """

    def __init__(self, path: Path, identity: str, size: int | None = None) -> None:
        self.path = path
        try:
            self.bytes = path.stat().st_size
            if size is not None and self.bytes != size:
                raise ValueError(f"expected {size:,} bytes, got {self.bytes:,}")
            metadata, found = read_header(map_file(path))
            if metadata["format"] != FORMAT:
                raise ValueError(f"format is {metadata['format']!r}, expected {FORMAT!r}")
            if metadata["identity"] != identity:
                raise ValueError("it was made with another model")
            self.arrays: list[str] = json.loads(metadata["arrays"])
            if not isinstance(self.arrays, list) or not all(isinstance(name, str) for name in self.arrays):
                raise ValueError("the names of its arrays are not a list of strings")
            self._found = {name: found[name] for name in _ARRAYS}
            self.count = len(self._found["stamps"])
            self._check()
            self.names = split_texts(self._found["names"], b"\0", self.count)
        except FileNotFoundError:
            raise SearchError(f"{path}: missing, although the index lists it") from None
        except OSError as error:
            raise SearchError(f"{path}: cannot be read: {error.strerror or error}") from None
        except HEADER_FAULTS as error:
            raise SearchError(f"{path}: damaged: {reason(error)}") from None

    def _check(self) -> None:
        n, found = self.count, self._found
        kinds: dict[str, tuple[int | None, ...]] = {
            "ends": (n + 1,),
            "stamps": (n, 3),
            "said": (n, SAID),
            "said_codes": (n, SAID),
            "seen": (None, n),
            "names": (None,),
            "captions": (None,),
            "encodings": (None,),
        }
        types = {"ends": "<i8", "stamps": "<i8", "said": "<i4"}
        for name, wanted in kinds.items():
            shape = found[name].shape
            fits = len(shape) == len(wanted) and all(w in (None, s) for w, s in zip(wanted, shape, strict=True))
            if not fits or found[name].dtype != np.dtype(types.get(name, "u1")):
                raise ValueError(f"{name!r} does not fit {n:,} pictures")
        ends = found["ends"]
        if n < 1 or ends[0] != 0 or ends[-1] != len(found["encodings"]) or not bool((np.diff(ends) > 0).all()):
            raise ValueError("invalid record boundaries")

    @cached_property
    def captions(self) -> list[str]:
        """The caption of each picture."""
        try:
            return [one.decode("utf-8") for one in split_texts(self._found["captions"], b"\n", self.count)]
        except ValueError as error:
            raise SearchError(f"{self.path}: damaged: {error}") from None

    @property
    def said(self) -> Array:
        """`[n, K]` int32 ids of the words that the captioner would use."""
        return self._found["said"]

    @property
    def said_codes(self) -> Bytes:
        """`[n, K]` how probable these are."""
        return self._found["said_codes"]

    @property
    def seen(self) -> Bytes:
        """`[W, n]` codes of the vision network's words."""
        return self._found["seen"]

    @property
    def stamps(self) -> Array:
        """`[n, 3]` size, time of change and inode of each file."""
        return self._found["stamps"]

    def encoding(self, row: int) -> Encoding:
        """The output of the captioner's encoder for a picture.

        Raises:
            SearchError: the record is damaged.
        """
        try:
            return unpack(self._record(row), self.arrays)
        except ValueError as error:
            what = f"the record of {self.names[row]!r} is damaged: {error}"
            raise SearchError(f"{self.path}: {what}; rebuild the index with --rebuild") from None

    def record(self, row: int) -> Record:
        """Everything stored of a picture, to be written to another shard."""
        found: dict[str, Any] = self._found
        return Record(
            self.names[row],
            Stamp(*(int(number) for number in found["stamps"][row])),
            self.captions[row],
            found["said"][row],
            found["said_codes"][row],
            found["seen"][:, row],
            self._record(row),
        )

    def _record(self, row: int) -> Bytes:
        start, end = (int(place) for place in self._found["ends"][row : row + 2])
        return self._found["encodings"][start:end]
