from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parent.parent / "fixtures" / "reference"


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    return REFERENCE


@pytest.fixture(scope="session")
def optim() -> dict[str, Any]:
    """Trajectories and schedules computed with the released code."""
    value: dict[str, Any] = json.loads((REFERENCE / "optim.json").read_text(encoding="utf-8"))
    return value


SHAPES = {"shapes": {"images": 64, "seed": 3}, "min_count": 1, "workers": 0}


@pytest.fixture(scope="session")
def run_settings() -> Callable[..., dict[str, Any]]:
    """Settings of a run that takes 24 steps in a second or two; `changes` are merged in, section by section."""

    def settings(stage: str, output: Path, **changes: Any) -> dict[str, Any]:
        value: dict[str, Any] = {
            "stage": stage,
            "output": str(output),
            "data": dict(SHAPES),
            "model": {"name": "xlan-tiny", "options": {"dim": 16, "heads": 2, "hidden_dim": 4, "depth": 1}},
            "train": {
                "epochs": 4,
                "batch_size": 8,
                "captions_per_image": 2,
                "optimizer": {"lr": 0.02},
                "schedule": {"name": "constant"},
            },
            "evaluation": {"beams": 2, "metrics": ["CIDEr"]},
            "checkpoint": {"every": 2},
            "logging": {"every": 1, "tensorboard": False},
        }
        if stage == "scst":
            value["scst"] = {"samples": 3, "reward_workers": 0}
            value["train"]["optimizer"] = {"lr": 0.001}
            value["train"]["schedule"] = {"name": "plateau", "patience": 0}
        for section, change in changes.items():
            value[section] = {**value[section], **change} if isinstance(change, dict) else change
        return value

    return settings


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, run_settings: Callable[..., dict[str, Any]]) -> Path:
    """A model directory after cross-entropy, to begin self-critical training from."""
    from xlan.config import parse_config
    from xlan.training.run import run_training

    folder = tmp_path_factory.mktemp("trained") / "xe"
    assert run_training(parse_config(run_settings("xe", folder))) == 0
    return folder / "last"
