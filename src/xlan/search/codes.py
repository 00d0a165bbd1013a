"""Encodings in 8 bits: what the index stores of a picture, small enough for a hundred thousand pictures.

An encoding becomes one self-describing record of bytes:

    int32     number of regions; then for each array, by name: number of dimensions, dimensions
    float16   for each row (last axis) of each array: smallest value and step; single vectors as they are
    uint8     the arrays: smallest value + number × step
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from xlan.engines.interface import Encoding

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_HALF = np.dtype("<f2")
_WHOLE = np.dtype("<i4")
_MAX_DIMENSIONS = 8
# Log-odds and log-probabilities are stored in steps of a sixteenth, from this lowest value on.
LOWEST, STEPS = -12.0, 16.0


def pack(encoding: Encoding) -> Bytes:
    """Encode as one record.

    Raises:
        ValueError: a value is not finite, or too large for 16 bits.
    """
    numbers, halves, codes = [len(encoding)], [], []
    for name in sorted(encoding.arrays):
        array = np.asarray(encoding.arrays[name], np.float32)
        if not (np.abs(array) <= np.finfo(_HALF).max).all():  # false for NaN too
            raise ValueError("the model's encoding has values that are not finite or too large")
        numbers += [array.ndim, *array.shape]
        if array.ndim < 2:
            halves.append(array.ravel())
            continue
        rows = array.reshape(-1, array.shape[-1])
        low = rows.min(axis=1).astype(_HALF)
        step = ((rows.max(axis=1) - low) / np.float32(255)).astype(_HALF)
        step = np.where(step > 0, step, np.float16(1)).astype(_HALF)
        scaled = np.rint((rows - low[:, None].astype(np.float32)) / step[:, None].astype(np.float32))
        codes.append(np.clip(scaled, 0, 255).astype(np.uint8).ravel())
        halves.append(np.stack([low, step], axis=1).ravel())
    short = np.concatenate([np.asarray(one, _HALF) for one in halves] or [np.empty(0, _HALF)])
    parts = [np.array(numbers, _WHOLE).view(np.uint8), short.view(np.uint8), *codes]
    return np.concatenate(parts)


def unpack(record: Bytes, names: Sequence[str]) -> Encoding:
    """The encoding that `pack` was given, up to rounding; `names` are the sorted names of its arrays.

    Raises:
        ValueError: the record is damaged.
    """
    numbers, at = record[: len(record) // 4 * 4].view(_WHOLE), 1
    shapes = []
    for _ in names:
        dimensions = int(numbers[at]) if at < len(numbers) else -1
        if not 0 <= dimensions <= _MAX_DIMENSIONS or at + dimensions >= len(numbers):
            raise ValueError("invalid shapes")
        shapes.append(tuple(int(size) for size in numbers[at + 1 : at + 1 + dimensions]))
        at += 1 + dimensions
    if any(size < 1 for shape in shapes for size in shape):
        raise ValueError("invalid shapes")
    halves = [math.prod(shape) if len(shape) < 2 else 2 * math.prod(shape[:-1]) for shape in shapes]
    sizes = [0 if len(shape) < 2 else math.prod(shape) for shape in shapes]
    start, middle = 4 * at, 4 * at + 2 * sum(halves)
    if middle + sum(sizes) != len(record):
        raise ValueError("its length does not match its shapes")
    short = np.frombuffer(record[start:middle].tobytes(), _HALF).astype(np.float32)
    codes = record[middle:]
    arrays: dict[str, Floats] = {}
    half = code = 0
    for name, shape, count, size in zip(names, shapes, halves, sizes, strict=True):
        values = short[half : half + count]
        if size:
            low, step = values.reshape(-1, 2).T
            rows = codes[code : code + size].reshape(-1, shape[-1])
            values = rows * step[:, None] + low[:, None]
        arrays[name] = values.reshape(shape)
        half, code = half + count, code + size
    return Encoding(arrays, int(numbers[0]))


def to_codes(values: npt.ArrayLike) -> Bytes:
    """Log-odds or log-probabilities as numbers 0 to 255; off by a 32nd at most between -12 and 3.9."""
    scaled = (np.asarray(values, np.float32) - LOWEST) * STEPS
    return np.asarray(np.clip(np.rint(scaled), 0, 255), np.uint8)


def from_codes(codes: Bytes) -> Floats:
    """The values that `to_codes` was given, up to rounding."""
    return codes.astype(np.float32) / np.float32(STEPS) + np.float32(LOWEST)


def join_texts(texts: Iterable[bytes], separator: bytes) -> Bytes:
    """Join texts; none of them may contain the separator."""
    return np.frombuffer(separator.join(texts), np.uint8)


def split_texts(joined: Bytes, separator: bytes, count: int) -> list[bytes]:
    """The texts that `join_texts` was given.

    Raises:
        ValueError: there are not exactly `count` of them.
    """
    texts = joined.tobytes().split(separator) if count else []
    if len(texts) != count:
        raise ValueError(f"expected {count:,} texts, got {len(texts):,}")
    return texts
