"""Who is let in when there is a token, and what happens when time runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def locked(start_for_module: Callable[..., Any]) -> Any:
    """A server with a token that gives up on every caption."""
    return start_for_module(settings={"timeout": 0.15, "max_wait": 5.0, "token": TOKEN})


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/captions"), ("GET", "/v1/model"), ("GET", "/metrics")])
@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \u00fc", "Bearer a b"],
)
def test_without_the_token_there_is_nothing(locked: Any, method: str, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("utf-8")}
    answer = httpx.request(method, locked.url + path, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="xlan"'
    assert answer.json()["type"] == "urn:xlan:problem:token"
    assert TOKEN not in answer.text


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/v1/health", "/static/app.js"])
def test_pages_and_health_need_no_token(locked: Any, path: str) -> None:
    assert httpx.get(locked.url + path, timeout=60, trust_env=False).status_code == 200


def test_the_document_asks_for_the_token(locked: Any) -> None:
    document = httpx.get(locked.url + "/openapi.json", timeout=60, trust_env=False).json()
    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert document["paths"]["/v1/captions"]["post"]["security"] == [{"bearer": []}]
    assert "security" not in document["paths"]["/v1/health"]["get"]


def test_with_the_token_and_too_late(locked: Any, picture: Callable[..., bytes]) -> None:
    headers = {"Authorization": f"bearer {TOKEN}"}
    with httpx.Client(base_url=locked.url, headers=headers, timeout=60, trust_env=False) as client:
        assert client.get("/v1/model").status_code == 200
        answer = client.post("/v1/captions", files={"image": picture(0)})
        assert answer.status_code == 504
        assert answer.json() == {
            "type": "urn:xlan:problem:time",
            "title": "The caption was not ready in time",
            "status": 504,
            "detail": "there was no caption within 0.15 seconds",
        }
        assert 'xlan_dropped_total{reason="time"} 1.0' in client.get("/metrics").text


def test_the_token_is_never_logged(locked: Any) -> None:
    httpx.get(locked.url + "/v1/model", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False)
    assert TOKEN not in locked.log.read_text()
