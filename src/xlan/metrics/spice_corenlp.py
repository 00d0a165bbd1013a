"""Stanford CoreNLP 3.6.0, the parser of the official SPICE: two jars that this project may not ship.

They come from `stanford-corenlp-full-2015-12-09.zip` (GPL, 536 MB), which `xlan metrics setup-spice` downloads once.
The archive's publisher gives no checksum, so none is built in: `--sha256` checks one that you trust, and without it
the download must come over HTTPS. Every entry's CRC is checked either way, and the SHA-256 of the archive and of both
jars is printed and kept in `corenlp.json` beside the jars.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from xlan.errors import MetricError
from xlan.files import atomic_path, file_sha256, user_cache_dir, user_data_dir, write_json

ARCHIVE = "stanford-corenlp-full-2015-12-09.zip"
ARCHIVE_URL = f"https://nlp.stanford.edu/software/{ARCHIVE}"
CODE_JAR = "stanford-corenlp-3.6.0.jar"
MODELS_JAR = "stanford-corenlp-3.6.0-models.jar"
# The real archive has 536 MB and its larger jar less than that.
MAX_ARCHIVE_BYTES = 1 << 30
MAX_JAR_BYTES = 1 << 30
# An entry that only the right jar has: a renamed or truncated file is refused when it is set up, not while scoring.
_MUST_CONTAIN = {
    CODE_JAR: "edu/stanford/nlp/pipeline/StanfordCoreNLP.class",
    MODELS_JAR: "edu/stanford/nlp/models/lexparser/englishPCFG.ser.gz",
}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_BLOCK = 1 << 20

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Installed:
    """What a set-up left behind: the folder with both jars, and SHA-256 of the archive and of each jar."""

    folder: Path
    archive_sha256: str
    code_sha256: str
    models_sha256: str


def corenlp_dir() -> Path:
    """The folder that `xlan metrics setup-spice` fills."""
    return user_data_dir() / "corenlp-3.6.0"


def find_corenlp(place: Path | None = None, *, otherwise: Path | None = None) -> tuple[Path, Path]:
    """The code jar and the models jar.

    Args:
        place: a folder that holds both (or the unpacked archive's parent), the archive itself (unpacked once into the
            user's cache), or None for the folder that `xlan metrics setup-spice` fills.
        otherwise: a folder to look in when `place` is None and nothing has been set up.

    Raises:
        MetricError: they are not there.
    """
    if place is None:
        jars = _jars_in(corenlp_dir()) or (_jars_in(otherwise) if otherwise is not None else None)
        if jars is None:
            raise MetricError("SPICE needs Stanford CoreNLP 3.6.0, which is not set up; type: xlan metrics setup-spice")
        return jars
    if place.is_dir():
        jars = _jars_in(place) or _jars_in(place / ARCHIVE.removesuffix(".zip"))
        if jars is None:
            raise MetricError(f"{place}: expected {CODE_JAR} and {MODELS_JAR} in this folder; unpack {ARCHIVE} there")
        return jars
    if not place.is_file():
        raise MetricError(f"{place}: no such file or folder; expected {ARCHIVE} or the folder it unpacks to")
    return _jars_of_archive(place)


def _jars_in(folder: Path) -> tuple[Path, Path] | None:
    jars = folder / CODE_JAR, folder / MODELS_JAR
    return jars if all(jar.is_file() for jar in jars) else None


def _jars_of_archive(archive: Path) -> tuple[Path, Path]:
    facts = archive.stat()
    key = hashlib.sha256(f"{archive.resolve()}|{facts.st_size}|{facts.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = user_cache_dir() / "corenlp" / key
    return _jars_in(folder) or _unpacked(install(archive, folder))


def _unpacked(installed: Installed) -> tuple[Path, Path]:
    return installed.folder / CODE_JAR, installed.folder / MODELS_JAR


def install(archive: Path, folder: Path, *, sha256: str | None = None) -> Installed:
    """Check an archive and put its two jars into `folder`; nothing else of it is unpacked.

    Raises:
        MetricError: the archive has another checksum than `sha256`, is too large, damaged or not CoreNLP 3.6.0.
    """
    try:
        if archive.stat().st_size > MAX_ARCHIVE_BYTES:
            raise MetricError(f"{archive}: larger than {MAX_ARCHIVE_BYTES:,} bytes; expected {ARCHIVE}")
        found = file_sha256(archive)
        if sha256 is not None and found != sha256.lower():
            raise MetricError(f"{archive}: expected SHA-256 {sha256.lower()}, got {found}; download it again")
        with zipfile.ZipFile(archive) as box:
            # The models come first: the folder counts as set up when both are there.
            models = _unpack(box, MODELS_JAR, folder)
            code = _unpack(box, CODE_JAR, folder)
    except FileNotFoundError:
        raise MetricError(f"{archive}: no such file; expected {ARCHIVE}") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise MetricError(f"{archive}: not a usable zip file ({error}); download it again") from None
    except OSError as error:
        raise MetricError(f"{archive}: cannot be unpacked to {folder}: {error.strerror or error}") from None
    installed = Installed(folder, archive_sha256=found, code_sha256=code, models_sha256=models)
    write_json(folder / "corenlp.json", {**asdict(installed), "folder": str(folder)})
    return installed


def _unpack(box: zipfile.ZipFile, name: str, folder: Path) -> str:
    """Write the entry called `name` (in whatever folder of the archive) to `folder`; its SHA-256."""
    entries = [entry for entry in box.infolist() if entry.filename.rsplit("/", 1)[-1] == name]
    if len(entries) != 1:
        raise MetricError(f"{box.filename}: expected one {name} inside, found {len(entries)}; expected {ARCHIVE}")
    digest, size = hashlib.sha256(), 0
    with atomic_path(folder / name) as temporary:
        with box.open(entries[0]) as source, temporary.open("wb") as target:
            while block := source.read(_BLOCK):
                size += len(block)
                if size > MAX_JAR_BYTES:
                    raise MetricError(f"{box.filename}: {name} unpacks to more than {MAX_JAR_BYTES:,} bytes")
                digest.update(block)
                target.write(block)
        with zipfile.ZipFile(temporary) as jar:
            if _MUST_CONTAIN[name] not in jar.NameToInfo:
                raise MetricError(f"{box.filename}: {name} does not contain {_MUST_CONTAIN[name]}; expected {ARCHIVE}")
    return digest.hexdigest()


def check_url(url: str, sha256: str | None) -> None:
    """Refuse addresses whose answer cannot be trusted.

    Raises:
        MetricError: the scheme is not https, http or file; or it is plain http to another machine without `sha256`.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "http", "file"):
        raise MetricError(f"{url}: expected an https, http or file address")
    if parts.scheme == "http" and sha256 is None and parts.hostname not in _LOOPBACK:
        raise MetricError(f"{url}: a plain http download can be altered in transit; use https or give --sha256")
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise MetricError(f"--sha256: expected 64 hexadecimal digits, got {len(sha256)} characters")


