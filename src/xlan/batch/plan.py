"""The plan of a job: which pictures belong to which shard, written before the first picture is opened.

    OUTPUT/_job/plan.parquet     a row per picture, a row group per shard
    OUTPUT/_job/manifest.json    what is computed with which model and options, and a hash of the plan

Workers read the row group of their shard. The hash tells whether the input is still what it was.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from xlan.batch.items import Item
from xlan.batch.storage import Storage, reason
from xlan.batch.tables import arrow
from xlan.errors import DataError

FOLDER = "_job"  # readers of Parquet folders skip names that begin with _
PLAN = f"{FOLDER}/plan.parquet"
MANIFEST = f"{FOLDER}/manifest.json"
FORMAT = "xlan-batch"
VERSION = 1
_SHOWN = 3


@dataclass(frozen=True)
class Manifest:
    """What a job is.

    Attributes:
        kind: `caption` or `features`.
        inputs: what the user named.
        made_with: model and options, as JSON values: what determines the result.
        pictures: how many there are.
        shards: how many shards they are in.
        shard_size: pictures of a shard, but for the last.
        listing: SHA-256 of all rows of the plan.
    """

    kind: str
    inputs: list[str]
    made_with: dict[str, Any]
    pictures: int
    shards: int
    shard_size: int
    listing: str


def write_plan(storage: Storage, items: Iterable[Item], *, shard_size: int, unique_ids: bool) -> tuple[int, int, str]:
    """Write the plan; returns the number of pictures, the number of shards and the hash of the listing.

    Args:
        storage: the output.
        items: all pictures in order; one shard of them is in memory at a time.
        shard_size: pictures of a shard.
        unique_ids: refuse two pictures with the same id, as a feature store must.

    Raises:
        DataError: two pictures have the same id, or the plan cannot be written.
    """
    pa = arrow()
    seen: set[bytes] = set()
    digest, pictures, shards = hashlib.sha256(), 0, 0
    folder = None
    try:
        if storage.local is not None:
            (storage.local / FOLDER).mkdir(parents=True, exist_ok=True)
            folder = storage.local / FOLDER
        with tempfile.TemporaryDirectory(prefix=".plan-", suffix=".tmp", dir=folder) as temporary:
            path = Path(temporary) / "plan.parquet"
            with pa.parquet.ParquetWriter(path, _schema()) as writer:
                for group in _groups(items, shard_size):
                    if unique_ids:
                        _check_ids(group, seen)
                    for item in group:
                        digest.update(_line(item))
                    writer.write_table(_table(group), row_group_size=shard_size)
                    pictures, shards = pictures + len(group), shards + 1
            storage.put(path, PLAN)
    except OSError as error:
        raise DataError(f"{storage.shown(PLAN)}: cannot be written: {reason(error)}") from None
    return pictures, shards, digest.hexdigest()


def _groups(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while group := list(islice(remaining, size)):
        yield group


def _check_ids(group: Sequence[Item], seen: set[bytes]) -> None:
    for item in group:
        key = hashlib.blake2b(item.id.encode(), digest_size=16).digest()
        if key in seen:
            raise DataError(
                f"{item.name}: another picture has the id {item.id!r} too; rename one, or make two feature stores"
            )
        seen.add(key)


def _line(item: Item) -> bytes:
    return json.dumps([getattr(item, field.name) for field in fields(Item)]).encode() + b"\n"


def listing_hash(items: Iterable[Item]) -> str:
    """The hash that `write_plan` gives for these pictures."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(_line(item))
    return digest.hexdigest()


def _schema() -> Any:
    pa = arrow()
    kinds = {"str": pa.string(), "int": pa.int64()}
    named = {field.name: kinds[str(field.type)] for field in fields(Item)}
    return pa.schema(list({**named, "place": pa.binary()}.items()))  # a path may hold bytes that are not text


def _table(group: Sequence[Item]) -> Any:
    values = {field.name: [getattr(item, field.name) for item in group] for field in fields(Item)}
    values["place"] = [place.encode("utf-8", "surrogateescape") for place in values["place"]]
    return arrow().table(values, schema=_schema())


def read_shard(storage: Storage, number: int) -> list[Item]:
    """The pictures of one shard.

    Raises:
        DataError: the plan is missing or damaged.
    """
    return next(_read_groups(storage, [number]))


def read_plan(storage: Storage) -> Iterator[Item]:
    """All pictures of a plan, a shard of them in memory at a time.

    Raises:
        DataError: the plan is missing or damaged.
    """
    for group in _read_groups(storage, None):
        yield from group


def _read_groups(storage: Storage, numbers: Sequence[int] | None) -> Iterator[list[Item]]:
    try:
        with storage.open(PLAN) as file:
            plan = arrow().parquet.ParquetFile(file)
            for number in range(plan.num_row_groups) if numbers is None else numbers:
                rows = plan.read_row_group(number, use_threads=False).to_pylist()
                yield [Item(**{**row, "place": row["place"].decode("utf-8", "surrogateescape")}) for row in rows]
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{storage.shown(PLAN)}: is not the plan of a job: {reason(error)}") from None


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Write the manifest: from then on, the job exists.

    Raises:
        DataError: it cannot be written.
    """
    value = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    storage.write(MANIFEST, json.dumps(value, indent=2).encode() + b"\n")


def read_manifest(storage: Storage) -> Manifest | None:
    """The manifest of an output; None when there is no job yet.

    Raises:
        DataError: there is a file of that name that is not one.
    """
    content = storage.read(MANIFEST)
    if content is None:
        return None
    where = storage.shown(MANIFEST)
    try:
        value = json.loads(content)
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}")
        if value["version"] != VERSION:
            raise DataError(f"{where}: version {value['version']!r}, expected {VERSION}; update xlan")
        found = Manifest(**{field.name: value[field.name] for field in fields(Manifest)})
        kinds = {"str": str, "int": int, "list[str]": list, "dict[str, Any]": dict}
        if wrong := [f.name for f in fields(Manifest) if not isinstance(getattr(found, f.name), kinds[str(f.type)])]:
            raise ValueError(f"{wrong[0]} is {getattr(found, wrong[0])!r:.40}")
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: is not the manifest of a job ({error}); choose another output") from None


def difference(before: Iterable[Item], now: Iterable[Item]) -> str:
    """What changed between two listings, in a few words. Both are in memory; only called when they differ."""
    old = {item.name: (item.version, item.offset, item.size) for item in before}
    new = {item.name: (item.version, item.offset, item.size) for item in now}
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    changed = [name for name in new if name in old and old[name] != new[name]]
    parts = [
        f"{len(names):,} {what} ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})"
        for names, what in ((added, "added"), (removed, "removed"), (changed, "changed"))
        if names
    ]
    return ", ".join(parts) or "their order changed"
