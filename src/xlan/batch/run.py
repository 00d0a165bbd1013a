"""A job from beginning to end: plan, hand out the shards that are not done, finish.

Killed at any moment, the same call continues: shards that are done stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from xlan.batch.executors import Executor
from xlan.batch.items import Item
from xlan.batch.job import Job, made_with
from xlan.batch.plan import (
    FOLDER,
    PLAN,
    Manifest,
    difference,
    listing_hash,
    read_manifest,
    read_plan,
    write_manifest,
    write_plan,
)
from xlan.batch.shards import DONE, DoneShard, done_shards, file_name, is_shard, markers
from xlan.batch.sources import list_items
from xlan.batch.storage import Storage
from xlan.errors import BatchError, DataError, FeatureError
from xlan.files import open_locked, remove_leftovers
from xlan.vision.shards import ShardInfo
from xlan.vision.store import INDEX_NAME, store_index

SUMMARY = f"{FOLDER}/summary.json"
SKIPPED = f"{FOLDER}/skipped.txt"
LOCK = ".lock"


@dataclass
class BatchReport:
    """What a call did.

    Attributes:
        pictures: of the whole job.
        errors: pictures of the whole job that could not be used.
        shards: of the whole job.
        already_done: shards that earlier calls had made.
        made: pictures this call handled.
        seconds: time this call spent on them.
        changed: what changed in the input during the job, in words; empty when nothing did.
    """

    pictures: int = 0
    errors: int = 0
    shards: int = 0
    already_done: int = 0
    made: int = 0
    seconds: float = 0.0
    changed: str = ""


def run_batch(
    job: Job,
    inputs: Sequence[str],
    executor: Executor,
    *,
    shard_size: int = 512,
    column: str | None = None,
    id_column: str | None = None,
    keep_plan: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    on_plan: Callable[[Manifest, bool], None] | None = None,
) -> BatchReport:
    """Run a job, or complete one that was interrupted.

    Args:
        job: what to compute.
        inputs: where the pictures are; see `xlan.batch.sources`.
        executor: who computes.
        shard_size: pictures of a shard; of an existing job, its own stays.
        column: the column of tables that holds the pictures.
        id_column: the column of tables that holds ids.
        keep_plan: complete the plan of an existing job even if the input changed since.
        overwrite: remove an existing job first.
        on_progress: called with how many pictures are done, and how many there are.
        on_plan: called with the plan, and whether it is that of an existing job.

    Raises:
        DataError: the input or the output cannot be used, or the output was made with another model or options.
        BatchError: no worker can start, or a shard cannot be made; those that are done stay.
    """

    def listed() -> Iterator[Item]:
        return list_items(inputs, column=column, id_column=id_column)

    storage = Storage(job.output)
    with _locked(storage):
        if overwrite:
            _remove(storage)
        job = replace(job, made_with=json.loads(json.dumps(made_with(job))))
        manifest = read_manifest(storage)
        is_new = manifest is None
        if manifest is None:
            manifest = _plan(storage, job, inputs, listed(), shard_size)
        else:
            _check_same(storage, manifest, job)
            if not keep_plan:
                _check_listing(storage, manifest, listed)
        if on_plan is not None:
            on_plan(manifest, not is_new)
        report = _work(storage, job, manifest, executor, on_progress)
        if not keep_plan:
            try:
                report.changed = _changed(storage, manifest, listed)
            except DataError as error:  # the input is gone; what was made of it is not
                report.changed = str(error)
        _finish(storage, job, manifest, report)
        return report


@contextlib.contextmanager
def _locked(storage: Storage) -> Iterator[None]:
    """Lock out a second run on this machine, and clean up after a killed one."""
    if storage.local is None:  # nothing to lock there; two runs would only do the same work twice
        yield
        return
    storage.make()
    try:
        handle = open_locked(storage.local / LOCK)
    except BlockingIOError:
        raise DataError(f"{storage.place}: another process is writing to this output") from None
    except OSError as error:
        raise DataError(f"{storage.place}: cannot be written: {error.strerror or error}") from None
    try:
        for folder in ("", FOLDER, DONE):
            remove_leftovers(storage.local / folder)
        yield
    finally:
        os.close(handle)


def _plan(storage: Storage, job: Job, inputs: Sequence[str], items: Iterator[Item], shard_size: int) -> Manifest:
    foreign = [name for name in storage.names() if name not in (FOLDER, LOCK)]
    if foreign:
        raise DataError(f"{storage.place}: expected an empty folder or an earlier job, but it holds {foreign[0]!r}")
    unique = job.kind == "features"
    pictures, shards, listing = write_plan(storage, items, shard_size=shard_size, unique_ids=unique)
    if not pictures:
        raise DataError("no input was given; expected at least one")
    manifest = Manifest(job.kind, list(inputs), job.made_with, pictures, shards, shard_size, listing)
    write_manifest(storage, manifest)
    return manifest


def _check_same(storage: Storage, manifest: Manifest, job: Job) -> None:
    remedy = "use --overwrite to start again, or choose another output"
    if manifest.kind != job.kind:
        raise DataError(f"{storage.place}: holds a job of {manifest.kind}, not of {job.kind}; {remedy}")
    before, now = manifest.made_with, job.made_with
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if "model_sha256" in keys:
        raise DataError(f"{storage.place}: was made with another model; {remedy}")
    if keys:
        changes = ", ".join(f"{key} {before.get(key)!r} and not {now.get(key)!r}" for key in keys)
        raise DataError(f"{storage.place}: was made with {changes}; {remedy}")


def _check_listing(storage: Storage, manifest: Manifest, listed: Callable[[], Iterator[Item]]) -> None:
    if what := _changed(storage, manifest, listed):
        raise DataError(
            f"{storage.place}: the input changed since this job was planned: {what}; --keep-plan completes the plan as "
            "it is, --overwrite starts again"
        )


def _changed(storage: Storage, manifest: Manifest, listed: Callable[[], Iterator[Item]]) -> str:
    """What changed in the input since the plan was made, in words; empty when nothing did."""
    same = manifest.listing == listing_hash(listed())
    return "" if same else difference(read_plan(storage), listed())


def _work(
    storage: Storage,
    job: Job,
    manifest: Manifest,
    executor: Executor,
    on_progress: Callable[[int, int], None] | None,
) -> BatchReport:
    done = done_shards(storage, manifest.kind)
    report = BatchReport(manifest.pictures, shards=manifest.shards, already_done=len(done))
    report.errors = sum(shard.errors for shard in done.values())
    finished = sum(shard.rows for shard in done.values())
    if on_progress is not None:
        on_progress(finished, manifest.pictures)
    failed: list[str] = []
    # Once a shard failed, no further one is handed out; those at hand are completed, so that their work is kept.
    todo = (number for number in range(manifest.shards) if number not in done and not failed)
    if len(done) < manifest.shards:
        began = time.monotonic()
        for answer in executor.run(job, todo):
            if "error" in answer:
                failed.append(answer["error"])
                continue
            report.made += answer["rows"]
            report.errors += answer["errors"]
            report.seconds = time.monotonic() - began
            if on_progress is not None:
                on_progress(finished + report.made, manifest.pictures)
    if failed:
        have = len(done_shards(storage, manifest.kind))
        raise BatchError(f"{failed[0]} ({have:,} of {manifest.shards:,} shards are done and kept)")
    return report


def _finish(storage: Storage, job: Job, manifest: Manifest, report: BatchReport) -> None:
    shards = done_shards(storage, manifest.kind)
    if missing := manifest.shards - len(shards):
        raise BatchError(f"{storage.place}: {missing:,} shards disappeared after they were made; run it again")
    if manifest.kind == "features":
        _index(storage, job, shards)
    summary = {**asdict(report), "complete": True}
    for key in ("already_done", "made", "seconds"):  # of one call, not of the job
        del summary[key]
    storage.write(SUMMARY, json.dumps(summary, indent=2).encode() + b"\n")


def _index(storage: Storage, job: Job, shards: dict[int, DoneShard]) -> None:
    """Write the index that makes a feature store of the shards, and the list of skipped pictures."""
    found: list[ShardInfo] = []
    bad: list[str] = []
    extractor: dict[str, Any] | None = None
    width = 0
    for shard, about in markers(storage, shards):
        bad += about["bad"]
        if extractor not in (None, about["extractor"]):
            raise FeatureError(
                f"{storage.shown(file_name(job.kind, shard.number))}: was made by {about['extractor']}, others by "
                f"{extractor}; use the same network on all machines, and --overwrite to start again"
            )
        extractor = about["extractor"]
        if "shard" in about:
            found.append(ShardInfo(**about["shard"]))
            width = about["width"]
    index = store_index(found, dtype=job.dtype, width=width, extractor=extractor or {}, complete=True)
    storage.write(SKIPPED, "".join(f"{line}\n" for line in bad).encode("utf-8", "backslashreplace"))
    storage.write(INDEX_NAME, json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n")


def _remove(storage: Storage) -> None:
    """Remove an earlier job, and nothing else."""
    if read_manifest(storage) is None:
        return
    storage.remove(DONE)  # first: from then on no shard counts as done
    for name in storage.names():
        if is_shard(name) or name == INDEX_NAME:
            storage.remove(name)
    storage.remove(PLAN)
    storage.remove(FOLDER)
