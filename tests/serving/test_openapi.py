"""The OpenAPI document keeps its word."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from xlan.serving.problems import KINDS

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="needs schemathesis: xlan[dev]")
def test_schemathesis_finds_nothing_undocumented(server: Any, tmp_path: Path) -> None:
    arguments = ["--max-examples", "60", "--seed", "1", "--checks", ",".join(CHECKS), "--no-color"]
    command = [sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    generated = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert generated, done.stdout[-4000:]
    assert int(generated[1]) > 150
    assert "Traceback" not in server.log.read_text()


def test_every_problem_of_a_caption_is_documented(server: Any) -> None:
    document = httpx.get(server.url + "/openapi.json", timeout=60, trust_env=False).json()
    for path in ("/v1/captions", "/v1/captions/batch"):
        check_answers(document["paths"][path]["post"]["responses"])


def check_answers(answers: dict[str, Any]) -> None:
    statuses = {str(status) for status, _ in KINDS.values()} - {"401", "404", "405"}  # no token; other addresses
    assert set(answers) == statuses | {"200"}
    for status in statuses:
        content = answers[status]["content"]["application/problem+json"]
        assert content["schema"] == {"$ref": "#/components/schemas/ProblemAnswer"}
        assert all(example["value"]["status"] == int(status) for example in content["examples"].values())
    assert answers["503"]["headers"]["Retry-After"]["required"] is True


def test_examples_can_be_sent_as_they_stand(server: Any) -> None:
    document = httpx.get(server.url + "/openapi.json", timeout=60, trust_env=False).json()
    for path in ("/v1/captions", "/v1/captions/batch"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in body["examples"].values():
            answer = httpx.post(server.url + path, json=example["value"], timeout=30, trust_env=False)
            assert answer.status_code == 200, answer.text
