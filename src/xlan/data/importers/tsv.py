"""Bottom-up attention's TSV: one image per line, arrays as base64 of little-endian float32.

Six columns, as Anderson et al. released them (36 or 10-100 boxes per image):

    image_id  image_w  image_h  num_boxes  boxes  features

Ten columns, as LXMERT ships them:

    img_id  img_h  img_w  objects_id  objects_conf  attrs_id  attrs_conf  num_boxes  boxes  features
"""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlan.data.importers.entries import MAX_ARRAY_BYTES, Bad, Entry, Found
from xlan.errors import FeatureError

MAX_LINE_BYTES = 2 * MAX_ARRAY_BYTES
_BUFFER = 4 << 20  # lines are hundreds of kilobytes long
_COLUMNS = {
    6: ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features"),
    10: (
        *("image_id", "image_h", "image_w", "objects_id", "scores"),
        *("attrs_id", "attrs_conf", "num_boxes", "boxes", "features"),
    ),
}


def is_tsv(name: str) -> bool:
    """Whether a file name is one of such files: `x.tsv`, or a part `x.tsv.3`."""
    return re.search(r"\.tsv(\.\d+)?$", name.lower()) is not None


class TsvFiles:
    """One or several such files, read line by line."""

    form = "bottom-up TSV"
    parallel = False  # base64 holds Python's lock, so threads would only wait for each other

    def __init__(self, files: list[Path]) -> None:
        if not files:
            raise FeatureError("no .tsv files to import")
        self._files = files

    @property
    def total_bytes(self) -> int:
        """Sum of the sizes of the files."""
        return sum(path.stat().st_size for path in self._files)

    def entries(self) -> Iterator[Entry | Bad]:
        """One entry per line."""
        done = 0
        for path in self._files:
            with path.open("rb", buffering=_BUFFER) as file:
                number = 0
                while line := file.readline(MAX_LINE_BYTES + 1):
                    number += 1
                    if number == 1:
                        line = line.removeprefix(codecs.BOM_UTF8)
                    done += len(line)
                    where = f"{path}, line {number}"
                    if len(line) > MAX_LINE_BYTES:
                        # There is no telling where the next line starts without reading on: give up on this
                        # file.
                        yield Bad(where, f"longer than {MAX_LINE_BYTES:,} bytes; the rest of the file is left out")
                        break
                    if line.strip():
                        yield _entry(line, where, done)


def _entry(line: bytes, where: str, done: int) -> Entry | Bad:
    parts = line.rstrip(b"\r\n").split(b"\t")
    columns = _COLUMNS.get(len(parts))
    if columns is None:
        return Bad(where, f"expected 6 columns (or LXMERT's 10), got {len(parts)}")
    fields = dict(zip(columns, parts, strict=True))
    try:
        image_id = fields["image_id"].decode("utf-8").strip()
    except UnicodeDecodeError:
        return Bad(where, "the image id is not text")
    if not image_id:
        return Bad(where, "the image id is empty")
    return Entry(image_id, where, lambda: _read(fields), done)


def _read(fields: dict[str, bytes]) -> Found:
    try:
        width, height, count = (int(fields[name]) for name in ("image_w", "image_h", "num_boxes"))
    except ValueError:
        raise FeatureError("image_w, image_h and num_boxes must be whole numbers") from None
    features, boxes = _floats(fields, "features"), _floats(fields, "boxes")
    if count < 1 or boxes.size != 4 * count or features.size % count:
        raise FeatureError(f"says {count} boxes, but has {boxes.size / 4:g} boxes and {features.size:,} numbers")
    scores = _floats(fields, "scores") if "scores" in fields else None
    return Found(features.reshape(count, -1), boxes.reshape(count, 4), scores, width, height)


def _floats(fields: dict[str, bytes], name: str) -> npt.NDArray[np.float32]:
    try:
        data = binascii.a2b_base64(fields[name])
    except binascii.Error as error:
        raise FeatureError(f"{name} are not base64: {error}") from None
    if len(data) % 4:
        raise FeatureError(f"{name} are cut short ({len(data):,} bytes are not whole float32 numbers)")
    return np.frombuffer(data, dtype="<f4")
