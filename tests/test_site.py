"""The documentation site: built without a warning, complete, and without requests to other servers."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import xlan
from xlan.cli.main import app
from xlan.config.schema import RunConfig

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'xlan[docs]'")
    pytest.importorskip("mkdocstrings")
    target = tmp_path_factory.mktemp("site")
    typed = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(typed, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


def test_no_page_asks_another_server_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = re.findall(r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="(https?:[^"]+)"', page.read_text("utf-8"))
        assert not found, page


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text("utf-8")

    def check(command: Any, name: str) -> None:
        for key, inner in getattr(command, "commands", {}).items():
            check(inner, f"{name} {key}")
        if not hasattr(command, "commands"):
            assert f"<code>{name}</code>" in page
            for parameter in command.params:
                assert all(f"<code>{option}</code>" in page for option in parameter.opts if option.startswith("--"))

    check(typer.main.get_command(app), "xlan")


def test_every_public_name_and_key_is_in_the_reference(site: Path) -> None:
    names = (site / "reference" / "api.html").read_text("utf-8")
    for name, home in xlan._HOME.items():
        assert f'id="{home}.{name}"' in names
    keys = (site / "reference" / "config.html").read_text("utf-8")
    assert all(f"<code>{key}</code>" in keys for key in RunConfig.model_fields)


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def test_search_finds_a_word(address: str, page_of: Callable[..., Any]) -> None:
    page = page_of()
    page.goto(f"{address}/index.html")
    found, query = page.locator(".md-search-result__item a").first, page.locator("input[name=query]")
    deadline = time.monotonic() + 120
    while not found.is_visible() and time.monotonic() < deadline:  # what is typed before the script listens is lost
        query.fill("")
        query.press_sequentially("bootstrap")
        page.wait_for_timeout(2_000)
    assert "metrics.html" in found.get_attribute("href")


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("index.html", "dark"),
        ("explanation/xlinear.html", "light"),
        ("explanation/xlinear.html", "dark"),
        ("reference/config.html", "light"),
    ],
)
def test_our_part_of_the_pages_is_accessible(address: str, page_of: Callable[..., Any], name: str, scheme: str) -> None:
    """axe-core on the content of the pages; the frame around it is the theme's."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = page_of(color_scheme=scheme, width=390)
    page.goto(f"{address}/{name}")
    found = axe.run(page, context="article", options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
    assert [(entry["id"], entry["nodes"][0]["html"][:200]) for entry in found] == []
