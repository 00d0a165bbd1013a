"""The public surface: declared, sorted, importable, documented."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import xlan


def test_names_are_sorted_and_each_has_a_home():
    assert xlan.__all__ == sorted(xlan.__all__)
    assert set(xlan.__all__) - {"__version__"} == set(xlan._HOME)


@pytest.mark.parametrize("name", [name for name in xlan.__all__ if name != "__version__"])
def test_every_name_can_be_had_and_is_documented(name):
    assert inspect.getdoc(getattr(xlan, name)), name


def test_importing_the_package_does_no_work():
    code = "import sys, xlan; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'xlan' has no attribute 'Caption0'"):
        _ = xlan.Caption0
