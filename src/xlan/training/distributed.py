"""The processes of one run: which one is this, add numbers up, broadcast. Works the same with a single process.

accelerate starts the process group (plain `python`, `torchrun` and `accelerate launch` all work); this file is the only
one that talks to it besides the wrapped model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from xlan.errors import TrainingError

T = TypeVar("T")

# How the back ends say that a peer is gone; there is no common exception class for it.
_LOST_PEER = ("connection closed by peer", "connection reset", "broken pipe", "timed out", "timeout", "nccl", "gloo")


@dataclass(frozen=True)
class World:
    """The processes that train together.

    Attributes:
        rank: this process, from 0.
        size: how many there are.
        device: where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over processes."""
        if self.size == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def gather(self, value: T) -> list[T]:
        """Everybody's `value`, in rank order, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """Process 0's `value`, on every process."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]  # type: ignore[no-any-return]


@contextlib.contextmanager
def explain_lost_peers(world: World) -> Iterator[None]:
    """Turn a back end's complaint about a vanished process into one line that says what to do."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if world.size == 1 or not any(sign in text for sign in _LOST_PEER):
            raise
        raise TrainingError(
            f"process {world.rank} of {world.size} lost contact with another process of the run (it was killed, ran "
            f"out of memory, or stopped with an error of its own above); start all of them again with --resume auto"
        ) from error
