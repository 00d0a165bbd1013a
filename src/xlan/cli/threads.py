"""How many threads torch gets while pictures are captioned."""

from __future__ import annotations

import os


def leave_a_core() -> int:
    """One thread fewer than cores for torch, unless OMP_NUM_THREADS says how many; returns their number.

    Its threads wait for each other in a busy loop after every small product. As soon as anything else runs, be it only
    the threads that open pictures, one thread too many makes captioning several times slower (docs/caption.md).
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    return torch.get_num_threads()
