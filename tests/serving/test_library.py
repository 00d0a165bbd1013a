"""A server with a library of photos that can be searched."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

TOKEN = "a-token-for-the-library"


def fill(folder: Path, count: int) -> Path:
    folder.mkdir()
    for seed in range(count):
        pixels = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((900, 600), Image.Resampling.NEAREST).save(folder / f"{seed}.jpg")
    (folder / "secret.txt").write_text("not a photo")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("library") / "photos", 5)


@pytest.fixture(scope="module")
def running(start_for_module: Callable[..., Any], folder: Path) -> Any:
    place = str(folder.parent / "index")
    return start_for_module("--library", str(folder), "--index", place, "--threads", "2")


@pytest.fixture(scope="module")
def client(running: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=60, trust_env=False) as found:
        yield found


def test_photos_are_found_and_shown(client: httpx.Client, running: Any) -> None:
    answer = client.get("/v1/search", params={"q": "a dog on teh grass", "count": 3})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["photos"] == 5
    assert len(found["found"]) == 3
    assert found["unknown"] == [{"word": "teh", "nearest": ["the"]}]
    scores = [one["score"] for one in found["found"]]
    assert scores == sorted(scores, reverse=True)
    first = found["found"][0]
    assert first["name"].endswith(".jpg")
    assert [one["word"] for one in first["words"]] == ["a", "dog", "on", "grass"]
    photo = client.get(f"/v1/photos/{first['photo']}")
    assert photo.status_code == 200
    assert photo.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(photo.content)).size == (480, 320)
    assert "library: 5 photos of" in running.log.read_text()
    assert "1 cannot be indexed" in running.log.read_text()


@pytest.mark.parametrize(
    ("query", "status", "detail"),
    [
        ("", 400, "q: expected a sentence, as in ?q=a+dog+on+the+beach"),
        ("?q=", 422, "q: expected a sentence such as 'a dog on the beach', got ''"),
        ("?q=zzzz", 422, "q: the model knows none of its words: unknown word 'zzzz'"),
        ("?q=a&q=b", 400, "'q': given more than once"),
        ("?q=a&colour=red", 400, "'colour': no such option; there are q, count"),
        ("?q=a&count=0", 400, "count: expected a whole number from 1 to 100, got '0'"),
        ("?q=a&count=1e1", 400, "count: expected a whole number from 1 to 100, got '1e1'"),
        ("?q=" + "a+" * 300, 422, "q: expected at most 500 characters, got 600"),
    ],
)
def test_bad_queries_are_problems(client: httpx.Client, query: str, status: int, detail: str) -> None:
    answer = client.get("/v1/search" + query)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == detail


@pytest.mark.parametrize(
    "path",
    ["/v1/photos/0.jpg", "/v1/photos/../secret.txt", "/v1/photos/%2e%2e%2fsecret.txt", "/v1/photos/", "/v1/photos",
     "/v1/photos/" + "0" * 24, "/v1/photos/secret.txt", "/v1/photos/..%5csecret.txt", "/v1/photos/%00"],
)  # fmt: skip
def test_nothing_but_photos_of_the_index_is_shown(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert "photos/" not in answer.text


def test_a_photo_that_is_gone_is_a_problem(client: httpx.Client, folder: Path) -> None:
    found = {one["name"]: one["photo"] for one in client.get("/v1/search?q=a+dog").json()["found"]}
    kept = (folder / "4.jpg").read_bytes()
    (folder / "4.jpg").unlink()
    try:
        answer = client.get(f"/v1/photos/{found['4.jpg']}")
    finally:
        (folder / "4.jpg").write_bytes(kept)
    assert answer.status_code == 404
    assert answer.json()["detail"] == "this photo was removed or cannot be read"


def test_the_api_describes_the_search(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/search", "/v1/photos/{photo}"} < set(document["paths"])
    assert "/v1/search?q=a+dog" in client.get("/docs").text


def test_the_page_has_a_search_box_only_with_a_library(client: httpx.Client, server: Any) -> None:
    with_box, without = client.get("/").text, httpx.get(server.url, timeout=60, trust_env=False).text
    assert 'id="seek"' in with_box
    assert 'id="seek"' not in without
    assert client.get("/").headers["content-security-policy"] == httpx.get(
        server.url, timeout=60, trust_env=False
    ).headers["content-security-policy"]  # fmt: skip
    assert httpx.get(server.url + "/v1/search?q=a", timeout=60, trust_env=False).status_code == 404


def test_the_token_protects_photos_too(start_server: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ("--library", str(fill(tmp_path / "photos", 1)), "--index", str(tmp_path / "index"))
    locked = start_server(*arguments, environment={"XLAN_TOKEN": TOKEN})
    with httpx.Client(base_url=locked.url, timeout=60, trust_env=False) as client:
        assert client.get("/v1/search?q=a").status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        (one,) = client.get("/v1/search?q=a", headers=headers).json()["found"]
        assert client.get(f"/v1/photos/{one['photo']}").status_code == 401
        assert client.get(f"/v1/photos/{one['photo']}", headers=headers).status_code == 200
    assert locked.stop() == 0
