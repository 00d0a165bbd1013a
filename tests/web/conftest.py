"""The scripts of the page under node, and the package onnxruntime-web from wherever it can be had."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlan.files import atomic_path
from xlan.web.folder import _scripts
from xlan.web.runtime import PACKED, VERSION, read_runtime

HARNESS = Path(__file__).parent / "harness.mjs"


@pytest.fixture(scope="session")
def under_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, list[Any]], list[Any]]:
    """`under_node("search", cases)`: what the function of that name in harness.mjs gives for each case."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's scripts cannot be run without a browser")
    folder = tmp_path_factory.mktemp("scripts")
    for name, content in _scripts():
        (folder / name).write_bytes(content)
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(HARNESS, folder)

    def run(function: str, cases: list[Any]) -> list[Any]:
        asked = json.dumps({"function": function, "cases": cases})
        done = subprocess.run(
            [node, folder / HARNESS.name], input=asked, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        answer: list[Any] = json.loads(done.stdout)
        return answer

    return run


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, bytes]:
    """The files of onnxruntime-web: from XLAN_ORT_WEB, else through npm, once for all runs of the tests."""
    given = os.environ.get("XLAN_ORT_WEB")
    if given:
        return read_runtime(given)
    cache = getattr(pytestconfig, "cache", None)  # tests may run without it
    folder = tmp_path_factory.mktemp("npm") if cache is None else cache.mkdir("onnxruntime-web")
    if not (folder / PACKED).is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"needs onnxruntime-web {VERSION}: install npm, or name the package in XLAN_ORT_WEB")
        fresh = tmp_path_factory.mktemp("fresh")
        command = [npm, "pack", "--silent", "--fetch-retries=0", f"onnxruntime-web@{VERSION}"]
        try:
            done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm does not answer; name the package onnxruntime-web {VERSION} in XLAN_ORT_WEB")
        if done.returncode:
            pytest.skip(f"npm cannot get onnxruntime-web {VERSION}; name the package in XLAN_ORT_WEB")
        with atomic_path(folder / PACKED) as temporary:
            shutil.copyfile(fresh / PACKED, temporary)
    return read_runtime(folder / PACKED)
