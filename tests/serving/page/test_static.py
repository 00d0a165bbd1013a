"""What the page is made of, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xlan.serving

STATIC = Path(xlan.serving.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.[\w/]+|url\([^)]*\)|@import", path.read_text(encoding="utf-8"))
    assert [address for address in addresses if address != "http://www.w3.org/2000/svg"] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_make_no_markup_from_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML =", "insertAdjacentHTML", "document.write", "eval(", "localStorage", "cookie"):
        assert way not in text
    assert text.startswith("// @ts-check\n")


def test_the_policy_finds_nothing_inline(tags_of: Callable[[Path], Any]) -> None:
    for tag, attributes in tags_of(STATIC / "index.html"):
        assert tag != "style"
        assert [name for name in attributes if name == "style" or name.startswith("on")] == []
        assert tag != "script" or attributes["src"]
