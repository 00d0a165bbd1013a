"""Reading numpy's `.npy` and `.npz` from strangers: no pickles, declared sizes checked before anything is
unpacked."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
                f"would unpack to {len(members)} arrays of {total:,} bytes, the limit is {_MAX_MEMBERS} and {max_bytes:,}"
            )
        unpacked = {member.filename.removesuffix(".npy"): _unpack(data, member) for member in members}
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, ValueError) as error:
        raise FeatureError(f"not a whole .npz file: {error}") from None
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
        raise ValueError(f"compression method {member.compress_type} is not one numpy writes")
    if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
        raise ValueError(f"the contents of {member.filename!r:.60} are damaged")
    return content


def _holds_objects(content: memoryview) -> bool:
    return b"'|O'" in bytes(content[:256])


def parse_npy(data: bytes | memoryview) -> npt.NDArray[Any]:
    """The array in the bytes of a `.npy` file: a view of them, read-only."""
    stream = io.BytesIO(data[: _MAX_HEADER + 16])
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the format")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=_MAX_HEADER)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise FeatureError(f"not a .npy array: {error}") from None
    if dtype.hasobject:
        raise FeatureError("holds Python objects, which only pickle could read; save plain numbers")
    start, count = stream.tell(), math.prod(shape)
    if any(n < 0 for n in shape) or len(data) - start < count * dtype.itemsize:
        raise FeatureError(
            f"is cut short: expected {count * dtype.itemsize:,} bytes of data, got {len(data) - start:,}"
        )
    if not count or not dtype.itemsize:
        return np.zeros(shape, dtype=dtype) if count == 0 else np.zeros((0,), dtype=np.float32)
    flat = np.frombuffer(data, dtype=dtype, count=count, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C")
