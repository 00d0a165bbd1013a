"""Files of arrays that are used where they are: safetensors, written piece by piece and mapped into memory.

The header is written and read here rather than by the safetensors package, because that package wants all arrays of a
file in one piece of memory; any safetensors reader opens the result.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

MAX_HEADER_BYTES = 100 << 20  # the limit of the safetensors format itself
DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
# What a damaged or foreign file may make `read_header` raise.
HEADER_FAULTS = (KeyError, TypeError, ValueError, struct.error, RecursionError)


def header(metadata: Mapping[str, str], shapes: Shapes) -> bytes:
    """The first bytes of a file: its texts, and where each array begins and ends."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name, (shape, dtype) in shapes.items():
        end = start + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, ensure_ascii=False).encode("utf-8")
    text += b" " * (-(len(text) + 8) % 64)  # data starts on a cache line
    return struct.pack("<Q", len(text)) + text


def write_chunks(file: BinaryIO, head: bytes, chunks: Iterable[Array]) -> tuple[str, int]:
    """Write a header and contiguous arrays; returns the SHA-256 of it all and the number of bytes."""
    digest, size = hashlib.sha256(head), len(head)
    file.write(head)
    for chunk in chunks:
        view = chunk.data.cast("B") if chunk.size else b""
        digest.update(view)
        file.write(view)
        size += len(view)
    return digest.hexdigest(), size


def map_file(path: Path) -> mmap.mmap:
    """A file's bytes as memory; nothing is read before it is asked for.

    Pages are private: views are marked read-only, but torch, which cannot read through a read-only view, may lift the
    mark (see `xlan.data.collate`); the file is safe either way.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is empty.
    """
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def read_header(memory: mmap.mmap) -> tuple[dict[str, str], dict[str, Array]]:
    """Texts and arrays of a mapped file; the arrays are read-only views of it.

    Raises:
        one of `HEADER_FAULTS`: the bytes are not such a file.
    """
    (length,) = struct.unpack("<Q", memory[:8])
    if length > min(MAX_HEADER_BYTES, len(memory) - 8):
        raise ValueError("the header is longer than the file")
    entries = json.loads(memory[8 : 8 + length].decode("utf-8"))
    metadata = entries.pop("__metadata__")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not strings")
    return metadata, {name: _view(memory, entry, 8 + length) for name, entry in entries.items()}


def _view(memory: mmap.mmap, entry: dict[str, Any], base: int) -> Array:
    dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise ValueError("shapes and offsets must be whole numbers")
    count = math.prod(shape)
    if end - start != count * dtype.itemsize or base + end > len(memory):
        raise ValueError("a tensor lies outside the file")
    array = np.frombuffer(memory, dtype=dtype, count=count, offset=base + start).reshape(shape)
    array.flags.writeable = False
    return array


def reason(error: Exception) -> str:
    """What is wrong, of an exception of `HEADER_FAULTS`."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
