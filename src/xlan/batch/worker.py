"""A worker: loads the model once and makes one shard after the other.

It speaks in plain dictionaries, the same to every executor: `ready()` and `run(shard)` answer `{"error": line}` when
something is wrong, and never raise. As a program (`python -m xlan.batch.worker`) it reads the job and then numbers of
shards from standard input, a line of JSON each, and answers on standard output. It ends when its standard input
does, and hence also when its parent process is killed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from xlan.batch.job import Job, made_with
from xlan.batch.plan import FOLDER, read_shard
from xlan.batch.read import ShardPictures
from xlan.batch.rows import caption_row, to_parquet
from xlan.batch.shards import DoneShard, commit, file_name
from xlan.batch.storage import Storage
from xlan.errors import ModelError, XlanError
from xlan.pretrained import find_model
from xlan.vision.image import ImageLimits
from xlan.vision.regions import RegionExtractor

Answer = dict[str, Any]


class Worker:
    """Makes shards of a job.

    Args:
        job: what `Job.to_json` gave.
        device: where to compute, instead of where the job says.
    """

    def __init__(self, job: Mapping[str, Any], device: str | None = None) -> None:
        self.job = Job.from_json(job)
        self.device = device or self.job.device
        self._make: Callable[[int, Storage], tuple[DoneShard, dict[str, Any]]] | None = None

    def ready(self) -> Answer:
        """Load the model, unless it is loaded; answers `{"ready": process id}` or an error."""
        return self._answer(lambda: {"ready": os.getpid(), "make": bool(self._load())})

    def run(self, number: int) -> Answer:
        """Make a shard and commit it; answers with the fields of `DoneShard`, or an error."""
        return {**self._answer(lambda: asdict(self._run(number))), "number": number}

    def _answer(self, work: Callable[[], Answer]) -> Answer:
        try:
            return work()
        except XlanError as error:
            return {"error": str(error)}
        except MemoryError:
            return {"error": "out of memory; use fewer workers, a smaller --batch-size or a smaller --shard-size"}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:200]}"}

    def _run(self, number: int) -> DoneShard:
        storage = Storage(self.job.output)
        done, about = self._load()(number, storage)
        commit(storage, done, about)
        return done

    def _load(self) -> Callable[[int, Storage], tuple[DoneShard, dict[str, Any]]]:
        if self._make is None:
            warnings.filterwarnings("ignore", module=r"PIL\.")  # about broken EXIF data and odd palettes
            now = json.loads(json.dumps(made_with(self.job)))
            if changed := [key for key in now if now[key] != self.job.made_with.get(key)]:
                raise ModelError(
                    f"{self.job.model or 'the model of xlan'}: is not the same on every machine, or changed during the "
                    f"job ({', '.join(changed)}); copy the same model to all of them"
                )
            self._make = self._captions() if self.job.kind == "caption" else self._features()
        return self._make

    @property
    def _limits(self) -> ImageLimits:
        return ImageLimits(max_bytes=self.job.max_bytes, max_pixels=self.job.max_pixels)

    def _captions(self) -> Callable[[int, Storage], tuple[DoneShard, dict[str, Any]]]:
        from xlan.pipeline import Captioner

        job, limits = self.job, self._limits
        captioner = Captioner.from_pretrained(
            find_model(job.model),
            engine=cast("Any", job.engine),
            device=self.device,
            threads=job.threads,
            detector=job.detector,
        )
        options = job.caption_options()
        captioner.check(options)

        def make(number: int, storage: Storage) -> tuple[DoneShard, dict[str, Any]]:
            with ShardPictures(read_shard(storage, number), limits) as shard:
                named = ((picture.name, cast("Any", picture)) for picture in shard.pictures)
                found = captioner.caption_many(
                    named, options, batch_size=job.batch_size, threads=job.readers, limits=limits
                )
                rows = [
                    caption_row(picture.id, picture.name, result)
                    for picture, (_, result) in zip(shard.pictures, found, strict=True)
                ]
            content = to_parquet(rows, job.made_with)
            storage.write(file_name(job.kind, number), content)
            errors = sum("error" in row for row in rows)
            return DoneShard(number, len(rows), errors, len(content)), {}

        return make

    def _features(self) -> Callable[[int, Storage], tuple[DoneShard, dict[str, Any]]]:
        job, limits, extractor = self.job, self._limits, _extractor(self.job, self.device)

        def make(number: int, storage: Storage) -> tuple[DoneShard, dict[str, Any]]:
            from xlan.vision.extract import extract_to_store
            from xlan.vision.store import FeatureStore, FeatureStoreWriter

            with (
                ShardPictures(read_shard(storage, number), limits) as shard,
                tempfile.TemporaryDirectory(
                    prefix=f".features-{number:05d}.",
                    suffix=".tmp",
                    dir=None if storage.local is None else storage.local / FOLDER,
                ) as temporary,
            ):
                writer = FeatureStoreWriter(
                    temporary,
                    dtype=cast("Any", job.dtype),
                    shard_bytes=1 << 62,
                    extractor=extractor.description,
                )
                with writer:
                    report = extract_to_store(
                        extractor, shard.pictures, writer, batch=job.batch_size, threads=job.readers, limits=limits
                    )
                store = FeatureStore(temporary)
                about: dict[str, Any] = {"bad": report.bad, "extractor": store.extractor, "width": store.feature_dim}
                size = 0
                if store.shards:
                    (info,) = store.shards
                    name = file_name(job.kind, number)
                    storage.put(Path(temporary) / info.file, name)
                    about["shard"], size = asdict(replace(info, file=name)), info.bytes
            return DoneShard(number, len(shard.pictures), len(report.bad), size), about

        return make


def _extractor(job: Job, device: str) -> RegionExtractor:
    from xlan.engines.load import open_detector, open_imagenet, open_vision

    engine = cast("Any", job.engine)
    if job.detector is not None:
        return open_detector(job.detector, engine=engine, threads=job.threads, vision=job.vision)
    if job.vision is not None:
        return open_vision(job.vision, engine=engine, device=device, threads=job.threads)
    if job.network is not None:
        return open_imagenet(job.network, device=device, threads=job.threads)
    from xlan.pipeline import Captioner

    path = find_model(job.model)
    found = Captioner.from_pretrained(path, engine=engine, device=device, threads=job.threads)
    if found.extractor is None:
        raise ModelError(f"{path}: has no vision network; choose one with --vision or --network")
    return found.extractor


def main() -> None:
    """Answer the lines of standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent process ends this one
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    first = json.loads(lines.get())
    worker = Worker(first["job"], first.get("device"))
    for answer in _answers(worker, lines):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read_lines(lines: queue.Queue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # the parent process has closed the pipe


def _answers(worker: Worker, lines: queue.Queue[str]) -> Iterator[Answer]:
    yield worker.ready()
    while True:
        yield worker.run(int(lines.get()))


if __name__ == "__main__":
    main()
