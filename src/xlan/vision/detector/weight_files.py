"""Reading untrusted weight files without executing anything in them.

`.pth`, `.pt` and `.bin` go through torch's loader for weights only, `.pkl` through an unpickler that admits numpy
arrays and nothing else, `.caffemodel` through a small reader of protocol buffers. Each gives tensors by name.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor

from xlan.errors import WeightsError, one_line

MAX_WEIGHTS_BYTES = 2 << 30
SUFFIXES = (".pth", ".pt", ".bin", ".safetensors", ".pkl", ".caffemodel")


def read_weight_file(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from any of the public files; a dictionary under `model` or `state_dict` is unwrapped.

    Raises:
        WeightsError: missing, too large, damaged, of another kind, or refused because it holds more than arrays.
    """
    source = Path(path)
    if not source.is_file():
        raise WeightsError(f"{source}: no such file")
    if source.stat().st_size > MAX_WEIGHTS_BYTES:
        raise WeightsError(f"{source}: more than the limit of {MAX_WEIGHTS_BYTES:,} bytes for a weight file")
    readers: dict[str, Callable[[Path], Any]] = {
        ".safetensors": load_file,
        ".pkl": read_array_pickle,
        ".caffemodel": read_caffemodel,
    }
    suffix = source.suffix.lower()
    if suffix not in SUFFIXES:
        raise WeightsError(f"{source}: expected one of {', '.join(SUFFIXES)}, got {suffix or 'no suffix'}")
    try:
        value = readers.get(suffix, _load_torch)(source)
    except WeightsError as error:
        raise WeightsError(f"{source}: {error}") from None
    except OSError as error:
        raise WeightsError(f"{source}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged or hostile file may make a reader raise anything
        raise WeightsError(f"{source}: not a readable weight file: {one_line(error)}") from None
    return _tensors(source, value)


def _load_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        if wanted is None:
            raise
        raise WeightsError(
            f"refused, nothing was run: it holds {wanted.group(1)}, expected tensors by name; "
            "save its state dict alone and import that"
        ) from None


def _tensors(source: Path, value: Any) -> dict[str, Tensor]:
    for wrapper in ("model", "state_dict"):
        if isinstance(value, dict) and isinstance(value.get(wrapper), dict):
            value = value[wrapper]
    if not isinstance(value, dict):
        raise WeightsError(f"{source}: expected tensors by name, got {type(value).__name__}")
    tensors: dict[str, Tensor] = {}
    for name, item in value.items():
        if isinstance(item, np.ndarray) and item.dtype.kind in "fiu":
            item = torch.from_numpy(np.array(item, dtype=item.dtype.newbyteorder("=")))
        if isinstance(item, Tensor) and not item.is_meta and item.layout == torch.strided:
            tensors[str(name).removeprefix("module.")] = item.detach()
    if not tensors:
        raise WeightsError(f"{source}: holds no tensors")
    return tensors


# Pickles of numpy arrays


class _ArrayUnpickler(pickle._Unpickler):
    """Makes numpy arrays, strings, numbers, lists and dictionaries; everything else a pickle can name is refused.

    Based on the unpickler in Python: a few bytes can make the one in C allocate any amount of memory.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The object with a name that a pickle may use."""
        admitted = _ADMITTED.get((module.replace("numpy._core", "numpy.core"), name))
        if admitted is None:
            raise WeightsError(
                f"refused, nothing was run: the pickle wants {module}.{name}; only numpy arrays are read"
            )
        return admitted

    def persistent_load(self, pid: Any) -> Any:
        """Refused: arrays do not need it."""
        raise WeightsError(f"refused, nothing was run: the pickle refers to {one_line(pid)} outside of it")


def _empty_array(kind: Any, shape: Any, dtype: Any) -> npt.NDArray[Any]:  # noqa: ARG001
    """What numpy's own helper makes before the array's state is set, and no larger."""
    if tuple(shape) != (0,):
        raise WeightsError(f"refused: an array starts with shape {shape}, expected (0,)")
    return np.zeros(0, dtype=np.int8)


def _dtype(code: Any, *_: Any) -> np.dtype[Any]:
    """A type of plain numbers."""
    text = code.decode("ascii") if isinstance(code, bytes) else str(code)
    if not re.fullmatch(r"[<>=|]?[fiub][1248]", text):
        raise WeightsError(f"refused: arrays of {text!r}, expected plain numbers")
    return np.dtype(text)


def _encode(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 spell bytes."""
    if encoding != "latin1":
        raise WeightsError(f"refused: bytes in encoding {encoding!r}, expected latin1")
    return text.encode("latin1")


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any = "C") -> npt.NDArray[Any]:
    """How pickles of protocol 5 spell arrays."""
    return np.frombuffer(buffer, dtype=dtype).reshape(tuple(shape), order="F" if order == "F" else "C").copy()


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): object(),  # only passed to _reconstruct, so it need not be callable
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
}


def read_array_pickle(path: str | Path) -> Any:
    """Unpickle a file that may hold numpy arrays in dictionaries and lists.

    Raises:
        WeightsError: it names anything else; nothing of it was run.
    """
    with Path(path).open("rb") as file:
        return _ArrayUnpickler(file, encoding="latin1").load()


# Caffe: a protocol buffer `NetParameter`. Field numbers are those of Caffe's own caffe.proto.

_LAYERS, _OLD_LAYERS = 100, 2
_LAYER_NAME, _LAYER_BLOBS = 1, 7
_BLOB_DATA, _BLOB_SHAPE, _SHAPE_DIM = 5, 7, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_caffemodel(path: str | Path) -> dict[str, npt.NDArray[np.float32]]:
    """Blobs of every layer as `layer/number`, each in the shape the file gives.

    Raises:
        WeightsError: not a caffemodel of layers with blobs.
    """
    blobs: dict[str, npt.NDArray[np.float32]] = {}
    with Path(path).open("rb") as file:
        content = memoryview(file.read())
    for number, value in _fields(content):
        if number == _OLD_LAYERS:
            raise WeightsError("is a caffemodel of a version before 2014, which is not read")
        if number != _LAYERS or not isinstance(value, memoryview):
            continue
        name, found = "", []
        for inner, item in _fields(value):
            if inner == _LAYER_NAME and isinstance(item, memoryview):
                name = bytes(item).decode("utf-8", "replace")
            elif inner == _LAYER_BLOBS and isinstance(item, memoryview):
                found.append(_blob(item))
        blobs |= {f"{name}/{i}": blob for i, blob in enumerate(found)}
    if not blobs:
        raise WeightsError("not a caffemodel: no layer with weights in it")
    return blobs


def _blob(message: memoryview) -> npt.NDArray[np.float32]:
    data: list[npt.NDArray[np.float32]] = []
    shape: list[int] = []
    for number, value in _fields(message):
        if number == _BLOB_DATA and isinstance(value, memoryview):
            data.append(np.frombuffer(value, dtype="<f4").astype(np.float32))
        elif number == _BLOB_SHAPE and isinstance(value, memoryview):
            for inner, item in _fields(value):
                if inner == _SHAPE_DIM:
                    shape += [item] if isinstance(item, int) else list(_varints(item))
    values = np.concatenate(data) if data else np.zeros(0, dtype=np.float32)
    return values.reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: whole numbers, or the bytes of anything longer."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise WeightsError("not a caffemodel, or a damaged one")
        if place + size > end:
            raise WeightsError("is truncated; copy it again")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise WeightsError("is truncated; copy it again")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise WeightsError("not a caffemodel, or a damaged one")


def _varints(message: memoryview) -> Iterator[int]:
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value
