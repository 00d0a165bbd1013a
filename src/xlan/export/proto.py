"""Just enough of the ONNX file format to write a graph; numpy is all it needs.

An ONNX file is a protocol buffer: fields with a number and a kind, of which three occur here (whole numbers, 32-bit
floats, and bytes with a length). The field numbers below are those of `onnx.proto3`; tests read the result with the
`onnx` package and run its checker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

IR_VERSION = 10
OPSET = 21
MICROSOFT_OPSET = 1

Array = npt.NDArray[Any]
Attribute = int | float | str | Sequence[int]

DTYPES: dict[str, int] = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10}
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_STRING, _ATTRIBUTE_INTS = 1, 2, 3, 7
_EXTERNAL = 1


def node(
    kind: str, inputs: Iterable[str], outputs: Iterable[str], attributes: Mapping[str, Attribute], domain: str = ""
) -> bytes:
    """A NodeProto: one operation; an optional input left out is an empty name."""
    parts = [_text(1, name) for name in inputs] + [_text(2, name) for name in outputs]
    parts.append(_text(4, kind))
    parts += [_message(5, _attribute(name, value)) for name, value in attributes.items()]
    if domain:
        parts.append(_text(7, domain))
    return b"".join(parts)


def tensor(name: str, array: Array, *, external: bool = False) -> bytes:
    """A TensorProto; an `external` one says what it is, and its values are handed over when a session is made."""
    dims = b"".join(_int(1, size) for size in array.shape)
    head = dims + _int(2, DTYPES[array.dtype.name]) + _text(8, name)
    if not external:
        return head + _bytes(9, np.ascontiguousarray(array).tobytes())
    where = {"location": "memory", "offset": "0", "length": str(array.nbytes)}
    return head + b"".join(_message(13, _pair(key, value)) for key, value in where.items()) + _int(14, _EXTERNAL)


def value(name: str, dtype: str, shape: Sequence[int | str]) -> bytes:
    """A ValueInfoProto: an input or output; a dimension is a size, or a name where any size will do."""
    dims = b"".join(_message(1, _int(1, size) if isinstance(size, int) else _text(2, size)) for size in shape)
    return _text(1, name) + _message(2, _message(1, _int(1, DTYPES[dtype]) + _message(2, dims)))


def model(
    name: str,
    *,
    nodes: Iterable[bytes],
    initializers: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    metadata: Mapping[str, str],
) -> bytes:
    """A ModelProto: the bytes of a `.onnx` file."""
    graph = b"".join(
        [
            *(_message(1, one) for one in nodes),
            _text(2, name),
            *(_message(5, one) for one in initializers),
            *(_message(11, one) for one in inputs),
            *(_message(12, one) for one in outputs),
        ]
    )
    opsets = [_message(8, _text(1, domain) + _int(2, version)) for domain, version in _OPSETS.items()]
    pairs = [_message(14, _pair(key, said)) for key, said in metadata.items()]
    return b"".join([_int(1, IR_VERSION), _text(2, "xlan"), _message(7, graph), *opsets, *pairs])


_OPSETS = {"": OPSET, "com.microsoft": MICROSOFT_OPSET}


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        body, kind = _key(2, 5) + struct.pack("<f", value), _ATTRIBUTE_FLOAT
    elif isinstance(value, int):
        body, kind = _int(3, value), _ATTRIBUTE_INT
    elif isinstance(value, str):
        body, kind = _text(4, value), _ATTRIBUTE_STRING
    else:
        body, kind = b"".join(_int(8, item) for item in value), _ATTRIBUTE_INTS
    return _text(1, name) + body + _int(20, kind)


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # negative numbers are written as 64 bits
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _int(field: int, number: int) -> bytes:
    return _key(field, 0) + _varint(number)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content


_message = _bytes


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _pair(key: str, value: str) -> bytes:
    return _text(1, key) + _text(2, value)
