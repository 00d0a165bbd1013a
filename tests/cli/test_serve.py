"""`xlan serve` before it serves: what it refuses, what it says; tests/serving has the rest."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xlan.cli import serve as command
from xlan.cli.main import app
from xlan.errors import ConfigError, MissingExtraError, ModelError


def run(*arguments: str | Path) -> None:
    CliRunner().invoke(app, ["serve", *map(str, arguments)], catch_exceptions=False)


def test_a_taken_port_is_one_line(model_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"^port {port} of 127.0.0.1 is taken; choose another with --port, or 0 "):
            run("--model", model_directory, "--port", port)


def test_an_address_of_somebody_else(model_directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1 port 8000: "):
        run("--model", model_directory, "--host", "192.0.2.1")
    with pytest.raises(ConfigError, match="cannot find 'no such host'"):
        run("--model", model_directory, "--host", "no such host")


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r'xlan serve needs packages .* pip install "xlan\[serve\]"'):
        run()


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none"):
        run("--model", tmp_path / "none", "--port", "0")


@pytest.mark.parametrize("device", ["tpu-of-nobody", "cuda:99"])
def test_a_device_that_is_not_there(model_directory: Path, device: str) -> None:
    with pytest.raises(ModelError, match=device):
        run("--model", model_directory, "--port", "0", "--device", device)


@pytest.mark.parametrize("content", ["", "short", "has a space in it, sixteen", "ümlaut" * 5, "two\nlines" * 3])
def test_tokens_that_cannot_be_used(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match="token: expected a token of 16 or more ASCII characters"):
        run("--token-file", tmp_path / "token")


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):  # which the command line turns into one line
        run("--token-file", tmp_path / "token")


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLAN_TOKEN", raising=False)
    assert command._token(None) is None
    monkeypatch.setenv("XLAN_TOKEN", "from-the-environment")
    assert command._token(None) == "from-the-environment"
    (tmp_path / "token").write_text("from-the-file-itself\n")
    assert command._token(tmp_path / "token") == "from-the-file-itself"


@pytest.mark.parametrize(
    ("host", "names", "hosts"),
    [
        ("127.0.0.1", [], {"127.0.0.1", "localhost", "[::1]"}),
        ("::1", [], {"127.0.0.1", "localhost", "[::1]"}),
        ("127.0.0.5", ["Photos.Home"], {"127.0.0.1", "localhost", "[::1]", "127.0.0.5", "photos.home"}),
        ("0.0.0.0", [], None),
        ("0.0.0.0", ["photos.home"], {"photos.home"}),
    ],
)
def test_names_a_server_answers_to(host: str, names: list[str], hosts: set[str] | None) -> None:
    assert command._hosts(host, names) == hosts


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_loopback(host: str, loopback: bool) -> None:
    assert command._is_loopback(host) is loopback
