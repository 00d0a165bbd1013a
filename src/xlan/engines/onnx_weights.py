"""A safetensors file as arrays on its own memory map: nothing is copied, and the pages can be given back."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from xlan.errors import DataError, WeightsError

_DTYPES = {"F32": np.float32, "F16": np.float16}


class MappedWeights(Mapping[str, npt.NDArray[Any]]):
    """Weights by name, read-only.

    Args:
        path: a safetensors file of float32 or float16 tensors.

    Raises:
        WeightsError: damaged, or of other types.
        DataError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        source = Path(path)
        try:
            with safe_open(source, framework="np"):  # checks the header, and that the file is as long as it says
                pass
            with source.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except SafetensorError as error:
            raise WeightsError(f"{source}: not a valid safetensors file ({error})") from None
        except OSError as error:
            raise DataError(f"{source}: cannot be read: {error.strerror or error}") from None
        size = int.from_bytes(self._map[:8], "little")
        for name, tensor in json.loads(self._map[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            if tensor["dtype"] not in _DTYPES:
                raise WeightsError(f"{source}: {name} is stored as {tensor['dtype']}, expected float32 or float16")
            shape, start = tensor["shape"], 8 + size + tensor["data_offsets"][0]
            flat = np.frombuffer(self._map, _DTYPES[tensor["dtype"]], int(np.prod(shape)), start)
            self._arrays[name] = flat.reshape(shape)

    def release(self) -> None:
        """Give back the pages in memory; who reads an array again reads the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
