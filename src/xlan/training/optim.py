"""Optimisers and gradient clipping.

`torch.optim.RAdam` follows the released RAdam step for step (a test compares the trajectories): before the variance
of the adaptive rate can be estimated it takes plain bias-corrected momentum steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from xlan.errors import ConfigError


def build_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> Optimizer:
    """Adam (decoupled weight decay when positive) or RAdam; the loop sets the learning rate before every step."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if name == "adam":
        kind = torch.optim.AdamW if weight_decay > 0 else torch.optim.Adam
        # One kernel for all of it: the plain version reads and writes every weight several times over.
        return kind(trained, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
    if name == "radam":
        return torch.optim.RAdam(
            trained, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay, decoupled_weight_decay=True
        )
    raise ConfigError(f"optimizer {name!r} is unknown; allowed: adam, radam")


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[nn.Parameter], *, by: str, at: float) -> Tensor:
    """Clip in place by total norm, or clamp each element to ±`at`; returns the norm before clipping (a scalar)."""
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    if by == "norm":
        norm = nn.utils.clip_grad_norm_(trained, at)
    else:
        norm = nn.utils.get_total_norm([parameter.grad for parameter in trained if parameter.grad is not None])
        if by == "value":
            nn.utils.clip_grad_value_(trained, at)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm  # of all shards, not of this process's
