"""`xlan train` with the model sharded over processes (FSDP) on the CPU; accelerate itself offers that for GPUs only.

Run by a test under torchrun.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard

from xlan.cli.main import main

prepare_one = Accelerator.prepare


def prepare_sharded(self: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    fully_shard(model)
    return model, prepare_one(self, type(optimizer)(model.parameters(), **optimizer.defaults))


if __name__ == "__main__":
    Accelerator.prepare = prepare_sharded
    main()
