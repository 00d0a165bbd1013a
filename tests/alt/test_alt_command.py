"""`xlan alt`, from what is typed to what comes out, and the review page over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from xlan.alt.document import find_documents
from xlan.alt.review import ReviewServer
from xlan.alt.survey import Finding, survey, undo
from xlan.cli.main import app

PAGE = (
    '<img src="img/1.png">\r\n<img src=/img/2.png alt="2.png">\n<img src="https://example.org/a.jpg">'
    '<img src="img/broken.png"><img src="img/gone.png">'
    '<img src="img/1.png" alt="A red field."><img src=img/dot.png alt="">'
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "img").mkdir(parents=True)
    for seed in (1, 2):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "img" / f"{seed}.png")
    Image.new("RGB", (1, 1)).save(folder / "img" / "dot.png")
    (folder / "img" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    (folder / "index.html").write_bytes(PAGE.encode())
    (folder / "notes.md").write_text("![](img/2.png)\n")
    return folder


@pytest.fixture
def run(model_directory: Path):
    def invoke(*arguments: str | Path) -> Result:
        typed = ["alt", "--model", str(model_directory), *map(str, arguments)]
        return CliRunner().invoke(app, typed, catch_exceptions=False)

    return invoke


def test_the_report(run, site: Path) -> None:
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    result = run(site, "--json")
    assert result.exit_code == 0
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(r["picture"], r["line"], r["column"], r["state"]) for r in records] == [
        ("img/1.png", 1, 1, "missing"),
        ("/img/2.png", 2, 1, "file name"),
        ("https://example.org/a.jpg", 3, 1, "missing"),
        ("img/broken.png", 3, 38, "missing"),
        ("img/gone.png", 3, 64, "missing"),
        ("img/2.png", 1, 1, "missing"),
    ]
    assert [r["note"] for r in records[2:5:2]] == ["not local", "no such file"]
    assert "not a readable picture" in records[3]["note"]
    assert records[1]["suggestion"] == records[5]["suggestion"]
    for record in (records[0], records[1]):
        assert record["suggestion"][0].isupper()
        assert record["suggestion"].endswith(".")
        assert 0 < record["confidence"] < 1
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before
    plain = run(site).stdout.splitlines()
    sure = f"(confidence {100 * records[0]['confidence']:.0f} %)"
    assert plain[0] == f"{site}/index.html:1:1: img/1.png: {records[0]['suggestion']} {sure}"
    assert plain[2] == f"{site}/index.html:3:1: https://example.org/a.jpg: not local"


def test_apply_list_and_undo(run, site: Path) -> None:
    before = (site / "index.html").read_bytes(), (site / "notes.md").read_bytes()
    assert run(site, "--apply", "--min-confidence", "1").stderr.startswith("0 texts written to 0 files; 6 images left")
    assert ((site / "index.html").read_bytes(), (site / "notes.md").read_bytes()) == before
    result = run(site, "--apply", "--min-confidence", "0")
    assert result.exit_code == 0
    assert result.stderr == "3 texts written to 2 files; 3 images left without text (3 without a suggestion)\n"
    after = (site / "index.html").read_bytes(), (site / "notes.md").read_bytes()
    assert after[0].count(b'data-alt-by="xlan"') == 2
    assert after[1].count(b"<!-- alt-by: xlan -->") == 1
    run(site, "--apply", "--min-confidence", "0")
    assert ((site / "index.html").read_bytes(), (site / "notes.md").read_bytes()) == after
    assert len(run(site, "--list").stdout.splitlines()) == 3
    assert run(site, "--undo").stderr == "3 texts removed from 2 files\n"
    assert ((site / "index.html").read_bytes(), (site / "notes.md").read_bytes()) == before


def test_check_needs_no_model(site: Path) -> None:
    def check(path: Path) -> Result:
        return CliRunner().invoke(app, ["alt", str(path), "--check", "--model", "/nowhere"], catch_exceptions=False)

    assert check(site).exit_code == 1
    assert check(site).stderr == "6 images without text in 2 files\n"
    (site / "good.html").write_text('<img src="x.png" alt="A dog.">')
    assert check(site / "good.html").exit_code == 0
    (site / "bad.ipynb").write_text("{")
    result = check(site / "bad.ipynb")
    assert result.exit_code == 1
    assert "bad.ipynb: not valid JSON" in result.stderr


def test_a_document_that_is_named_twice_is_handled_once(run, site: Path) -> None:
    result = run(
        site, site / "notes.md", site / "img" / ".." / "notes.md", "--apply", "--min-confidence", "0", "--json"
    )
    assert result.exit_code == 0, result.stderr
    written = [json.loads(line)["document"] for line in result.stdout.splitlines()]
    assert [Path(name).name for name in written] == ["index.html", "index.html", "notes.md"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-confidence", "0.5"), "has an effect only together with --apply"),
        (("--port", "8000"), "has an effect only together with --review"),
        (("--review", "--json"), "cannot be combined with --review"),
    ],
)
def test_options_that_would_be_ignored_are_refused(run, site: Path, options: tuple[str, ...], message: str) -> None:
    result = run(site, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_modes_exclude_each_other_and_a_wrong_file_is_refused(run, site: Path) -> None:
    result = run(site, "--apply", "--undo")
    assert result.exit_code == 2
    assert "--undo" in result.stderr
    command = [sys.executable, "-m", "xlan", "alt", str(site / "img" / "1.png"), "--check"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert "expected a document (.html" in refused.stderr


def test_a_full_disk_loses_nothing(site: Path) -> None:
    """No file may grow beyond 1 KB in the process: as on a full disk, writing fails in the middle."""
    page = site / "index.html"
    page.write_text('<img src="img/1.png" alt="A dog." data-alt-by="xlan">' + "x" * 5000)
    before = page.read_bytes()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "from xlan.cli.main import main; sys.argv = ['xlan', 'alt', '--undo', sys.argv[1]]; main()"
    )
    result = subprocess.run([sys.executable, "-c", code, str(page)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "File too large" in result.stderr
    assert page.read_bytes() == before
    assert sorted(path.name for path in site.iterdir()) == ["img", "index.html", "notes.md"]


@pytest.fixture
def server(site: Path) -> Iterator[ReviewServer]:
    (site / "marked.html").write_text('<img src="img/1.png" alt="A cat." data-alt-by="xlan">')
    findings: list[Finding] = list(survey(find_documents(site, pytest.fail), site, pytest.fail))
    with ReviewServer(findings) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(address: str, body: object = None, **headers: str) -> tuple[int, bytes, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def test_the_review_writes_decisions(server: ReviewServer, site: Path) -> None:
    status, page, headers = ask(server.address)
    assert status == 200
    assert "script-src 'nonce-" in headers["Content-Security-Policy"]
    assert page.count(b"<form") == 7
    assert page.count(b'value="decorative"') == 6  # Markdown cannot say so
    assert ask(server.address + "picture/0")[1].startswith(b"\xff\xd8\xff")
    assert ask(server.address + "picture/2")[0] == 404

    def decide(**body: object) -> tuple[int, str]:
        status, answer, _ = ask(server.address + "decide", body)
        found = json.loads(answer)
        return status, found.get("result") or found["error"]

    assert decide(number=0, action="accept", text='A "new"\n text.') == (200, 'A "new" text.')
    assert decide(number=0, action="accept", text="again")[0] == 409
    assert decide(number=1, action="decorative") == (200, "decorative")
    assert decide(number=2, action="reject") == (200, "rejected")
    assert decide(number=3, action="accept", text=" ")[0] == 409
    assert decide(number=5, action="reject") == (200, "rejected")  # what --apply wrote
    assert decide(number=6, action="decorative")[0] == 409
    assert decide(number=99, action="accept", text="x")[0] == 409
    assert ask(server.address + "decide", ["x"])[0] == 400
    assert (site / "index.html").read_bytes() == PAGE.encode().replace(
        b'<img src="img/1.png">', b'<img src="img/1.png" alt="A &quot;new&quot; text.">', 1
    ).replace(b'alt="2.png"', b'alt="" role="presentation"')
    assert (site / "marked.html").read_text() == '<img src="img/1.png">'
    (site / "notes.md").write_text("changed\n\n![](img/2.png)\n")
    status, said = decide(number=6, action="accept", text="A dog.")
    assert (status, "changed by another program" in said) == (409, True)
    assert (site / "notes.md").read_text() == "changed\n\n![](img/2.png)\n"


def test_the_review_answers_only_this_machine_and_this_address(server: ReviewServer) -> None:
    port = server.server_address[1]
    assert server.server_address[0] == "127.0.0.1"
    assert ask(f"http://127.0.0.1:{port}/")[0] == 403
    assert ask(f"http://127.0.0.1:{port}/wrong/decide", {})[0] == 403
    assert ask(server.address, None, Host="evil.example")[0] == 403
    assert ask(server.address + "decide", {"number": 0}, **{"Content-Type": "text/plain"})[0] == 404
    assert ask(server.address + "../../etc/passwd")[0] in (403, 404)
    assert server.decided == 0


def test_a_read_only_document_is_reported_and_the_others_are_written(site: Path) -> None:
    for name in ("one.html", "two.html"):
        (site / name).write_text('<img src="img/1.png" alt="A dog." data-alt-by="xlan">')
    (site / "one.html").chmod(0o444)
    said: list[str] = []
    undone = undo(survey([site / "one.html", site / "two.html"], site, pytest.fail), said.append)
    assert [one.document.name for one in undone] == ["two.html"]
    assert said == [f"{site / 'one.html'}: it is read-only; nothing was written"]
    assert "data-alt-by" in (site / "one.html").read_text()
