"""Folders with one file per image: `.npz` (the authors' layout among them) and `.npy`, with boxes beside."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.data.importers.arrays import read_npy, read_npz
from xlan.data.importers.entries import Bad, Entry, Found
from xlan.errors import FeatureError

FEATURE_KEYS = ("feat", "x", "features", "feature", "arr_0")
BOX_KEYS = ("bbox", "boxes", "box", "bboxes")
SCORE_KEYS = ("scores", "objects_conf", "conf")
_BOX_ENDINGS = ("_boxes", "_bbox", "_box")


class ArrayFolder:
    """A folder of `.npz` or `.npy` files named after their images.

    Args:
        folder: searched with its sub-folders.
        suffix: ".npz" or ".npy".
        boxes: folder with `<id>.npy` boxes, for features that come without. Boxes of `.npy` features may also
            lie beside them as `<id>_boxes.npy`.
    """

    parallel = True

    def __init__(self, folder: Path, *, suffix: str, boxes: Path | None = None) -> None:
        self.form = f"{suffix[1:]} folder"
        self._suffix, self._boxes = suffix, boxes
        self._files = list(_walk(folder, suffix))
        self._sizes = [_size(path) for path in self._files]
        stems = Counter(path.stem for path in self._files)
        unique = all(count == 1 for count in stems.values())
        self._ids = [
            path.stem if unique else path.relative_to(folder).with_suffix("").as_posix() for path in self._files
        ]
        if not self._files:
            raise FeatureError(f"{folder}: no {suffix} files in it")

    @property
    def total_bytes(self) -> int:
        """Sum of the sizes of the files."""
        return sum(self._sizes)

    def entries(self) -> Iterator[Entry | Bad]:
        """One entry per file, in the order of names; box files are not entries."""
        done = 0
        names = set(self._ids)
        for path, image_id, size in zip(self._files, self._ids, self._sizes, strict=True):
            done += size
            if any(image_id.endswith(end) and image_id.removesuffix(end) in names for end in _BOX_ENDINGS):
                continue
            yield Entry(image_id, str(path), lambda path=path, i=image_id: self._read(path, i), done)  # type: ignore[misc]

    def _read(self, path: Path, image_id: str) -> Found:
        if self._suffix == ".npz":
            return self._with_boxes(_from_npz(read_npz(path)), image_id)
        features = _floats(read_npy(path))
        for end in _BOX_ENDINGS:
            beside = path.with_name(f"{path.stem}{end}.npy")
            if beside.exists():
                return Found(features, read_npy(beside))
        return self._with_boxes(Found(features), image_id)

    def _with_boxes(self, found: Found, image_id: str) -> Found:
        if self._boxes is None or found.boxes is not None:
            return found
        path = self._boxes / f"{image_id}.npy"
        if not path.is_file():
            raise FeatureError(f"no boxes for it: {path} is missing")
        return Found(found.features, read_npy(path), found.scores, found.width, found.height)


def _walk(folder: Path, suffix: str) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent) / name for name in sorted(names) if name.endswith(suffix) and name[0] != ".")


def _size(path: Path) -> int:
    """Bytes of a file; 0 for a dead link, which is listed when its turn to be read comes."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _from_npz(arrays: Mapping[str, npt.NDArray[Any]]) -> Found:
    name = next((key for key in FEATURE_KEYS if key in arrays), None)
    if name is None:
        raise FeatureError(f"has no array named {', '.join(FEATURE_KEYS)}; it has: {', '.join(arrays) or 'none'}")
    features = _floats(arrays[name])
    boxes = next((arrays[key] for key in BOX_KEYS if key in arrays), None)
    scores = next((arrays[key] for key in SCORE_KEYS if key in arrays), None)
    count = _whole(arrays, "num_bbox", "num_boxes")
    if features.ndim == 2 and 0 < count < len(features):  # the rest is padding
        features = features[:count]
        boxes = None if boxes is None else boxes[:count]
        scores = None if scores is None else scores[:count]
    return Found(features, boxes, scores, _whole(arrays, "image_w", "width"), _whole(arrays, "image_h", "height"))


def _floats(array: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _whole(arrays: Mapping[str, npt.NDArray[Any]], *names: str) -> int:
    """A whole number kept as an array of one, 0 when it is not there."""
    value = next((arrays[name] for name in names if name in arrays), None)
    usable = value is not None and value.size == 1 and value.dtype.kind in "iuf" and bool(np.isfinite(value).all())
    return int(value.reshape(-1)[0]) if value is not None and usable else 0
