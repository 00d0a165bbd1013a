"""Reading and writing files so that nothing is lost and nothing hostile gets in; also hashes, locks and user folders.

Writers put the bytes under a temporary name in the same folder, flush them to disk and rename: a reader sees the
old file or the new one, never half of one, whenever the process dies.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from xlan.errors import DataError

MAX_JSON_BYTES = 1 << 30
_BLOCK = 1 << 20
_XZ_MEMORY = 128 << 20  # `xz -9` needs 65 MiB
_ANY_WRITER = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def _mode_of_new_files() -> int:
    """Asked once, at import: to ask is to set it for a moment, for the files of all threads."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


_NEW_FILE = _mode_of_new_files()


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it to disk and rename it to `path`, else remove it.

    The file gets the permissions `mode`, by default those of any new file.

    Raises:
        OSError: it cannot be written; the error names `path`, since nobody knows the temporary name.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    end = target.name[-60:]  # a name may have 255 bytes, and a letter takes up to 4 of them
    try:
        handle, name = tempfile.mkstemp(prefix=f".{end}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        error.filename = os.fspath(target)
        raise
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(_NEW_FILE if mode is None else mode)
        sync_file(temporary)
        temporary.replace(target)
        sync_folder(target.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) == name:
            error.filename, error.filename2 = os.fspath(target), None
        raise


def replace_file(path: str | os.PathLike[str], content: bytes, *, keep_times: bool = False) -> None:
    """Replace an existing file atomically; the new one has its permissions and, if wanted, its times.

    Raises:
        OSError: it cannot be written, or it is read-only; the old file is then still there.
    """
    target = Path(path)
    before = target.stat()
    if not before.st_mode & _ANY_WRITER:  # a rename asks for the folder's permission only
        raise PermissionError(errno.EACCES, "it is read-only", os.fspath(target))
    with atomic_path(target, mode=stat.S_IMODE(before.st_mode)) as temporary:
        temporary.write_bytes(content)
        with contextlib.suppress(OSError, AttributeError):  # only root may give files away; Windows has no owners
            os.chown(temporary, before.st_uid, before.st_gid)
        if keep_times:
            os.utime(temporary, ns=(before.st_atime_ns, before.st_mtime_ns))


def sync_file(path: Path) -> None:
    """Flush a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files and folders of killed writers from a folder that nobody else is writing to."""
    for path in (*Path(folder).glob(".*.tmp"), *Path(folder).glob(".tmp??????")):  # the latter are of safetensors
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically.

    Half a surrogate pair (a file name in an old encoding, an odd escape in somebody's JSON) is written as its escape
    `\\udXXX`, which a reader of JSON turns back into the same.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content`, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: str | os.PathLike[str], value: Any, *, indent: int | None = 2) -> None:
    """Write `value` as JSON, atomically, with a final newline."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_bytes(path: str | os.PathLike[str], *, max_bytes: int) -> bytes:
    """Read a file written by anybody: size-limited, unpacked when its name ends in `.gz` or `.xz`.

    Raises:
        DataError: the file is missing, unreadable or larger than `max_bytes` (unpacked).
    """
    source = Path(path)
    try:
        with source.open("rb") as file:  # a pipe or a device has no size to ask for
            content = _UNPACK.get(source.suffix.lower(), _read)(file, max_bytes + 1)
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{source}: not a valid {source.suffix.lower()} file: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{source}: no such file") from None
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror or error}") from None
    if len(content) > max_bytes:
        raise DataError(f"{source}: more than the limit of {max_bytes:,} bytes for such a file")
    return content


def read_text(path: str | os.PathLike[str], *, max_bytes: int) -> str:
    """Read a text file written by anybody: UTF-8, size-limited, unpacked like `read_bytes` does it.

    Raises:
        DataError: the file is missing, unreadable, larger than `max_bytes` or not UTF-8.
    """
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{Path(path)}: not UTF-8 text (byte {error.start})") from None


def _read(file: BinaryIO, limit: int) -> bytes:
    return file.read(limit)


def _read_gzip(file: BinaryIO, limit: int) -> bytes:
    with gzip.GzipFile(fileobj=file) as unpacked:
        return unpacked.read(limit)


def _read_xz(file: BinaryIO, limit: int) -> bytes:
    """Unpack at most `limit` bytes; the header of a hostile file may ask for gigabytes of memory and gets none."""
    pieces: list[bytes] = []
    rest, left = b"", limit
    while left and (rest := rest or file.read(_BLOCK)):  # a file may hold several streams
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        while left and not stream.eof:
            if stream.needs_input and not (rest := rest or file.read(_BLOCK)):
                raise EOFError("it is truncated")
            pieces.append(stream.decompress(rest, max_length=left))
            rest, left = b"", left - len(pieces[-1])
        rest = stream.unused_data
    return b"".join(pieces)


_UNPACK: dict[str, Callable[[BinaryIO, int], bytes]] = {".gz": _read_gzip, ".xz": _read_xz}


def is_json(name: str | os.PathLike[str]) -> bool:
    """Whether a file is JSON by its name, compressed or not."""
    return os.fspath(name).lower().endswith((".json", ".json.gz", ".json.xz"))


def read_json(path: str | os.PathLike[str], *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file written by anybody, `.gz` and `.xz` too: size-limited, errors name the file and the place.

    Raises:
        DataError: the file is missing, unreadable, larger than `max_bytes`, not UTF-8 or not JSON.
    """
    source = Path(path)
    content = read_text(source, max_bytes=max_bytes)
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise DataError(f"{source}: not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:  # a number with thousands of digits
        raise DataError(f"{source}: not usable as JSON: {error}") from None
    except RecursionError:
        raise DataError(f"{source}: JSON is nested too deeply") from None


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content in hexadecimal, read piece by piece.

    Raises:
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_locked(path: str | os.PathLike[str]) -> int:
    """Open a file for reading and writing, make it if needed, and keep other processes that lock it out.

    The lock ends when the handle is closed or the process dies. Systems without `flock` open the file without a lock.

    Returns:
        the handle; close it with `os.close`.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags, 0o666)
    with contextlib.suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
    return handle


def user_cache_dir() -> Path:
    """Folder for files that can be made again: `XLAN_CACHE_DIR`, else the platform's folder for caches."""
    chosen = os.environ.get("XLAN_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("xlan", appauthor=False)


def user_data_dir() -> Path:
    """Folder for files that were set up once: `XLAN_DATA_DIR`, else the platform's folder for application data."""
    chosen = os.environ.get("XLAN_DATA_DIR")
    return Path(chosen).expanduser() if chosen else platformdirs.user_data_path("xlan", appauthor=False)


def read_json_lines(path: str | os.PathLike[str], *, max_bytes: int = MAX_JSON_BYTES) -> Iterator[dict[str, Any]]:
    """The objects of a file with one JSON object a line; other lines, such as one cut short by a kill, are skipped.

    Raises:
        DataError: the file is missing, unreadable or larger than `max_bytes`.
    """
    for line in read_bytes(path, max_bytes=max_bytes).splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record
