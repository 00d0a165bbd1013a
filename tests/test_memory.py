"""Freed memory stays with the process: each measured in a process of its own, because the setting is for good."""

import os
import subprocess
import sys

import pytest

_BLOCKS = """
import resource, sys
import numpy as np
from xlan.memory import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("not glibc")
faults = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(8 << 20, np.uint8) for _ in range(4)]
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


def page_faults(how: str, **environment: str) -> int:
    found = subprocess.run(
        [sys.executable, "-c", _BLOCKS, how],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")} | environment,
    )
    if "not glibc" in found.stderr:
        pytest.skip("the C library has no such setting")
    assert found.returncode == 0, found.stderr
    return int(found.stdout)


def test_blocks_that_were_freed_are_used_again() -> None:
    assert page_faults("keep") * 10 < page_faults("leave")


def test_the_environment_has_the_last_word() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from xlan.memory import keep_freed_memory; print(keep_freed_memory())"],
        capture_output=True,
        text=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        check=True,
    )
    assert said.stdout == "False\n"
