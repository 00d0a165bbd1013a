"""Files of tensors: reading one from anywhere, writing one whole, and one report of what does not fit a network.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from xlan.errors import DataError, WeightsError
from xlan.files import atomic_path

if TYPE_CHECKING:
    from torch import Tensor

MAX_LISTED = 10
LARGEST = 127.0  # of 8 bits with a sign
SCALES = ".scales"  # behind the name of a tensor in 8 bits

Floats = npt.NDArray[np.float32]


def compare_weights(
    expected: Mapping[str, Sequence[int]], got: Mapping[str, Sequence[int]], *, unknown: Iterable[str] = ()
) -> str:
    """What is missing, unexpected and misshapen among weights, in one line; empty when they fit.

    Args:
        expected: shapes by name that a model needs.
        got: shapes by name that a file has.
        unknown: further names in the file that belong to no part of the model.
    """
    shapes = [
        f"{name} {list(got[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in got and tuple(got[name]) != tuple(shape)
    ]
    faults = {
        "missing": [name for name in expected if name not in got],
        "unexpected": [*unknown, *(name for name in got if name not in expected)],
        "misshapen": shapes,
    }
    return "; ".join(f"{what}: {_some(names)}" for what, names in faults.items() if names)


def _some(names: list[str]) -> str:
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def read_tensors(path: str | os.PathLike[str], *, max_bytes: int) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Tensors by name and the header's texts of a safetensors file that anybody may have written.

    Raises:
        WeightsError: the file is missing, damaged, of another format or larger than `max_bytes`.
    """
    source = Path(path)
    try:
        size = source.stat().st_size
        if size > max_bytes:
            raise WeightsError(f"{source}: {size:,} bytes is more than the limit of {max_bytes:,} for such a file")
        with safe_open(source, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise WeightsError(f"{source}: no such file") from None
    except (OSError, SafetensorError, TypeError) as error:  # TypeError: a type that numpy does not have
        raise WeightsError(f"{source}: is not a readable safetensors file: {error}") from None


def load_weights(file: Path) -> dict[str, Tensor]:
    """Tensors of torch by name from a safetensors file.

    Raises:
        WeightsError: it is damaged.
        DataError: it cannot be read.
    """
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise WeightsError(f"{file}: not a valid safetensors file ({error})") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def tensor_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """`atomic_path` for safetensors' `save_file`, whose own error for a full disk is not one of the file system.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    with atomic_path(path) as temporary:
        try:
            yield temporary
        except SafetensorError as error:
            if (found := re.search(r"os error (\d+)", str(error))) is None:
                raise
            number = int(found[1])
            raise OSError(number, os.strerror(number), os.fspath(path)) from None


def quantise_rows(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], Floats]:
    """`[..., D]` → the same in 8 bits and scales `[..., 1]`: a row times its scale is what it was, nearly."""
    largest = np.abs(values).max(axis=-1, keepdims=True) / LARGEST
    scales = np.where(largest > 0, largest, 1.0).astype(np.float32)
    return np.rint(values / scales).astype(np.int8), scales


def packed_rows(name: str, values: Floats, *, int8: bool) -> dict[str, npt.NDArray[Any]]:
    """A matrix as tensors of a file: float16, or 8 bits with a scale for each row."""
    if not int8:
        return {name: values.astype(np.float16)}
    rows, scales = quantise_rows(values)
    return {name: rows, name + SCALES: scales}


def unpacked_rows(name: str, tensors: Mapping[str, npt.NDArray[Any]]) -> Floats | None:
    """What `packed_rows` packed, float32; None where it is missing or its scales are."""
    rows, scales = tensors.get(name), tensors.get(name + SCALES)
    if rows is None or rows.ndim != 2:
        return None
    if rows.dtype != np.int8:
        return np.asarray(rows, np.float32) if scales is None else None
    if scales is None or scales.shape != (len(rows), 1):
        return None
    return np.asarray(rows * scales.astype(np.float32), np.float32)
