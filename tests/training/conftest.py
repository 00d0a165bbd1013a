from __future__ import annotations

import json
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
