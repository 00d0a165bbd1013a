"""Folders and files anywhere: local paths and every address that fsspec knows (`s3://`, `gs://`, `memory://`, …).

Whole files are written here. On a local disk that is a temporary name, a flush and a rename; object stores show an
object only when all of it has arrived. Errors of every file system become one line.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from xlan.errors import DataError, MissingExtraError, one_line
from xlan.files import atomic_path

TRIES = 4  # of a request to a storage that is not local
_FIRST_PAUSE = 0.25  # seconds before the second try; each further pause is three times as long
# Answers that no retry would change.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


def is_address(text: str) -> bool:
    """Whether a text is an address such as `s3://bucket/x` and not a local path."""
    return "://" in text


@lru_cache(maxsize=64)
def _file_system(protocol: str, place: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtraError("xlan batch", "batch") from None
    try:
        return cast("tuple[Any, str]", url_to_fs(place))
    except ImportError as error:  # says which package to install
        raise DataError(f"{place}: {one_line(error)}") from None
    except ValueError as error:
        raise DataError(f"{place}: this kind of address ({protocol}) cannot be opened: {one_line(error)}") from None


def open_place(place: str) -> tuple[Any, str]:
    """The fsspec file system of a path or an address, and the path inside it.

    Raises:
        DataError: nothing can open such an address, or its package is not installed; the message names the package.
    """
    protocol = place.split("://", 1)[0] if is_address(place) else "file"
    # One file system per protocol and host: opening one per picture would open a connection per picture.
    host = place.split("://", 1)[1].split("/", 1)[0] if is_address(place) else ""
    fs, _ = _file_system(protocol, f"{protocol}://{host}" if is_address(place) else "/")
    return fs, cast("str", fs._strip_protocol(place))


def is_local(place: str) -> bool:
    """Whether a path or an address lies in the file system of this machine."""
    return not is_address(place) or place.startswith("file://")


def trying(place: str, work: Any) -> Any:
    """`work()`; on a storage that is not local, again after a pause when the request failed in transit.

    Raises:
        OSError: what the storage answered in the end.
    """
    pause = _FIRST_PAUSE
    for left in reversed(range(1 if is_local(place) else TRIES)):
        try:
            return work()
        except Exception as error:  # every client has exceptions of its own
            if not left or isinstance(error, _FINAL) or _is_final(error):
                raise
        time.sleep(pause)
        pause *= 3
    raise AssertionError("unreachable")


def _is_final(error: Exception) -> bool:
    status = getattr(error, "status", None)  # of an HTTP answer
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429)


class Storage:
    """A folder to write to and read from, by the names of the files in it.

    Args:
        place: a local folder, or an address that fsspec knows.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or place
        self.fs, self.root = open_place(place)
        self.root = self.root.rstrip("/")
        self.local = Path(self.root) if is_local(place) else None

    def path(self, name: str) -> str:
        """The path of a file inside the file system."""
        return f"{self.root}/{name}"

    def shown(self, name: str) -> str:
        """What messages call a file."""
        return f"{self.place}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole.

        Raises:
            DataError: it cannot be written; an older file of this name is as it was.
        """
        with self._told(name, "written"):
            if self.local is not None:
                with atomic_path(self.local / name) as temporary:
                    temporary.write_bytes(content)
            else:
                trying(self.place, lambda: self.fs.pipe_file(self.path(name), content))

    def put(self, source: Path, name: str) -> None:
        """Move a local file to its place as a whole; on the same disk it is renamed.

        Raises:
            DataError: it cannot be written.
        """
        with self._told(name, "written"):
            if self.local is not None:
                source.replace(self.local / name)
            else:
                trying(self.place, lambda: self.fs.put_file(str(source), self.path(name)))

    def read(self, name: str) -> bytes | None:
        """The content of a file; None when there is none of this name.

        Raises:
            DataError: it cannot be read.
        """
        with self._told(name, "read"):
            try:
                return cast("bytes", trying(self.place, lambda: self.fs.cat_file(self.path(name))))
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading at any place of it.

        Raises:
            DataError: it cannot be opened.
        """
        with self._told(name, "read"):
            file = trying(self.place, lambda: self.fs.open(self.path(name), "rb"))
        with file:
            yield file

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names and sizes of the files in a folder, without its subfolders; empty when there is no such folder.

        Raises:
            DataError: it cannot be listed.
        """
        with self._told(folder, "listed"):
            return {
                entry["name"].rstrip("/").rsplit("/", 1)[-1]: int(entry.get("size") or 0)
                for entry in self._entries(folder)
                if entry["type"] != "directory"
            }

    def names(self) -> list[str]:
        """Everything that lies directly in the folder, files and folders; empty when it does not exist.

        Raises:
            DataError: it cannot be listed.
        """
        with self._told("", "listed"):
            return sorted(entry["name"].rstrip("/").rsplit("/", 1)[-1] for entry in self._entries(""))

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        path = self.path(folder) if folder else self.root
        try:
            self.fs.invalidate_cache(path)
            found = trying(self.place, lambda: self.fs.ls(path, detail=True))
        except FileNotFoundError:
            return []
        # An object store lists a "folder" that is an object as itself.
        return [entry for entry in found if entry["name"].rstrip("/") != path.rstrip("/")]

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens when it does not exist.

        Raises:
            DataError: it cannot be removed.
        """
        with self._told(name, "removed"), contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path(name), recursive=True)

    def make(self) -> None:
        """Make the folder, where folders have to be made.

        Raises:
            DataError: it cannot be made.
        """
        with self._told("", "made"):
            if self.local is not None:
                self.local.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:
            where = self.shown(name) if name else self.place
            raise DataError(f"{where}: cannot be {what}: {reason(error)}") from None


def reason(error: BaseException) -> str:
    """What a storage says went wrong, in one line."""
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return "File too large (a limit of this system)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    if isinstance(error, PermissionError):
        return f"permission denied ({one_line(error)})" if str(error) else "permission denied"
    return one_line(error)
