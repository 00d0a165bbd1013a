"""The code in docs/decoding.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "decoding.md"


def test_the_code_of_the_page_runs(capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out.count("\n") == 4
