"""A Hub on loopback for `huggingface_hub`, a cache of its own, and a guard against every other address."""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from xlan.model.build import build_model
from xlan.pretrained import save_pretrained
from xlan.text.vocab import Vocabulary


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


loopback_hub = _load("loopback_hub")


class Impatient:
    """The module `time`, but nobody waits; what was waited for is noted."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A `LoopbackHub` that `huggingface_hub` takes for the real one; other addresses cannot be connected to."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hub")
    import huggingface_hub.file_download
    import huggingface_hub.utils._http

    server = loopback_hub.LoopbackHub()
    settings = {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_TOKEN_PATH": str(tmp_path / "no-token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server.clock = Impatient()
    monkeypatch.setattr(huggingface_hub.file_download, "time", server.clock)
    monkeypatch.setattr(huggingface_hub.utils._http, "time", server.clock)

    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        assert address[0] in ("127.0.0.1", "::1"), f"a connection to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    huggingface_hub.utils._http.close_session()
    yield server
    huggingface_hub.utils._http.close_session()
    server.close()


@pytest.fixture
def log_in(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token that may do everything; `hub` first, which takes away the one of whoever runs the tests."""
    monkeypatch.setenv("HF_TOKEN", loopback_hub.TOKEN)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory for region features, 8 wide, with a card."""
    folder = tmp_path_factory.mktemp("small") / "model"
    words = Vocabulary.from_words(["a", "dog", "cat", "on", "grass"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model("xlan-tiny", vocab_size=len(words), feature_dim=8)
    save_pretrained(folder, model.spec, model.state_dict(), words, card="# A small model\n\nFor tests.\n")
    return folder


@pytest.fixture
def files(small_model: Path) -> dict[str, bytes]:
    """The files of `small_model` by name."""
    return {path.name: path.read_bytes() for path in small_model.iterdir()}


@pytest.fixture
def published(hub: Any, files: dict[str, bytes]) -> Any:
    """The repository `ann/dogs` with `small_model` in it, and files that nobody should fetch."""
    others = {"model.bin": b"pickle", "pytorch_model.pt": b"pickle", "code.py": b"import os", "other.safetensors": b"?"}
    hub.repos["ann/dogs"] = loopback_hub.Repo()
    hub.repos["ann/dogs"].commit({**files, **others})
    return hub.repos["ann/dogs"]