def download(url: str, target: Path, *, progress: Progress, max_bytes: int = MAX_ARCHIVE_BYTES) -> None:
    """Download to `target`; an interrupted download leaves `target.part`, from which the next one continues.

    Args:
        progress: called with the bytes at hand and the bytes expected (None: the server does not say).

    Raises:
        MetricError: the server cannot be reached, refuses, sends too much or too little.
    """
    part, stamp = target.with_name(target.name + ".part"), target.with_name(target.name + ".part.etag")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _open(url, part, stamp) as answer:
            resumed = getattr(answer, "status", None) == 206
            length = answer.headers.get("Content-Length")
            start = part.stat().st_size if resumed else 0
            expected = start + int(length) if length is not None and length.isdigit() else None
            if expected is not None and expected > max_bytes:
                raise MetricError(f"{url}: {expected:,} bytes are announced, more than the limit of {max_bytes:,}")
            if not resumed:
                stamp.write_text(_validator(answer.headers), encoding="utf-8")
            with part.open("ab" if resumed else "wb") as file:
                _copy(answer, file, url=url, expected=expected, max_bytes=max_bytes, progress=progress)
    except urllib.error.HTTPError as error:
        raise MetricError(f"{url}: the server answers {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise MetricError(f"{url}: cannot be downloaded: {reason}; run the command again to resume") from None
    part.replace(target)
    stamp.unlink(missing_ok=True)


def _open(url: str, part: Path, stamp: Path) -> Any:
    """Ask for the rest of `part` when the server can say that the file is still the same, else for everything."""
    request = urllib.request.Request(url, headers={"User-Agent": "xlan", "Accept-Encoding": "identity"})
    with contextlib.suppress(OSError):
        validator, size = stamp.read_text(encoding="utf-8"), part.stat().st_size
        if validator and size:
            request.add_header("Range", f"bytes={size}-")
            request.add_header("If-Range", validator)
    try:
        return urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not request.has_header("Range"):
            raise
        # The part is as long as the file or longer, so there is no rest to ask for: start again.
        error.close()
        stamp.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
        return _open(url, part, stamp)


def _validator(headers: Any) -> str:
    etag = headers.get("ETag") or ""
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified") or ""


def _copy(
    source: Any, target: IO[bytes], *, url: str, expected: int | None, max_bytes: int, progress: Progress
) -> None:
    size = target.tell()
    while block := source.read(_BLOCK):
        size += len(block)
        if size > max_bytes:
            raise MetricError(f"{url}: more than the limit of {max_bytes:,} bytes arrived")
        target.write(block)
        progress(size, expected)
    if expected is not None and size != expected:
        raise MetricError(f"{url}: {size:,} of {expected:,} bytes arrived; run the command again to resume")
