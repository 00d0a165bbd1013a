"""How many threads torch computes with, and how they wait for one another.

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


def leave_a_core(threads: int | None = None) -> int:
    """Give torch `threads` threads; None leaves one core to the threads that open pictures. Returns their number.

    OMP_NUM_THREADS, where it is set, takes the place of None.
    """
    import torch

    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, torch.get_num_threads() - 1)
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
