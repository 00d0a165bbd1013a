"""Files of tensors, without torch: reading one from anywhere, and one report of what does not fit a network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from xlan.errors import WeightsError

MAX_LISTED = 10


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
