"""Finding, downloading and unpacking CoreNLP, with a small archive of the same shape."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from xlan.cli.setup_spice import setup_spice
from xlan.errors import MetricError
from xlan.metrics import spice_corenlp
from xlan.metrics.spice_corenlp import ARCHIVE, CODE_JAR, MODELS_JAR, check_url, download, find_corenlp, install

CODE_ENTRY = "edu/stanford/nlp/pipeline/StanfordCoreNLP.class"
MODELS_ENTRY = "edu/stanford/nlp/models/lexparser/englishPCFG.ser.gz"


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as box:
        for name, content in entries.items():
            box.writestr(name, content)
    return buffer.getvalue()


CODE = zipped({CODE_ENTRY: b"code" * 1000})
MODELS = zipped({MODELS_ENTRY: bytes(range(256)) * 4000})


def archive_bytes(**changes: bytes) -> bytes:
    top = ARCHIVE.removesuffix(".zip")
    entries = {f"{top}/README.txt": b"read me", f"{top}/{CODE_JAR}": CODE, f"{top}/{MODELS_JAR}": MODELS}
    return zipped({**entries, "../../escape.txt": b"no", **changes})


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "in" / ARCHIVE
    path.parent.mkdir()
    path.write_bytes(archive_bytes())
    return path


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLAN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XLAN_DATA_DIR", str(tmp_path / "data"))


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `content`; understands ranges; `cut` bytes and no more per answer; remembers the ranges asked for."""

    content = b""
    cut: int | None = None
    etag = '"one"'
    asked: list[str | None]

    def do_GET(self) -> None:
        cls = type(self)
        cls.asked.append(self.headers.get("Range"))
        start = 0
        if self.headers.get("Range") and self.headers.get("If-Range") == cls.etag:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if start >= len(cls.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("ETag", cls.etag)
        self.send_header("Content-Length", str(len(cls.content) - start))
        self.end_headers()
        self.wfile.write(cls.content[start:] if cls.cut is None else cls.content[start : start + cls.cut])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(archive: Path) -> Iterator[tuple[str, type[Server]]]:
    handler = type("Handler", (Server,), {"content": archive.read_bytes(), "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}/{ARCHIVE}", handler
        running.shutdown()
        thread.join()


def nothing(done: int, total: int | None) -> None:
    pass


# --- unpacking --------------------------------------------------------------------------------------------------------


def test_only_the_two_jars_are_unpacked_and_their_checksums_kept(archive: Path, tmp_path: Path) -> None:
    installed = install(archive, tmp_path / "out" / "deep")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file()) == [
        "corenlp.json",
        MODELS_JAR,
        CODE_JAR,
    ]
    assert not list(tmp_path.rglob("escape.txt"))
    assert (installed.folder / CODE_JAR).read_bytes() == CODE
    noted = json.loads((installed.folder / "corenlp.json").read_text())
    assert noted["models_sha256"] == installed.models_sha256 == hashlib.sha256(MODELS).hexdigest()
    assert noted["archive_sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a zip", "not a usable zip file"),
        (zipped({"readme": b""}), f"expected one {MODELS_JAR} inside, found 0"),
        (zipped({f"a/{MODELS_JAR}": MODELS, f"b/{MODELS_JAR}": MODELS}), "found 2"),
        (zipped({MODELS_JAR: MODELS, CODE_JAR: zipped({"other": b""})}), f"does not contain {CODE_ENTRY}"),
        (zipped({MODELS_JAR: b"not a jar"}), "not a usable zip file"),
        (archive_bytes()[: len(archive_bytes()) // 2], "not a usable zip file"),
    ],
)
def test_wrong_archives_are_refused_and_leave_nothing_usable(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(content)
    with pytest.raises(MetricError, match=message):
        install(path, tmp_path / "out")
    with pytest.raises(MetricError, match="expected stanford-corenlp"):
        find_corenlp(tmp_path / "out") if (tmp_path / "out").exists() else find_corenlp(tmp_path)


def test_a_flipped_bit_is_noticed(archive: Path, tmp_path: Path) -> None:
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as box:
        entry = next(entry for entry in box.infolist() if entry.filename.endswith(MODELS_JAR))
    content[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 1
    archive.write_bytes(content)
    with pytest.raises(MetricError, match="not a usable zip file"):
        install(archive, tmp_path / "out")


def test_a_jar_that_unpacks_to_too_much_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spice_corenlp, "MAX_JAR_BYTES", 100)
    with pytest.raises(MetricError, match="unpacks to more than 100 bytes"):
        install(archive, tmp_path / "out")


def test_another_checksum_is_refused(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=f"expected SHA-256 {'0' * 64}, got [0-9a-f]{{64}}"):
        install(archive, tmp_path / "out", sha256="0" * 64)
    assert not (tmp_path / "out").exists()


# --- finding ----------------------------------------------------------------------------------------------------------


def test_a_folder_its_parent_or_the_archive_will_do(archive: Path, tmp_path: Path) -> None:
    folder = install(archive, tmp_path / "unzipped" / ARCHIVE.removesuffix(".zip")).folder
    assert find_corenlp(folder) == find_corenlp(folder.parent) == (folder / CODE_JAR, folder / MODELS_JAR)
    code, models = find_corenlp(archive)
    assert (code.read_bytes(), models.read_bytes()) == (CODE, MODELS)
    assert code.is_relative_to(tmp_path / "cache")
    assert find_corenlp(archive) == (code, models)


def test_what_was_set_up_comes_before_the_other_place(archive: Path, tmp_path: Path) -> None:
    other = install(archive, tmp_path / "other").folder
    assert find_corenlp(otherwise=other)[0].parent == other
    own = install(archive, spice_corenlp.corenlp_dir()).folder
    assert find_corenlp(otherwise=other)[0].parent == own
    with pytest.raises(MetricError, match="in this folder"):
        find_corenlp(tmp_path, otherwise=other)


def test_a_place_without_corenlp_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=r"expected stanford-corenlp-3\.6\.0\.jar and .* in this folder"):
        find_corenlp(tmp_path)
    with pytest.raises(MetricError, match="no such file or folder"):
        find_corenlp(tmp_path / "nowhere")


# --- downloading ------------------------------------------------------------------------------------------------------


def test_an_interrupted_download_goes_on_where_it_stopped(
    server: tuple[str, type[Server]], archive: Path, tmp_path: Path
) -> None:
    url, handler = server
    handler.cut = 1000
    with pytest.raises(MetricError, match=r"run the command again to resume"):
        download(url, tmp_path / "x.zip", progress=nothing)
    assert not (tmp_path / "x.zip").exists()
    handler.cut = None
    seen: list[tuple[int, int | None]] = []
    download(url, tmp_path / "x.zip", progress=lambda done, total: seen.append((done, total)))
    assert handler.asked == [None, "bytes=1000-"]
    assert (tmp_path / "x.zip").read_bytes() == archive.read_bytes()
    assert seen[-1] == (archive.stat().st_size,) * 2
    assert not list(tmp_path.glob("*.part*"))


def test_a_file_that_changed_meanwhile_is_downloaded_from_the_start(
    server: tuple[str, type[Server]], archive: Path, tmp_path: Path
) -> None:
    url, handler = server
    handler.cut = 1000
    with pytest.raises(MetricError):
        download(url, tmp_path / "x.zip", progress=nothing)
    handler.cut, handler.etag = None, '"two"'
    download(url, tmp_path / "x.zip", progress=nothing)
    assert (tmp_path / "x.zip").read_bytes() == archive.read_bytes()


def test_a_part_that_is_already_longer_is_downloaded_from_the_start(
    server: tuple[str, type[Server]], archive: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.zip.part").write_bytes(b"x" * 2 * archive.stat().st_size)
    (tmp_path / "x.zip.part.etag").write_text('"one"')
    download(server[0], tmp_path / "x.zip", progress=nothing)
    assert (tmp_path / "x.zip").read_bytes() == archive.read_bytes()


@pytest.mark.parametrize("announced", [True, False])
def test_too_large_a_download_is_stopped(
    server: tuple[str, type[Server]], archive: Path, tmp_path: Path, announced: bool
) -> None:
    url = server[0] if announced else archive.as_uri()
    with pytest.raises(MetricError, match=r"more than the limit of 1,000"):
        download(url, tmp_path / "x.zip", progress=nothing, max_bytes=1000)


def test_servers_that_refuse_or_are_not_there(tmp_path: Path, server: tuple[str, type[Server]]) -> None:
    server[1].content = b""
    with pytest.raises(MetricError, match="the server answers 416"):
        download(server[0], tmp_path / "x.zip", progress=nothing)
    with pytest.raises(MetricError, match="cannot be downloaded"):
        download("http://127.0.0.1:9/x.zip", tmp_path / "x.zip", progress=nothing)


@pytest.mark.parametrize(
    ("url", "sha256", "message"),
    [
        ("ftp://example.org/x.zip", None, "expected an https, http or file address"),
        ("http://example.org/x.zip", None, "plain http download can be altered in transit; use https or give --sha256"),
        ("https://example.org/x.zip", "abc", "expected 64 hexadecimal digits, got 3"),
    ],
)
def test_addresses_that_nobody_vouches_for(url: str, sha256: str | None, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        check_url(url, sha256)


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer()
    app.command()(setup_spice)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.exception


def test_the_command_downloads_unpacks_and_cleans_up(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    status, output, _ = run("--url", server[0])
    assert status == 0
    assert str(tmp_path / "data" / "corenlp-3.6.0") in output
    assert hashlib.sha256(server[1].content).hexdigest() in output
    code, _models = find_corenlp()
    assert code.read_bytes() == CODE
    assert not list((tmp_path / "data").glob("*.zip*"))


def test_the_command_takes_an_archive_from_disk_and_leaves_it_there(archive: Path) -> None:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert run("--from", str(archive), "--sha256", digest.upper())[0] == 0
    assert archive.exists()
    assert find_corenlp()[1].read_bytes() == MODELS


def test_a_bad_download_is_not_kept(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    server[1].content = b"<html>moved</html>"
    status, _, error = run("--url", server[0])
    assert status == 1
    assert isinstance(error, MetricError)
    assert not list((tmp_path / "data").rglob("*.zip"))


def test_two_sources_at_once_are_wrong_usage(archive: Path) -> None:
    assert run("--from", str(archive), "--url", "https://example.org/x.zip")[0] == 2
