"""The feature store: features of many images in one folder, written once and read by many processes.

    store/
      index.json                   format, dtype, width, extractor, and the name, size and hash of every shard
      features-00000.safetensors   see `xlan.vision.shards`
      features-00001.safetensors   …

A shard is written under a temporary name, flushed, renamed, and only then named by the index, which is
replaced in one step too. A writer killed at any moment therefore loses at most the shard it was filling; the
next writer on the same folder continues from there (`done_ids` lists what it can skip).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from xlan.errors import DataError, FeatureError
from xlan.files import file_sha256, open_locked, read_json, write_json
from xlan.types import Regions
from xlan.vision.shards import (
    FEATURE_DTYPES,
    FeatureDtype,
    Shard,
    ShardInfo,
    check_regions,
    to_8_bits,
    write_shard,
)

INDEX_NAME = "index.json"
STORE_FORMAT = "xlan-features"
STORE_VERSION = 1
DEFAULT_SHARD_BYTES = 128 << 20


class FeatureStoreWriter:
    """Write features of images to a new store, or continue an incomplete one.

    Args:
        path: folder of the store; created if needed. A folder with other files in it is refused.
        dtype: how features are kept. float16 halves the disk and is finer than what extractors resolve; int8 halves it
            again, with values that are off by up to a 510th of a region's range.
        shard_bytes: a shard is written when it holds this many bytes of features; also the memory that is
            needed.
        extractor: what made the features (name, version, settings …), kept in the index. Continuing a store
            of another extractor is refused.

    Used as a context manager it closes itself; after an exception the features so far are kept and the store
    stays marked as incomplete.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: FeatureDtype = "float16",
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        extractor: Mapping[str, Any] | None = None,
    ) -> None:
        if dtype not in FEATURE_DTYPES:
            raise FeatureError(f"features are kept as {', '.join(FEATURE_DTYPES)}, got {dtype!r}")
        if shard_bytes < 1:
            raise FeatureError(f"shard_bytes must be at least 1, got {shard_bytes}")
        self.path = Path(path)
        self.dtype: FeatureDtype = dtype
        self.shard_bytes = shard_bytes
        self.extractor: dict[str, Any] = json.loads(json.dumps(dict(extractor or {})))
        self._width = 0
        self._shards: list[ShardInfo] = []
        self._done: set[str] = set()
        self._ids: list[str] = []
        self._pending: list[Regions] = []
        self._steps: list[npt.NDArray[np.float32]] = []
        self._pending_bytes = 0
        self._closed = False
        self._lock: int | None = _claim(self.path)
        try:
            if (self.path / INDEX_NAME).exists():
                self._continue()
            else:
                self._begin()
        except BaseException:
            self._release()
            raise

    def _begin(self) -> None:
        foreign = [item.name for item in self.path.iterdir() if not _is_ours(item.name)]
        if foreign:
            raise FeatureError(f"{self.path}: expected an empty folder or a feature store, but it holds {foreign[0]!r}")
        self._write_index(complete=False)

    def _continue(self) -> None:
        store = FeatureStore(self.path)
        if not len(store):  # interrupted before the first shard
            return
        if store.dtype != self.dtype:
            raise FeatureError(f"{self.path}: holds {store.dtype} features, cannot continue with {self.dtype}")
        if store.extractor != self.extractor:
            raise FeatureError(
                f"{self.path}: was made with extractor {store.extractor}, cannot continue with "
                f"{self.extractor}; choose another folder"
            )
        self._width, self._shards, self._done = store.feature_dim, list(store.shards), set(store.ids)
        named = {shard.file for shard in self._shards}
        for item in self.path.iterdir():  # what a killed writer left
            if _is_ours(item.name) and item.name not in (*named, INDEX_NAME, _LOCK_NAME):
                item.unlink(missing_ok=True)

    @property
    def done_ids(self) -> frozenset[str]:
        """Ids that are already in the store, from this writer and from those before it."""
        return frozenset(self._done)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._done

    def __len__(self) -> int:
        return len(self._done)

    def add(self, image_id: str, regions: Regions) -> None:
        """Add the features of one image (`[N, D]`, N at least 1, D the same for all images of the store).

        Raises:
            FeatureError: the id is already in the store, or the arrays are not what `Regions` says; the store is
                then as if `add` had not been called.
        """
        if self._closed:
            raise FeatureError(f"{self.path}: the writer is closed")
        if not isinstance(image_id, str) or not image_id:
            raise FeatureError(f"an image id is a string that is not empty, got {image_id!r}")
        if not is_text(image_id):
            raise FeatureError(
                f"image id {image_id!r} is not Unicode text (a file name in an old encoding?); rename it"
            )
        if image_id in self._done:
            raise FeatureError(f"image {image_id!r} is already in the store")
        checked = check_regions(regions, image_id=image_id, dtype=self.dtype, width=self._width)
        self._width = int(checked.features.shape[1])
        self._done.add(image_id)
        self._ids.append(image_id)
        if self.dtype == "int8":
            codes, steps = to_8_bits(np.asarray(checked.features, dtype=np.float32))
            checked = replace(checked, features=cast("npt.NDArray[Any]", codes))
            self._steps.append(steps)
        self._pending.append(checked)
        self._pending_bytes += checked.features.nbytes
        if self._pending_bytes >= self.shard_bytes:
            self.flush()

    def flush(self, *, complete: bool = False) -> None:
        """Write what was added since the last shard, as a shard of its own."""
        try:
            if self._ids:
                path = self.path / f"features-{len(self._shards):05d}.safetensors"
                self._shards.append(write_shard(path, self._ids, self._pending, self._steps or None))
                self._ids, self._pending, self._steps, self._pending_bytes = [], [], [], 0
            self._write_index(complete=complete)
        except OSError as error:
            raise FeatureError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Write what is left and mark the store as complete. Calling it again does nothing."""
        if not self._closed:
            self._finish(complete=True)

    def _finish(self, *, complete: bool) -> None:
        self._closed = True
        try:
            self.flush(complete=complete)
        finally:
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> FeatureStoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self._finish(complete=error is None)

    def _write_index(self, *, complete: bool) -> None:
        write_json(
            self.path / INDEX_NAME,
            store_index(self._shards, dtype=self.dtype, width=self._width, extractor=self.extractor, complete=complete),
        )


def store_index(
    shards: Sequence[ShardInfo], *, dtype: str, width: int, extractor: Mapping[str, Any], complete: bool
) -> dict[str, Any]:
    """The content of `index.json`.

    Args:
        shards: those of the store, in order.
        dtype: how features are kept.
        width: of every feature; 0 for a store without shards.
        extractor: what made the features.
        complete: whether nothing is missing.
    """
    return {
        "format": STORE_FORMAT,
        "version": STORE_VERSION,
        "complete": complete,
        "dtype": dtype,
        "width": width,
        "images": sum(shard.images for shard in shards),
        "regions": sum(shard.regions for shard in shards),
        "extractor": dict(extractor),
        "shards": [asdict(shard) for shard in shards],
    }


class FeatureStore:
    """A feature store opened for reading; `store[image_id]` gives `Regions`, views of the mapped files.

    A store may be pickled to worker processes (each maps the files itself), inherited by forked ones, and
    read while a writer adds to it (the reader sees what was there when it opened).

    Raises:
        FeatureError: the folder is not a store, or a shard is missing, truncated or foreign.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        index = _read_index(self.path)
        self.dtype: str = index["dtype"]
        self.feature_dim: int = index["width"]
        self.complete: bool = index["complete"]
        self.extractor: dict[str, Any] = index["extractor"]
        self.shards: list[ShardInfo] = index["shards"]
        self._open()

    def _open(self) -> None:
        self._files = [Shard(self.path / info.file, info) for info in self.shards]
        self._where: dict[str, tuple[int, int]] = {}
        for number, shard in enumerate(self._files):
            if shard.features.shape[1] != self.feature_dim or shard.features.dtype != FEATURE_DTYPES[self.dtype]:
                raise FeatureError(
                    f"{shard.path}: expected {self.dtype} features of width {self.feature_dim}, "
                    f"got {shard.features.dtype} of width {shard.features.shape[1]}"
                )
            self._where.update((image_id, (number, row)) for row, image_id in enumerate(shard.ids))
        if len(self._where) != sum(info.images for info in self.shards):
            raise FeatureError(f"{self.path}: an image is in more than one shard; make the store again")

    def __getitem__(self, image_id: str) -> Regions:
        number, row = self._find(image_id)
        return self._files[number].regions(row)

    def _find(self, image_id: str) -> tuple[int, int]:
        try:
            return self._where[image_id]
        except KeyError:
            raise FeatureError(f"{self.path}: no features for image {image_id!r} among {len(self):,} images") from None

    def region_count(self, image_id: str) -> int:
        """Number of regions of an image, without reading its features."""
        number, row = self._find(image_id)
        return self._files[number].count(row)

    @property
    def ids(self) -> Sequence[str]:
        """Ids in the order they were written."""
        return tuple(self._where)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_files", "_where")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def verify(self) -> Iterator[tuple[ShardInfo, str | None]]:
        """Read every byte: for each shard its entry in the index and what is wrong with it, or None."""
        for info, shard in zip(self.shards, self._files, strict=True):
            yield info, _fault(info, shard)


