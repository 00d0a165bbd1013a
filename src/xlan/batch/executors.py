"""What computes the shards: this process, processes of this machine, or (in `on_ray`) the nodes of a cluster.

An executor is given the numbers of shards and gives back answers of workers. A worker that dies loses its shard, which
is handed to another one; a shard that was lost several times is given up, because one of its pictures may kill workers.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

from xlan.batch.job import Job
from xlan.batch.shards import done_shards
from xlan.batch.storage import Storage
from xlan.batch.worker import Answer, Worker
from xlan.errors import BatchError, DataError

MAX_LOST = 3  # workers that may die on one shard


class Executor(Protocol):
    """Makes shards."""

    def run(self, job: Job, shards: Iterable[int]) -> Iterator[Answer]:
        """The answers of `Worker.run` for every shard, as they come; closing the iterator ends the workers.

        Raises:
            BatchError: no worker can start.
        """


class Lost:
    """Shards whose worker died: how often, and which to hand out again.

    Args:
        shards: numbers of the shards to make.
        say: called with a line about each lost worker.
        job: whose shards they are; None when nothing is written.
    """

    def __init__(self, shards: Iterable[int], say: Callable[[str], None], job: Job | None = None) -> None:
        self._rest = iter(shards)
        self._job = job
        self._again: collections.deque[int] = collections.deque()
        self._times: collections.Counter[int] = collections.Counter()
        self._say = say

    def next(self) -> int | None:
        """The next shard to make; None when all are handed out."""
        return self._again.popleft() if self._again else next(self._rest, None)

    def lost(self, number: int, why: str) -> Answer | None:
        """A worker died on a shard; returns its answer if it had finished, or an error if too many died on it."""
        if (finished := self._finished(number)) is not None:
            self._say(f"a worker was lost ({why}); it had finished shard {number}")
            return finished
        self._times[number] += 1
        if self._times[number] < MAX_LOST:
            self._say(f"a worker was lost ({why}); shard {number} is tried again")
            self._again.append(number)
            return None
        return {
            "number": number,
            "error": f"shard {number}: {MAX_LOST} workers died on it (the last: {why}); one of its pictures may "
            "take too much memory: see its rows in the plan, or use fewer workers",
        }

    def _finished(self, number: int) -> Answer | None:
        """The answer that a worker owed when it died between its marker and its answer."""
        if self._job is None:
            return None
        with contextlib.suppress(DataError):  # a storage that does not answer now: the shard is made again
            done = done_shards(Storage(self._job.output), self._job.kind).get(number)
            return None if done is None else asdict(done)
        return None


class ThisProcess:
    """Makes the shards one after the other, here."""

    def run(self, job: Job, shards: Iterable[int]) -> Iterator[Answer]:
        """See `Executor`."""
        worker = Worker(job.to_json())
        check_ready(worker.ready())
        for number in shards:
            yield worker.run(number)


class Processes:
    """Processes of this machine, each with a model of its own.

    Args:
        workers: how many.
        say: called with a line about each lost worker.
    """

    def __init__(self, workers: int, say: Callable[[str], None]) -> None:
        self.workers = workers
        self._say = say

    def run(self, job: Job, shards: Iterable[int]) -> Iterator[Answer]:
        """See `Executor`."""
        todo = Lost(shards, self._say, job)
        inbox: queue.Queue[tuple[_Process, Answer | None]] = queue.Queue()
        running: set[_Process] = set()
        failed_starts = 0
        try:
            for place in range(self.workers):
                if (number := todo.next()) is not None:
                    running.add(_Process(job, place, number, inbox))
            while running:
                process, answer = inbox.get()
                if process not in running:  # the end of one that had nothing left to do
                    continue
                if answer is None:
                    running.discard(process)
                    why = process.ended()
                    failed_starts += not process.started
                    if failed_starts >= MAX_LOST:
                        raise BatchError(f"workers exit while they load the model ({why}); try fewer --workers")
                    if (given_up := todo.lost(process.shard, why)) is not None:
                        yield given_up
                    if (number := todo.next()) is not None:
                        running.add(_Process(job, process.place, number, inbox))
                elif not process.started:
                    check_ready(answer)
                    process.started = True
                    process.give(process.shard)
                else:
                    yield answer
                    if (number := todo.next()) is not None:
                        process.give(number)
                    else:
                        running.discard(process)
                        process.close()
        finally:
            for process in running:
                process.close()


def check_ready(answer: Answer) -> None:
    """Refuse to continue when a worker could not load the model.

    Raises:
        BatchError: the answer is an error.
    """
    if "error" in answer:
        raise BatchError(answer["error"])


class _Process:
    """A process that runs `xlan.batch.worker`, and the shard it has at hand."""

    def __init__(self, job: Job, place: int, shard: int, inbox: queue.Queue[tuple[_Process, Answer | None]]) -> None:
        self.place, self.shard, self.started = place, shard, False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "xlan.batch.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": str(job.threads)},
        )
        self._inbox = inbox
        device = f"cuda:{place}" if job.device == "cuda" else job.device
        self._send(json.dumps({"job": job.to_json(), "device": device}))
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, number: int) -> None:
        """Hand it a shard; if it has died meanwhile, its end is handled separately."""
        self.shard = number
        self._send(str(number))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a line cut short by the end of the process
                answer: Any = json.loads(line)
                self._inbox.put((self, answer))
        self._inbox.put((self, None))

    def ended(self) -> str:
        """Why it ended, once it has."""
        code = self._process.wait()
        self.close()
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"

    def close(self) -> None:
        """Stop it by closing its standard input."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            with contextlib.suppress(OSError):
                self._process.stdout.close()
