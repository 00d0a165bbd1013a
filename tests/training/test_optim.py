from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from xlan.errors import ConfigError
from xlan.training.optim import build_optimizer, clip_gradients, set_rate


def trajectory(name: str, recorded: dict[str, Any]) -> torch.Tensor:
    parameter = nn.Parameter(torch.tensor(recorded["p0"]))
    optimizer = build_optimizer(
        name, [parameter], betas=tuple(recorded["betas"]), eps=recorded["eps"], weight_decay=0.0
    )
    set_rate(optimizer, recorded["lr"])
    path = []
    for gradient in recorded["grads"]:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        path.append(parameter.detach().clone())
    return torch.stack(path)


def test_radam_follows_the_released_trajectory(optim: dict[str, Any]) -> None:
    released = torch.tensor(optim["radam"]["params_after_each_step"])
    torch.testing.assert_close(trajectory("radam", optim["radam"]), released, rtol=0, atol=1e-7)


def test_adam_follows_its_formula(optim: dict[str, Any]) -> None:
    recorded = optim["radam"]
    (beta1, beta2), lr, eps = recorded["betas"], recorded["lr"], recorded["eps"]
    value = torch.tensor(recorded["p0"], dtype=torch.float64)
    mean = square = torch.zeros_like(value)
    expected = []
    for step, gradient in enumerate(recorded["grads"], start=1):
        g = torch.tensor(gradient, dtype=torch.float64)
        mean, square = beta1 * mean + (1 - beta1) * g, beta2 * square + (1 - beta2) * g * g
        value = value - lr * (mean / (1 - beta1**step)) / ((square / (1 - beta2**step)).sqrt() + eps)
        expected.append(value)
    torch.testing.assert_close(trajectory("adam", recorded).double(), torch.stack(expected), rtol=0, atol=1e-6)


def test_weight_decay_is_decoupled() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer("adam", [parameter], betas=(0.9, 0.98), eps=1e-9, weight_decay=0.5)
    set_rate(optimizer, 0.1)
    parameter.grad = torch.zeros(2)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((2,), 0.95))


def test_unknown_optimizer_is_named() -> None:
    with pytest.raises(ConfigError, match="'sgd' is unknown; allowed: adam, radam"):
        build_optimizer("sgd", [], betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)


def parameter_with_gradient() -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    return parameter


@pytest.mark.parametrize(("by", "expected"), [("norm", [0.3, 0.4]), ("value", [0.5, 0.5]), ("none", [3.0, 4.0])])
def test_clipping(by: str, expected: list[float]) -> None:
    parameter = parameter_with_gradient()
    norm = clip_gradients([parameter], by=by, at=0.5)
    assert float(norm) == pytest.approx(5.0)
    assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad, torch.tensor(expected), rtol=1e-5, atol=1e-5)
