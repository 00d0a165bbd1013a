"""How many threads compute, and how they wait for one another.

torch's threads meet after every small product. Left alone, those that are early spin until the last one arrives: on
cores that something else uses too, two threads are then many times slower than one. Threads that sleep while they wait
cost next to nothing on idle cores and make the number of threads harmless on busy ones.
"""

from __future__ import annotations

import os


def sleep_while_waiting() -> None:
    """Let waiting threads sleep instead of spin, unless the environment says otherwise.

    OpenMP reads these variables once, when torch is imported: call this before.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_a_core() -> int:
    """How many threads should compute: one core is left to the threads that open pictures.

    OMP_NUM_THREADS, where it is set, says it instead.
    """
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) else max(1, cores() - 1)
