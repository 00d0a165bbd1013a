"""Model and optimiser as named tensors, whatever wraps them (nothing, DDP or FSDP), and back.

torch's own state-dict functions do the gathering: names are those of the bare model, tensors are whole and on the CPU
of process 0. Every process must call these functions together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.optim import Optimizer

from xlan.errors import WeightsError

_SEPARATOR = "/"


@contextlib.contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Inside, every weight of a sharded model is there, so that its methods can be called and not only its forward.

    Sampling and evaluation need it; for models that are not sharded nothing happens. Enter it before inference mode, or
    the gathered weights could not be trained with afterwards.
    """
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            yield
        return
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights by name; on processes other than 0 of a sharded run the dictionary may be empty."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    tensors: dict[str, Any] = get_model_state_dict(model, options=options)
    return tensors


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put weights back; names and shapes must fit exactly.

    Raises:
        WeightsError: they do not.
    """
    options = StateDictOptions(full_state_dict=True, strict=True)
    try:
        set_model_state_dict(model, dict(tensors), options=options)
    except (RuntimeError, KeyError, ValueError) as error:
        raise WeightsError(f"the weights do not fit the model: {_short(error)}") from None


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Optimiser state as tensors named `<parameter>/<slot>`; empty before the first step."""
    if not any(optimizer.state.values()):
        return {}
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=options)
    slots = state.get("state", {})
    return {f"{name}{_SEPARATOR}{slot}": value for name, values in slots.items() for slot, value in values.items()}


def load_optimizer_tensors(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put optimiser state back; the groups' numbers stay as the optimiser was built.

    Raises:
        WeightsError: a parameter has no state, or a state has no parameter.
    """
    if not tensors:
        return
    slots: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition(_SEPARATOR)
        slots.setdefault(name, {})[slot] = value
    options = StateDictOptions(full_state_dict=True, strict=True)
    groups = get_optimizer_state_dict(model, optimizer, options=options)["param_groups"]
    state: Any = {"state": slots, "param_groups": groups}
    try:
        set_optimizer_state_dict(model, optimizer, state, options=options)
    except (RuntimeError, KeyError, ValueError) as error:
        raise WeightsError(f"the optimiser state does not fit the model: {_short(error)}") from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
