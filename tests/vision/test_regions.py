"""Which features belong to which model."""

from __future__ import annotations

from typing import Any

import pytest

from xlan.errors import FeatureError
from xlan.vision.regions import check_same_extractor

GRID = {"extractor": "grid", "weights": "sha256:aa", "input_size": 224, "levels": [32]}
IMPORTED = {"name": "import", "form": "bottom-up TSV", "source": "a.tsv"}


@pytest.mark.parametrize(
    ("trained", "store"),
    [(GRID, GRID), ({}, GRID), (GRID, IMPORTED), (IMPORTED, GRID), ({"weights": "sha256:aa"}, GRID)],
)
def test_the_same_or_an_unknown_network_is_accepted(trained: dict[str, Any], store: dict[str, Any]) -> None:
    check_same_extractor(trained, store, model="m", features="f")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "imagenet"}, "weights imagenet instead of sha256:aa"),
        ({"input_size": 256, "levels": [16]}, r"input_size 256 instead of 224, levels \[16\] instead of \[32\]"),
    ],
)
def test_another_network_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FeatureError, match=rf"^f: comes from another network than m was trained with \({message}\)"):
        check_same_extractor(GRID, {**GRID, **changes}, model="m", features="f")
