"""The executor on a Ray cluster: an actor per model, on whichever nodes have room.

Shards go only to actors that have their model loaded, one at a time, so that nothing waits in a queue that could be
lost. An actor that dies with its process or its node is replaced; the replacement waits for room if there is none, for
instance until a node comes back or the cluster grows.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from xlan.batch.executors import MAX_LOST, Lost, check_ready
from xlan.batch.job import Job
from xlan.batch.worker import Answer, Worker
from xlan.errors import BatchError, MissingExtraError

WAIT = 2.0  # seconds between checks of the cluster
PATIENCE = 60.0  # seconds without a single worker, after which the user is told


class RayCluster:
    """Workers on a Ray cluster.

    Args:
        address: of the cluster: `auto`, `host:port`, `ray://…`; `local` starts one on this machine.
        workers: actors; None for as many as the cluster has room for.
        say: called with a line about each lost worker, and about waiting.
    """

    def __init__(self, address: str, workers: int | None, say: Callable[[str], None]) -> None:
        self.address = address
        self.workers = workers
        self._say = say

    def run(self, job: Job, shards: Iterable[int]) -> Iterator[Answer]:
        """See `Executor`."""
        ray = _ray()
        here = not ray.is_initialized()
        if here:
            _connect(ray, self.address)
        try:
            yield from _Actors(ray, job, self.workers or _room(ray, job), self._say).run(Lost(shards, self._say, job))
        finally:
            if here:
                ray.shutdown()


class _Actors:
    """The actors of one run: starting, idle (none for long), or with a shard at hand."""

    def __init__(self, ray: Any, job: Job, count: int, say: Callable[[str], None]) -> None:
        self.ray, self.job, self.count, self._say = ray, job, count, say
        self._starting: dict[Any, Any] = {}  # what `ready` will answer → actor
        self._busy: dict[Any, tuple[Any, int]] = {}  # what `run` will answer → actor and shard
        self._failed_starts = 0
        gpus = 1 if job.device.startswith("cuda") else 0
        environment = {"env_vars": {"OMP_NUM_THREADS": str(job.threads)}}
        self._class = ray.remote(num_cpus=job.threads, num_gpus=gpus, max_restarts=0, runtime_env=environment)(Worker)

    def run(self, todo: Lost) -> Iterator[Answer]:
        """Hand out shards until all are answered."""
        number = todo.next()
        waiting_since = time.monotonic()
        try:
            while number is not None or self._busy:
                while number is not None and len(self._starting) + len(self._busy) < self.count:
                    self._start()
                watched = [*self._busy, *(self._starting if number is not None else ())]
                finished, _ = self.ray.wait(watched, num_returns=1, timeout=WAIT)
                if self._busy or finished:
                    waiting_since = time.monotonic()
                elif time.monotonic() - waiting_since > PATIENCE:
                    self._say("waiting for the cluster: no node has room for a worker")
                    waiting_since = time.monotonic()
                for reference in finished:
                    if reference in self._starting:
                        actor = self._started(reference)
                    else:
                        actor, shard = self._busy.pop(reference)
                        try:
                            yield self.ray.get(reference)
                        except self.ray.exceptions.RayError as error:
                            self.ray.kill(actor)  # it may only be unreachable, and would keep its resources
                            actor = None
                            if (given_up := todo.lost(shard, _why(error))) is not None:
                                yield given_up
                        number = todo.next() if number is None else number
                    if actor is None:
                        continue
                    if number is None:
                        self.ray.kill(actor)
                    else:
                        self._busy[actor.run.remote(number)] = actor, number
                        number = todo.next()
        finally:
            for actor in [*self._starting.values(), *(actor for actor, _ in self._busy.values())]:
                self.ray.kill(actor)

    def _start(self) -> None:
        actor = self._class.remote(self.job.to_json())
        self._starting[actor.ready.remote()] = actor

    def _started(self, reference: Any) -> Any:
        """The actor that is ready now; None when it died before."""
        actor = self._starting.pop(reference)
        try:
            check_ready(self.ray.get(reference))
        except self.ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MAX_LOST * self.count:
                raise BatchError(f"workers exit while they load the model: {_why(error)}") from None
            return None
        return actor


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingExtraError("--ray", "ray") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"logging_level": "warning", "log_to_driver": True}
    if address == "local":
        options["include_dashboard"] = False
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # ray itself would end this process after a while, and not raise
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        line = " ".join(str(error).split())[:200]
        raise BatchError(f"--ray {address}: cannot connect: {line}; 'local' starts a cluster on this machine") from None


def _room(ray: Any, job: Job) -> int:
    """How many actors the cluster has room for."""
    there = ray.cluster_resources()
    cpus = int(there.get("CPU", 0)) // job.threads
    room = min(cpus, int(there.get("GPU", 0))) if job.device.startswith("cuda") else cpus
    if room < 1:
        kind = "GPU" if job.device.startswith("cuda") else "CPU"
        raise BatchError(f"the cluster has no room for a worker: {there.get(kind, 0):g} {kind} in total")
    return room


def _why(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:120] + ("…" if len(text) > 120 else "") or type(error).__name__
