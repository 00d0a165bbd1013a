"""HDF5 files: `<id>_features` with `<id>_boxes`, a group per image, or a data set per image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.data.importers.entries import MAX_ARRAY_BYTES, Bad, Entry, Found
from xlan.errors import FeatureError, MissingExtraError

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


class Hdf5File:
    """An HDF5 file opened for reading; it stays open while entries are read."""

    form = "HDF5"
    parallel = False  # the library reads one thing at a time

    def __init__(self, path: Path) -> None:
        try:
            import h5py
        except ImportError:
            raise MissingExtraError("HDF5 features", "features") from None
        self._h5py = h5py
        self._path = path
        try:
            self._file: Any = h5py.File(path, "r")
            self._names: list[str] = sorted(self._file)
        except (OSError, RuntimeError, ValueError) as error:
            raise FeatureError(f"{path}: not a valid HDF5 file: {_one_line(error)}") from None

    @property
    def total_bytes(self) -> int:
        """Size of the file."""
        return self._path.stat().st_size

    def entries(self) -> Iterator[Entry | Bad]:
        """One entry per image, in the order of names."""
        pairs = any(name.endswith("_features") for name in self._names)
        names = [n for n in self._names if n.endswith("_features")] if pairs else self._names
        for number, name in enumerate(names, start=1):
            image_id = name.removesuffix("_features") if pairs else name
            progress = self.total_bytes * number // len(names)
            yield Entry(image_id, f"{self._path}:{name}", lambda n=name, i=image_id: self._read(n, i), progress)  # type: ignore[misc]

    def _read(self, name: str, image_id: str) -> Found:
        item = self._get(name)
        if isinstance(item, self._h5py.Group):
            inner = {key: f"{name}/{key}" for key in item}
            features = next((inner[key] for key in ("features", "feat", "x") if key in inner), None)
            if features is None:
                raise FeatureError(f"the group has no 'features', only: {', '.join(list(inner)[:6]) or 'nothing'}")
            boxes = next((inner[key] for key in ("boxes", "bbox") if key in inner), None)
            return Found(self._array(features), None if boxes is None else self._array(boxes))
        boxes_name = f"{image_id}_boxes"
        boxes_array = self._array(boxes_name) if name != image_id and boxes_name in self._file else None
        return Found(self._array(name), boxes_array)

    def _get(self, name: str) -> Any:
        """An object of this very file: links may lead to any other file of the disk, so only plain ones are
        followed."""
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            link = self._file.get("/".join(parts[:depth]), getlink=True)
            if not isinstance(link, self._h5py.HardLink):
                raise FeatureError("is a link, not data of this file")
        try:
            return self._file[name]
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            raise FeatureError(f"cannot be read: {_one_line(error)}") from None

    def _array(self, name: str) -> npt.NDArray[np.floating]:
        item = self._get(name)
        if not isinstance(item, self._h5py.Dataset) or item.dtype.kind != "f":
            raise FeatureError(f"{name} must be an array of floats")
        if item.is_virtual or item.external:
            raise FeatureError(f"{name} lies in other files; copy it into this one")
        if item.size * item.dtype.itemsize > MAX_ARRAY_BYTES:
            raise FeatureError(f"{name} has {item.size:,} numbers, too many for one image")
        try:
            array: npt.NDArray[np.floating] = item[()]
        except (OSError, RuntimeError, ValueError) as error:
            raise FeatureError(f"{name} cannot be read: {_one_line(error)}") from None
        return array.astype(np.float32) if array.dtype == np.float64 else array


def _one_line(error: Exception) -> str:
    """The library's message without the numbers in parentheses (addresses, descriptors), which do not help a reader."""
    return re.sub(r"\s+", " ", re.sub(r"\(.*\)", "", str(error), flags=re.DOTALL)).strip()