def _fault(info: ShardInfo, shard: Shard) -> str | None:
    if file_sha256(shard.path) != info.sha256:
        return f"{shard.path}: the contents changed since they were written (sha256 differs)"
    for row, image_id in enumerate(shard.ids):
        regions = shard.regions(row)
        if not (np.isfinite(regions.features).all() and np.isfinite(regions.boxes).all()):
            return f"{shard.path}: image {image_id!r} has features or boxes that are not finite"
    return None


def is_text(name: str) -> bool:
    """Whether UTF-8 can hold a name; names of files may have bytes that no text has."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


_LOCK_NAME = ".writing.lock"


def _is_ours(name: str) -> bool:
    shard = name.startswith(("features-", ".features-")) and name.endswith((".safetensors", ".tmp"))
    return shard or name in (INDEX_NAME, _LOCK_NAME) or name.startswith(f".{INDEX_NAME}.")


def _claim(path: Path) -> int:
    """Make the folder and lock it against a second writer; the lock dies with the process."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        return open_locked(path / _LOCK_NAME)
    except BlockingIOError:
        raise FeatureError(f"{path}: another process is writing to this store") from None
    except OSError as error:
        raise FeatureError(f"{path}: cannot be written: {error.strerror or error}") from None


def _read_index(path: Path) -> dict[str, Any]:
    if not (path / INDEX_NAME).is_file():
        found = "no such folder" if not path.exists() else f"no {INDEX_NAME} in it"
        raise FeatureError(
            f"{path}: not a feature store ({found}); make one with: xlan features import SOURCE -o STORE"
        )
    try:
        value = read_json(path / INDEX_NAME)
    except DataError as error:
        raise FeatureError(str(error)) from None
    if not isinstance(value, dict) or value.get("format") != STORE_FORMAT:
        raise FeatureError(f"{path / INDEX_NAME}: not the index of a feature store")
    if value.get("version") != STORE_VERSION:
        raise FeatureError(f"{path}: store version {value.get('version')!r}, expected {STORE_VERSION}; update xlan")
    kinds: dict[str, type] = {"dtype": str, "width": int, "complete": bool, "extractor": dict, "shards": list}
    for key, kind in kinds.items():
        if type(value.get(key)) is not kind:
            raise FeatureError(f"{path / INDEX_NAME}: {key!r} must be a {kind.__name__}, got {value.get(key)!r:.40}")
    if value["dtype"] not in FEATURE_DTYPES or value["width"] < 0:
        known = ", ".join(FEATURE_DTYPES)
        raise FeatureError(f"{path / INDEX_NAME}: dtype must be one of {known}, and width not negative")
    value["shards"] = [_shard_info(entry, path / INDEX_NAME) for entry in value["shards"]]
    return value


def _shard_info(entry: Any, where: Path) -> ShardInfo:
    names = {field.name: {"int": int, "str": str}[str(field.type)] for field in fields(ShardInfo)}
    if not isinstance(entry, dict) or not all(type(entry.get(name)) is kind for name, kind in names.items()):
        raise FeatureError(f"{where}: each shard needs {', '.join(names)}")
    info = ShardInfo(**{name: entry[name] for name in names})
    # A name with a folder in it could point anywhere on the disk.
    if Path(info.file).name != info.file or not info.file.endswith(".safetensors"):
        raise FeatureError(f"{where}: shard name {info.file!r} is not a plain file name")
    return info
