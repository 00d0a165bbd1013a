"""Finished shards: the file, and beside the plan a marker that says it is complete.

    OUTPUT/part-00012.parquet                                 captions, or features-s00012.safetensors
    OUTPUT/_job/done/00012_rows-512_errors-3_bytes-48213.json the marker

The file comes first, then the marker. A shard without a marker, or whose file has another size than the marker says,
is not done. What a shard holds depends on the plan alone, so two workers that finish the same one write the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xlan.batch.plan import FOLDER
from xlan.batch.storage import Storage
from xlan.errors import DataError

DONE = f"{FOLDER}/done"
_NAME = re.compile(r"(\d{5,})_rows-(\d+)_errors-(\d+)_bytes-(\d+)\.json")


@dataclass(frozen=True)
class DoneShard:
    """A finished shard.

    Attributes:
        number: which one.
        rows: pictures in it, with those that could not be used.
        errors: pictures that could not be used.
        bytes: size of its file; 0 when no picture of a shard of features could be used and there is none.
    """

    number: int
    rows: int
    errors: int
    bytes: int

    @property
    def marker(self) -> str:
        """Name of the marker."""
        return f"{DONE}/{self.number:05d}_rows-{self.rows}_errors-{self.errors}_bytes-{self.bytes}.json"


def file_name(kind: str, number: int) -> str:
    """Name of a shard's file."""
    return f"part-{number:05d}.parquet" if kind == "caption" else f"features-s{number:05d}.safetensors"


def is_shard(name: str) -> bool:
    """Whether a file is that of a shard by its name."""
    return re.fullmatch(r"part-\d{5,}\.parquet|features-s\d{5,}\.safetensors", name) is not None


def commit(storage: Storage, shard: DoneShard, about: Mapping[str, Any]) -> None:
    """Mark a shard's file as complete.

    Raises:
        DataError: the marker cannot be written.
    """
    storage.write(shard.marker, json.dumps(dict(about)).encode() + b"\n")


def done_shards(storage: Storage, kind: str) -> dict[int, DoneShard]:
    """The finished shards by number, from two listings.

    Raises:
        DataError: the output cannot be listed.
    """
    sizes = storage.sizes()
    found: dict[int, DoneShard] = {}
    for name in sorted(storage.sizes(DONE)):
        if parts := _NAME.fullmatch(name):
            shard = DoneShard(*(int(part) for part in parts.groups()))
            if not shard.bytes or sizes.get(file_name(kind, shard.number)) == shard.bytes:
                found[shard.number] = shard
    return found


def markers(storage: Storage, shards: Mapping[int, DoneShard]) -> Iterator[tuple[DoneShard, dict[str, Any]]]:
    """The shards in order, each with what `commit` recorded about it.

    Raises:
        DataError: a marker cannot be read.
    """
    for number in sorted(shards):
        content = storage.read(shards[number].marker)
        try:
            value = json.loads(content or b"")
            if not isinstance(value, dict):
                raise ValueError
        except ValueError:
            where = storage.shown(shards[number].marker)
            raise DataError(f"{where}: is damaged; remove it, and the same command makes the shard again") from None
        yield shards[number], value
