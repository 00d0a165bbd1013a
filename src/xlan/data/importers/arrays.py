"""Reading numpy's `.npy` and `.npz` from strangers: no pickles, declared sizes checked before anything is
unpacked."""

from __future__ import annotations

import ast
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlan.data.importers.entries import MAX_ARRAY_BYTES
from xlan.errors import FeatureError

_MAX_HEADER = 10_000
_MAX_MEMBERS = 64


def read_npy(path: Path, *, max_bytes: int = MAX_ARRAY_BYTES) -> npt.NDArray[Any]:
    """The array of a `.npy` file."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise FeatureError(f"{size:,} bytes, the limit for one image is {max_bytes:,}")
        return parse_npy(path.read_bytes())
    except OSError as error:
        raise FeatureError(f"cannot be read: {error.strerror or error}") from None


def read_npz(path: Path, *, max_bytes: int = MAX_ARRAY_BYTES) -> Mapping[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` file; arrays of Python objects, which need pickle, are left out.

    The sizes the archive declares are checked first, and unpacking stops at the declared size, so an archive that
    would unpack to more than `max_bytes` (a decompression bomb) is refused either way. The file is read in one go and
    its members are unpacked from there: half the time of `numpy.load`, which goes through small pieces.
    """
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise FeatureError(f"{size:,} bytes, the limit for one image is {max_bytes:,}")
        data = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
        total = sum(member.file_size for member in members)
        if len(members) > _MAX_MEMBERS or total > max_bytes:
            raise FeatureError(
                f"would unpack to {len(members)} arrays of {total:,} bytes, "
                f"the limit is {_MAX_MEMBERS} and {max_bytes:,}"
            )
        unpacked = {member.filename.removesuffix(".npy"): _unpack(data, member) for member in members}
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, ValueError) as error:
        raise FeatureError(f"not a valid .npz file: {error}") from None
    except OSError as error:
        raise FeatureError(f"cannot be read: {error.strerror or error}") from None
    return {name: parse_npy(member) for name, member in unpacked.items() if not _holds_objects(member)}


def _unpack(data: bytes, member: zipfile.ZipInfo) -> memoryview:
    """The bytes of one member, checked against its declared size and checksum."""
    signature, *_, name_length, extra_length = struct.unpack_from("<4s5H3I2H", data, member.header_offset)
    start = member.header_offset + 30 + name_length + extra_length
    packed = memoryview(data)[start : start + member.compress_size]
    if signature != b"PK\x03\x04" or member.flag_bits & 1:
        raise ValueError("a member is encrypted or not where the archive says")
    if member.compress_type == zipfile.ZIP_STORED:
        content = packed
    elif member.compress_type == zipfile.ZIP_DEFLATED:
        content = memoryview(zlib.decompressobj(-15).decompress(packed, member.file_size + 1))
    else:
        raise ValueError(f"unknown compression method {member.compress_type}")
    if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
        raise ValueError(f"the contents of {member.filename!r:.60} are damaged")
    return content


def _holds_objects(content: memoryview) -> bool:
    return b"'|O'" in bytes(content[:256])


def parse_npy(data: bytes | memoryview) -> npt.NDArray[Any]:
    """The array in the bytes of a `.npy` file: a view of them, read-only."""
    try:
        start, dtype, shape, order = _header(data)
    except (ValueError, SyntaxError, TypeError, KeyError, struct.error, RecursionError, MemoryError) as error:
        raise FeatureError(f"not a .npy array: {' '.join(str(error).split())}") from None
    if dtype.hasobject:
        raise FeatureError("holds Python objects, which only pickle could read; save plain numbers")
    count = math.prod(shape)
    if len(data) - start < count * dtype.itemsize:
        raise FeatureError(
            f"is truncated: expected {count * dtype.itemsize:,} bytes of data, got {len(data) - start:,}"
        )
    if not count:
        return np.zeros(shape, dtype=dtype)
    return np.frombuffer(data, dtype=dtype, count=count, offset=start).reshape(shape, order=order)


def _header(data: bytes | memoryview) -> tuple[int, np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    """Where the numbers start, their type, shape and order. numpy's own reader has ways to fail that it keeps
    secret."""
    magic, major = bytes(data[:6]), data[6] if len(data) > 6 else 0
    if magic != b"\x93NUMPY" or major not in (1, 2, 3):
        raise ValueError("the file has no .npy header")
    size = "<H" if major == 1 else "<I"
    (length,) = struct.unpack_from(size, data, 8)
    start = 8 + struct.calcsize(size) + length
    if length > _MAX_HEADER or start > len(data):
        raise ValueError("the header is too long")
    text = bytes(data[start - length : start]).decode("utf-8")
    value = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text).strip())  # Python 2 wrote shapes as (36L, 2048L)
    shape, descr = value["shape"], value["descr"]
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape) or not isinstance(descr, str):
        raise ValueError("the header does not describe an array of plain numbers")
    dtype = np.dtype(descr)
    if not dtype.itemsize or len(shape) > 8 or max(shape, default=0) >= 1 << 31:
        raise ValueError("the header does not describe an array of plain numbers")
    return start, dtype, shape, "F" if value["fortran_order"] else "C"
