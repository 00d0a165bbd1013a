"""What the plumbing of `xlan batch` costs: shards made by a worker against a plain loop over `Captioner.caption`.

The same pictures, model, batch size and threads; the two take turns shard by shard in one process, so that a busy
machine slows both. Printed is the ratio of the throughputs (1 means the plumbing is free). Reading the plan, opening
pictures, writing Parquet files and markers are all on the worker's side.

    python benchmarks/batch_speed.py [--shards 6] [--shard-size 64]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from xlan import Captioner
from xlan.batch.job import Job, made_with
from xlan.batch.plan import write_plan
from xlan.batch.sources import list_items
from xlan.batch.storage import Storage
from xlan.batch.worker import Worker

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--shard-size", type=int, default=64)
    parser.add_argument("--model", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(folder) / "pictures"
        pictures.mkdir()
        for number in range(given.shards * given.shard_size):
            pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((640, 480)).save(pictures / f"{number:05d}.jpg")
        job = Job("caption", f"{folder}/out", model=given.model, batch_size=BATCH, readers=2)
        job = replace(job, made_with=json.loads(json.dumps(made_with(job))))
        items = list(list_items([str(pictures)]))
        write_plan(Storage(job.output), items, shard_size=given.shard_size, unique_ids=False)
        captioner = Captioner.from_pretrained(given.model, threads=job.threads)
        worker = Worker(job.to_json())
        assert "error" not in worker.ready()
        captioner.caption([items[0].place] * BATCH)
        loop = engine = 0.0
        for shard in range(given.shards):
            paths = [item.place for item in items[shard * given.shard_size : (shard + 1) * given.shard_size]]
            began = time.perf_counter()
            captioner.caption(paths, batch_size=BATCH)
            middle = time.perf_counter()
            answer = worker.run(shard)
            engine += time.perf_counter() - middle
            loop += middle - began
            assert "error" not in answer, answer
    print(f"worker of xlan batch against a plain loop: {loop / engine:.2f}x over {len(items)} pictures")


if __name__ == "__main__":
    main()
