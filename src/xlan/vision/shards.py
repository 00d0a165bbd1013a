"""One shard of a feature store: a safetensors file that holds the regions of many images, end to end.

Tensors (n images, R regions in all, D numbers a region), in file order, so that every one is aligned:

    offsets   [n + 1]  int64     image i owns rows offsets[i] to offsets[i + 1]
    boxes     [R, 4]   float32   x0 y0 x1 y1, fractions of the picture
    scores    [R]      float32   detector confidence, NaN where the extractor has none
    sizes     [n, 2]   int32     width and height in pixels, 0 when unknown
    steps     [R, 2]   float32   smallest value and step of each region; only with features of 8 bits
    features  [R, D]   float16 or float32, or uint8 for features of 8 bits: smallest value + number × step

The ids of the images are JSON text in the metadata. `xlan.mapped` writes and reads the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlan.errors import FeatureError
from xlan.files import atomic_path
from xlan.mapped import HEADER_FAULTS, MAX_HEADER_BYTES, header, map_file, read_header, reason, write_chunks
from xlan.types import Regions

FeatureDtype = Literal["float16", "float32", "int8"]
FEATURE_DTYPES: dict[str, np.dtype[Any]] = {  # as they are in the file
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "int8": np.dtype("u1"),
}
PIECE = 1 << 14  # numbers that torch converts without waking its threads
SHARD_FORMAT = "xlan-features-shard-1"
_BOX_SLACK = 1e-3  # detectors leave the picture by rounding; more than this is another coordinate system
_TENSORS = ("offsets", "boxes", "scores", "sizes", "features")


@dataclass(frozen=True)
class ShardInfo:
    """What the index of a store says of one shard."""

    file: str
    bytes: int
    sha256: str
    images: int
    regions: int


Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]


def to_8_bits(features: Floats) -> tuple[Codes, Floats]:
    """Features `[N, D]` → numbers 0 to 255 `[N, D]`, and smallest value and step `[N, 2]` of each region.

    Each value is off by half a step at most, a step being a 255th of the region's range.
    """
    low, high = features.min(axis=1), features.max(axis=1)
    step = (high - low) / np.float32(255)
    codes = np.rint((features - low[:, None]) / np.where(step > 0, step, 1)[:, None])
    return np.clip(codes, 0, 255).astype(np.uint8), np.stack([low, step], axis=1)


def from_8_bits(codes: Codes, steps: Floats) -> Floats:
    """What `to_8_bits` was given, nearly: `[N, D]` float32."""
    return np.asarray(codes * steps[:, 1:] + steps[:, :1], dtype=np.float32)


def write_shard(
    path: Path, ids: Sequence[str], regions: Sequence[Regions], steps: Sequence[Floats] | None = None
) -> ShardInfo:
    """Write the regions of `ids` to `path`, atomically. All features have one width and one dtype.

    `steps` has `[N, 2]` for each image when its features are numbers of `to_8_bits`.
    """
    counts = [len(item) for item in regions]
    total, width = sum(counts), int(regions[0].features.shape[1])
    feature_dtype = np.dtype(regions[0].features.dtype).newbyteorder("<")
    small: dict[str, npt.NDArray[Any]] = {
        "offsets": np.concatenate([[0], np.cumsum(counts)]).astype("<i8"),
        "boxes": np.concatenate([item.boxes for item in regions]).astype("<f4"),
        "scores": np.concatenate([_scores(item) for item in regions]).astype("<f4"),
        "sizes": np.array([[item.width, item.height] for item in regions], dtype="<i4"),
    }
    if steps is not None:
        small["steps"] = np.concatenate(steps).astype("<f4")
    shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {k: (v.shape, v.dtype) for k, v in small.items()}
    shapes["features"] = ((total, width), feature_dtype)
    chunks: list[npt.NDArray[Any]] = [
        *small.values(),
        *(np.ascontiguousarray(item.features) for item in regions),
    ]
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        head = header({"format": SHARD_FORMAT, "ids": json.dumps(list(ids), ensure_ascii=False)}, shapes)
        if len(head) > MAX_HEADER_BYTES:
            raise FeatureError(
                f"the ids of one shard take {len(head):,} bytes, above {MAX_HEADER_BYTES:,}; use smaller shards"
            )
        digest, size = write_chunks(file, head, chunks)
    return ShardInfo(path.name, size, digest, len(ids), total)


def _scores(item: Regions) -> npt.NDArray[np.float32]:
    return np.full(len(item), np.nan, dtype=np.float32) if item.scores is None else item.scores


class Shard:
    """A shard opened for reading: memory-mapped, nothing is read before it is asked for.

    Args:
        path: the file.
        expected: what the index says of it; the size is checked here, the hash only by `verify`.

    Raises:
        FeatureError: the file is missing, truncated, of another size than the index says, or foreign.
    """

    def __init__(self, path: Path, expected: ShardInfo) -> None:
        self.path = path
        self.expected = expected
        try:
            size = path.stat().st_size
            if size != expected.bytes:
                raise FeatureError(
                    f"{path}: expected {expected.bytes:,} bytes, got {size:,}: the shard is damaged or "
                    "foreign; restore it, or make the store again"
                )
            self._map = map_file(path)
        except FileNotFoundError:
            raise FeatureError(f"{path}: the index names this shard, but the file is missing") from None
        except (OSError, ValueError) as error:
            raise FeatureError(f"{path}: cannot be read: {error}") from None
        self.ids, self._tensors = self._read_header()
        self._check()

    def _read_header(self) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
        try:
            metadata, tensors = read_header(self._map)
            if metadata["format"] != SHARD_FORMAT:
                raise ValueError(f"format is {metadata['format']!r}, expected {SHARD_FORMAT!r}")
            ids = json.loads(metadata["ids"])
            if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
                raise ValueError("ids must be a list of strings")
            names = (*_TENSORS, "steps") if "steps" in tensors else _TENSORS
            return ids, {name: tensors[name] for name in names}
        except HEADER_FAULTS as error:
            raise FeatureError(f"{self.path}: not a shard of a feature store: {reason(error)}") from None

    def _check(self) -> None:
        """Shapes fit each other and the index; the contents of features and boxes are left to `verify`."""
        n, total = len(self.ids), self.expected.regions
        tensors, offsets = self._tensors, self._tensors["offsets"]
        shapes = {"offsets": (n + 1,), "boxes": (total, 4), "scores": (total,), "sizes": (n, 2)}
        if tensors["features"].dtype == np.uint8:
            shapes["steps"] = (total, 2)
        fits = all(name in tensors and tensors[name].shape == shape for name, shape in shapes.items())
        fits = fits and tensors["features"].ndim == 2 and tensors["features"].shape[0] == total
        fits = fits and n == self.expected.images and offsets[0] == 0 and offsets[-1] == total
        if not (fits and bool((np.diff(offsets) > 0).all())):
            raise FeatureError(f"{self.path}: the shard does not hold what the index says; make the store again")

    @property
    def features(self) -> npt.NDArray[Any]:
        """`[R, D]` all features of the shard as they are in the file, a view of it."""
        return self._tensors["features"]

    @property
    def boxes(self) -> npt.NDArray[np.float32]:
        """`[R, 4]` all boxes of the shard, a view of the file."""
        return self._tensors["boxes"]

    def regions(self, row: int) -> Regions:
        """Regions of the image at `row`: read-only views of the file; features of 8 bits are unpacked."""
        tensors = self._tensors
        start, end = (int(i) for i in tensors["offsets"][row : row + 2])
        scores = tensors["scores"][start:end]
        width, height = (int(i) for i in tensors["sizes"][row])
        features = tensors["features"][start:end]
        return Regions(
            features=from_8_bits(features, tensors["steps"][start:end]) if "steps" in tensors else features,
            boxes=tensors["boxes"][start:end],
            scores=None if bool(np.isnan(scores).any()) else scores,
            width=width,
            height=height,
        )

    def count(self, row: int) -> int:
        """Number of regions of the image at `row`, without touching its features."""
        offsets = self._tensors["offsets"]
        return int(offsets[row + 1] - offsets[row])


def check_regions(regions: Regions, *, image_id: str, dtype: FeatureDtype, width: int) -> Regions:
    """`regions` as they are stored: contiguous, of `dtype` (float32 for 8 bits), boxes clipped to the picture.

    Args:
        regions: features `[N, D]`, boxes `[N, 4]`, scores `[N]` or None.
        image_id: for the message.
        dtype: of the stored features.
        width: D of the store, 0 when nothing is in it yet.

    Raises:
        FeatureError: shapes, widths or values cannot be stored.
    """
    features = np.asarray(regions.features)
    where = f"image {image_id!r}"
    if features.ndim != 2 or features.dtype.kind != "f":
        raise FeatureError(f"{where}: features must be floats [regions, width], got {features.dtype} {features.shape}")
    count, columns = features.shape
    if not count or not columns:
        raise FeatureError(f"{where}: has no regions (features are {count} × {columns})")
    if width and columns != width:
        raise FeatureError(f"{where}: features are {columns} wide, expected {width} as in the rest of the store")
    stored = _convert(features, "float32" if dtype == "int8" else dtype)
    if not np.isfinite(stored).all():
        if np.isfinite(features).all():
            raise FeatureError(f"{where}: a feature of {np.abs(features).max():.4g} does not fit {dtype}; use float32")
        raise FeatureError(f"{where}: features hold values that are not finite")
    if dtype == "int8" and np.abs(stored).max() > np.finfo(np.float32).max / 4:
        raise FeatureError(f"{where}: a feature of {np.abs(stored).max():.4g} does not fit int8; use float32")
    scores = None if regions.scores is None else np.ascontiguousarray(regions.scores, dtype=np.float32)
    if scores is not None and (scores.shape != (count,) or not np.isfinite(scores).all()):
        raise FeatureError(f"{where}: scores must be {count} finite numbers, got shape {scores.shape}")
    if regions.width < 0 or regions.height < 0 or max(regions.width, regions.height) >= 1 << 31:
        raise FeatureError(f"{where}: picture size {regions.width} × {regions.height} is impossible")
    return Regions(stored, _check_boxes(regions.boxes, count, where), scores, int(regions.width), int(regions.height))


def _convert(features: npt.NDArray[np.floating], dtype: str) -> npt.NDArray[np.floating]:
    """A contiguous copy of another type; numbers too large for it become infinite."""
    copy = np.array(features, dtype=np.float32 if features.dtype != np.float16 else None, order="C")
    if copy.dtype == np.dtype(dtype):
        return copy
    try:
        import torch
    except ModuleNotFoundError:
        with np.errstate(over="ignore"):
            return copy.astype(dtype)
    # numpy takes ten times as long for float16, because features after a ReLU mispredict its branches. torch would
    # wake all its threads for a larger piece, which costs more than the work where other processes run.
    converted = np.empty_like(copy, dtype=dtype)
    source, target = torch.from_numpy(copy).view(-1), torch.from_numpy(converted).view(-1)
    for start in range(0, len(source), PIECE):
        target[start : start + PIECE] = source[start : start + PIECE]
    return converted


def _check_boxes(boxes: npt.NDArray[np.float32], count: int, where: str) -> npt.NDArray[np.float32]:
    checked = np.ascontiguousarray(boxes, dtype=np.float32)
    if checked.shape != (count, 4) or not np.isfinite(checked).all():
        raise FeatureError(f"{where}: boxes must be finite numbers [{count}, 4], got shape {checked.shape}")
    low, high = float(checked.min()), float(checked.max())
    if low < -_BOX_SLACK or high > 1 + _BOX_SLACK:
        raise FeatureError(f"{where}: boxes must be fractions of the picture (0 to 1), got {low:.4g} to {high:.4g}")
    if (checked[:, 2:] < checked[:, :2]).any():
        raise FeatureError(f"{where}: a box must be x0 y0 x1 y1 with x0 ≤ x1 and y0 ≤ y1")
    return np.clip(checked, 0.0, 1.0)
