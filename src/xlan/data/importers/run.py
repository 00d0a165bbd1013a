"""Import feature files of any known form into a feature store.

Entries that cannot be used are counted and listed with their reasons in `import-report.json` inside the
store; nothing is skipped silently. An interrupted import resumes when it is started again.
Memory is that of one shard and a few images, whatever the size of the source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from xlan.ahead import map_ahead
from xlan.data.importers.entries import Bad, Entry, Found, Source, to_regions
from xlan.data.importers.folders import ArrayFolder
from xlan.data.importers.hdf5 import HDF5_MAGIC, Hdf5File
from xlan.data.importers.tsv import TsvFiles, is_tsv
from xlan.errors import FeatureError
from xlan.files import write_json
from xlan.vision.shards import FeatureDtype
from xlan.vision.store import DEFAULT_SHARD_BYTES, FeatureStoreWriter

Form = Literal["auto", "tsv", "npz", "npy", "hdf5"]
REPORT_NAME = "import-report.json"
_HDF5_ENDINGS = (".h5", ".hdf5", ".hdf")


@dataclass
class ImportReport:
    """How an import went.

    Attributes:
        source: what was imported.
        form: as it was found to be.
        imported: images added to the store.
        already_there: images the store had from an import before.
        without_boxes: images that were added without usable boxes (none in the file, or pixels of unknown
            pictures).
        left_out: entries that could not be used, each with its reason.
    """

    source: str
    form: str
    imported: int = 0
    already_there: int = 0
    without_boxes: int = 0
    left_out: list[Bad] = field(default_factory=list)


def find_source(path: Path, *, form: Form = "auto", boxes: Path | None = None) -> Source:
    """The source at `path`, its form found out by its files when `form` is "auto"."""
    if not path.exists():
        raise FeatureError(f"{path}: no such file or folder")
    if boxes is not None and not boxes.is_dir():
        raise FeatureError(f"{boxes}: no such folder of boxes")
    chosen = _detect(path) if form == "auto" else form
    if chosen == "tsv":
        return TsvFiles(sorted(item for item in path.iterdir() if is_tsv(item.name)) if path.is_dir() else [path])
    if chosen == "hdf5":
        return Hdf5File(_hdf5_files(path)[0] if path.is_dir() and _hdf5_files(path) else path)
    if not path.is_dir():
        raise FeatureError(f"{path}: expected a folder of .{chosen} files, one per image")
    return ArrayFolder(path, suffix=f".{chosen}", boxes=boxes)


def _detect(path: Path) -> Form:
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(HDF5_MAGIC)) == HDF5_MAGIC:
                return "hdf5"
        if is_tsv(path.name):
            return "tsv"
        raise FeatureError(f"{path}: expected a .tsv or HDF5 file, or a folder of .npz or .npy files")
    forms: set[Form] = set()
    for _, _, names in os.walk(path):
        forms.update("tsv" for name in names if is_tsv(name))
        forms.update("npz" for name in names if name.endswith(".npz"))
        forms.update("npy" for name in names if name.endswith(".npy"))
        forms.update("hdf5" for name in names if name.endswith(_HDF5_ENDINGS))
        if len(forms) > 1:
            raise FeatureError(f"{path}: holds {' and '.join(sorted(forms))} files; choose one with --format")
    if not forms:
        raise FeatureError(f"{path}: no .tsv, .npz, .npy or HDF5 files in it")
    if forms == {"hdf5"} and len(_hdf5_files(path)) != 1:
        raise FeatureError(f"{path}: expected one HDF5 file in the folder; name the one to import")
    return forms.pop()


def _hdf5_files(path: Path) -> list[Path]:
    return sorted(item for item in path.iterdir() if item.name.endswith(_HDF5_ENDINGS))


def import_features(
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    form: Form = "auto",
    dtype: FeatureDtype = "float16",
    max_regions: int | None = None,
    boxes: str | os.PathLike[str] | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Import features into a store.

    Args:
        source: file or folder.
        store: folder of the store; an interrupted import resumes.
        form: of the source; "auto" looks at it.
        dtype: of the stored features.
        max_regions: keep at most this many regions of an image (None: all).
        boxes: folder with `<id>.npy` boxes, for features that come without.
        shard_bytes: size of a shard.
        threads: readers for folders; None for as many as pays.
        on_progress: called with bytes done and bytes in all.

    Raises:
        FeatureError: the source is unusable as a whole, or the store cannot be written.
    """
    if max_regions is not None and max_regions < 1:
        raise FeatureError(f"max_regions must be at least 1, got {max_regions}")
    found = find_source(Path(source), form=form, boxes=None if boxes is None else Path(boxes))
    report = ImportReport(str(source), found.form)
    extractor = {
        "name": "import",
        "form": found.form,
        "source": Path(source).resolve().name,
        "max_regions": max_regions,
    }
    total = found.total_bytes
    with FeatureStoreWriter(store, dtype=dtype, shard_bytes=shard_bytes, extractor=extractor) as writer:
        before = writer.done_ids
        workers = threads or (min(8, (os.cpu_count() or 1) + 1) if found.parallel else 1)
        for entry, result in _read_ahead(_unseen(found, before, report), workers if found.parallel else 1):
            if isinstance(result, Found):
                _add(writer, entry, result, max_regions, report)
            else:
                report.left_out.append(Bad(entry.where, result))
            if on_progress:
                on_progress(entry.progress, total)
        if not len(writer):
            raise FeatureError(_nothing(report))
    write_json(Path(store) / REPORT_NAME, asdict(report))
    return report


def _nothing(report: ImportReport) -> str:
    first = f"; the first: {report.left_out[0].where}: {report.left_out[0].reason}" if report.left_out else ""
    return f"{report.source}: none of the {len(report.left_out):,} entries could be imported{first}"


def _unseen(source: Source, before: frozenset[str], report: ImportReport) -> Iterator[Entry]:
    for entry in source.entries():
        if isinstance(entry, Bad):
            report.left_out.append(entry)
        elif entry.image_id in before:
            report.already_there += 1
        else:
            yield entry


def _add(writer: FeatureStoreWriter, entry: Entry, found: Found, max_regions: int | None, report: ImportReport) -> None:
    if entry.image_id in writer:
        report.left_out.append(Bad(entry.where, f"image {entry.image_id!r} appears twice in the source"))
        return
    try:
        regions, usable_boxes = to_regions(found, max_regions=max_regions)
        writer.add(entry.image_id, regions)
    except FeatureError as error:
        report.left_out.append(Bad(entry.where, str(error)))
        return
    report.imported += 1
    report.without_boxes += not usable_boxes


def _read_ahead(entries: Iterator[Entry], workers: int) -> Iterator[tuple[Entry, Found | str]]:
    """Entries with their arrays or the reason why not, in order, a few read ahead on other threads."""
    if workers == 1:
        yield from map(_try, entries)
    else:
        yield from map_ahead(_try, entries, threads=workers, ahead=2 * workers)


def _try(entry: Entry) -> tuple[Entry, Found | str]:
    try:
        return entry, entry.read()
    except FeatureError as error:
        return entry, str(error)
