"""Fixtures for tests of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from xlan.cli.main import main


@pytest.fixture
def error_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`error_of("data", "inspect", ".")`: the one line that a failing command prints on standard error."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["xlan", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return run
