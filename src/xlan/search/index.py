"""The index of a folder on disk, in shards that are written once.

    index.json                   format, folder, model, shards with their deleted rows, skipped pictures
    photos-00001.safetensors     see `shards`
    .writing.lock                held by the process that changes the index

A shard is written under a temporary name, flushed, renamed, and only then named by `index.json`, which is replaced in
one step too; shards are never changed. A writer killed at any moment therefore loses at most what it had not yet
written. Small shards are merged as they come, so that there are few of them; each picture is copied only a few times.
Everything can be rebuilt from the photos, so damaged parts are dropped and their photos indexed again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.errors import DataError, SearchError
from xlan.files import open_locked, read_json, remove_leftovers, user_cache_dir, write_json
from xlan.search.shards import Record, Shard, write_shard

MANIFEST, LOCK = "index.json", ".writing.lock"
FORMAT, VERSION = "xlan-search", 1
LARGEST_SHARD = 4096  # pictures
_SHARD = re.compile(r"photos-(\d{5,})\.safetensors")
_TRIES = 3  # to open an index that another process is changing

Problem = Callable[[str], None]


@dataclass(frozen=True)
class Skip:
    """A picture that cannot be indexed: its file's size, times and inode when it was tried, and why."""

    state: tuple[int, ...]
    reason: str


class Index:
    """An index opened for reading; inside `writing` it may be changed.

    Attributes:
        path: its folder.
        identity: the model and the engine whose encodings it has.
        folder: the folder whose pictures it has, without links.
        shards: the pictures, in order.
        gone: the deleted rows of each shard.
        skipped: pictures that cannot be indexed, by name.
    """

    def __init__(self, path: Path, identity: str, folder: Path) -> None:
        self.path, self.identity, self.folder = path, identity, folder
        self.shards: list[Shard] = []
        self.gone: list[set[int]] = []
        self.skipped: dict[bytes, Skip] = {}
        self.changed = False  # whether memory and disk differ
        self._next = 1

    @classmethod
    def read(cls, path: Path, identity: str, folder: Path, problem: Problem | None = None) -> Index:
        """Open an index; if there is none, an empty one.

        Args:
            path: its folder.
            identity: of the model and the engine.
            folder: the folder whose pictures it has.
            problem: called with one line for each part that is damaged or of another model and will be indexed again;
                without it, such a part is an error.

        Raises:
            SearchError: the folder contains other files, or the index is damaged and `problem` is None.
        """
        for left in reversed(range(_TRIES)):
            index = cls(path, identity, folder)
            try:
                index._read(problem if left == 0 else None)
                return index
            except SearchError:  # another process may have merged shards meanwhile
                if left == 0 or (problem is None and left == 1):
                    raise
        raise AssertionError

    def __len__(self) -> int:
        return sum(shard.count - len(gone) for shard, gone in zip(self.shards, self.gone, strict=True))

    def live(self, number: int) -> npt.NDArray[np.int64]:
        """Rows of a shard that are not deleted."""
        kept = np.ones(self.shards[number].count, bool)
        kept[sorted(self.gone[number])] = False
        return kept.nonzero()[0]

    @staticmethod
    def stamp(path: Path) -> tuple[int, ...] | None:
        """Identifies the state of the index in a folder; it differs after every change.

        None where there is no index, or nobody can tell.
        """
        try:
            found = (path / MANIFEST).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    @property
    def size(self) -> int:
        """Size of the shards on disk."""
        return sum(shard.bytes for shard in self.shards)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, problem: Problem | None) -> None:
        manifest = self.path / MANIFEST
        if not self._has_manifest():
            self._refuse_foreign()
            if any(self._files()):
                self._recover(f"{manifest}: missing", problem)
            return
        try:
            value = read_json(manifest)
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise DataError(f"{manifest}: not a search index")
        except DataError as error:
            self._recover(str(error), problem)
            return
        if value.get("version") != VERSION:
            raise SearchError(
                f"{self.path}: index version {value.get('version')!r}, expected {VERSION}; "
                "remove it with --forget, or update xlan"
            )
        self._check_folder(value)
        if value.get("identity") != self.identity:
            self._report(f"{self.path}: was made with another model and is rebuilt", problem)
            return
        try:
            self._read_manifest(value, problem)
        except (KeyError, TypeError, ValueError) as error:
            self._recover(f"{manifest}: damaged: {error}", problem)

    def _read_manifest(self, value: dict[str, Any], problem: Problem | None) -> None:
        self._next = int(value["next"])
        self.skipped = {bytes.fromhex(name): Skip(tuple(state), str(why)) for name, state, why in value["skipped"]}
        for entry in value["shards"]:
            file, size, gone = str(entry["file"]), int(entry["bytes"]), {int(row) for row in entry["gone"]}
            if not _SHARD.fullmatch(file):
                raise ValueError(f"{file!r} is not the name of a shard")
            try:
                shard = Shard(self.path / file, self.identity, size)
            except SearchError as error:
                self._report(f"{error}; its pictures are indexed again", problem, str(error))
                continue
            if gone and not 0 <= min(gone) <= max(gone) < shard.count:
                raise ValueError(f"deleted rows of {file} are out of range")
            self.shards.append(shard)
            self.gone.append(gone)

    def _recover(self, why: str, problem: Problem | None) -> None:
        """Rebuild the manifest from the shards."""
        self._report(f"{why}; it is rebuilt from the parts of the index", problem, why)
        self.shards, self.gone, self.skipped = [], [], {}
        for file in self._files():
            with contextlib.suppress(SearchError):
                self.shards.append(Shard(file, self.identity))
                self.gone.append(set())
            self._next = max(self._next, _number(file.name) + 1)

    def _report(self, line: str, problem: Problem | None, otherwise: str = "") -> None:
        if problem is None:
            raise SearchError(f"{otherwise or line}; search without --no-update to repair the index")
        problem(line)
        self.changed = True

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return sorted((one for one in self.path.iterdir() if _SHARD.fullmatch(one.name)), key=lambda p: _number(p.name))

    def check_place(self) -> None:
        """Refuse a folder that contains other files, before anything is written to it.

        Raises:
            SearchError: it holds other files, or the index of another folder.
        """
        if not self._has_manifest():
            self._refuse_foreign()
            return
        with contextlib.suppress(DataError):
            self._check_folder(read_json(self.path / MANIFEST))

    def _has_manifest(self) -> bool:
        try:
            (self.path / MANIFEST).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
            raise SearchError(f"{self.path}: {why}; choose another place with --index") from None
        return True

    def _check_folder(self, value: Any) -> None:
        known = value.get("folder") if isinstance(value, dict) else None
        if known is not None and known != os.fsencode(self.folder).hex():
            raise SearchError(f"{self.path}: is the index of another folder; name another place with --index")

    def _refuse_foreign(self) -> None:
        try:
            names = [one.name for one in self.path.iterdir()] if self.path.exists() else []
        except OSError as error:
            raise SearchError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        foreign = [name for name in names if not _is_ours(name)]
        if foreign:
            raise SearchError(f"{self.path}: expected an empty folder or an index, but it holds {foreign[0]!r}")

    # --- writing ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the index against changes by other processes.

        Raises:
            BusyIndexError: another process is changing it.
            SearchError: it cannot be written.
        """
        with self._clearly():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = open_locked(self.path / LOCK)
            except BlockingIOError:
                raise BusyIndexError(f"{self.path}: another process is changing this index; wait for it") from None
        try:
            remove_leftovers(self.path)
            yield
        finally:
            os.close(lock)

    def add(self, records: Sequence[Record], arrays: Sequence[str]) -> None:
        """Add pictures and write them to disk.

        Raises:
            SearchError: they cannot be written; the index is as it was before.
        """
        if not records:
            return
        with self._clearly():
            self._append(self._write(records, arrays))
            self.save()
        with contextlib.suppress(OSError):  # many small shards are slower, but correct
            self._join()

    def forget(self, rows: Iterable[tuple[int, int]]) -> None:
        """Mark rows (shard, row) as deleted; call `save` afterwards."""
        for number, row in rows:
            self.gone[number].add(row)
            self.changed = True

    def save(self) -> None:
        """Write the manifest, and rewrite shards most of whose rows are deleted.

        Raises:
            SearchError: it cannot be written.
        """
        with self._clearly():
            with contextlib.suppress(OSError):
                self._compact()
            self._save()

    def _save(self) -> None:
        write_json(
            self.path / MANIFEST,
            {
                "format": FORMAT,
                "version": VERSION,
                "folder": os.fsencode(self.folder).hex(),
                "folder_name": os.fspath(self.folder),
                "identity": self.identity,
                "next": self._next,
                "pictures": len(self),
                "shards": [
                    {"file": shard.path.name, "bytes": shard.bytes, "pictures": shard.count, "gone": sorted(gone)}
                    for shard, gone in zip(self.shards, self.gone, strict=True)
                ],
                "skipped": [[name.hex(), list(skip.state), skip.reason] for name, skip in self.skipped.items()],
            },
            indent=1,
        )
        self.changed = False
        named = {shard.path.name for shard in self.shards}
        for file in self._files():
            if file.name not in named:
                with contextlib.suppress(OSError):  # another process may still read it; the next save removes it
                    file.unlink()

    def _write(self, records: Sequence[Record], arrays: Sequence[str]) -> Shard:
        path = self.path / f"photos-{self._next:05d}.safetensors"
        self._next += 1
        return Shard(path, self.identity, write_shard(path, self.identity, arrays, records))

    def _append(self, shard: Shard) -> None:
        self.shards.append(shard)
        self.gone.append(set())

    def _join(self) -> None:
        """Merge the last two shards while the older one is no larger, as a counter carries its digits."""
        while len(self.shards) > 1:
            older, newer = (self.shards[i].count - len(self.gone[i]) for i in (-2, -1))
            if older > newer or older + newer > LARGEST_SHARD:
                return
            records = [self.shards[i].record(int(row)) for i in (-2, -1) for row in self.live(len(self.shards) + i)]
            joined = self._write(records, self.shards[-1].arrays)
            self.shards[-2:], self.gone[-2:] = [joined], [set()]
            self._save()

    def _compact(self) -> None:
        for number in reversed(range(len(self.shards))):
            shard, rows = self.shards[number], self.live(number)
            if not len(rows):
                del self.shards[number], self.gone[number]
            elif 2 * len(rows) < shard.count:
                self.shards[number] = self._write([shard.record(int(row)) for row in rows], shard.arrays)
                self.gone[number] = set()

    @contextlib.contextmanager
    def _clearly(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            advice = "free some space and search again, or choose" if full else "allow it, or choose"
            raise SearchError(
                f"{self.path}: cannot be written: {error.strerror or error}; photos indexed so far are kept: {advice} "
                "another place with --index"
            ) from None


class BusyIndexError(SearchError):
    """Another process is changing the index."""


def default_place(folder: Path, identity: str) -> Path:
    """The default place for the index of a folder and a model: in the user's cache."""
    return _home(folder) / hashlib.sha256(identity.encode()).hexdigest()[:16]


def forget(folder: Path, place: Path | None = None) -> int:
    """Remove the indexes of a folder, of all models, or the one in `place`; returns how many there were.

    Raises:
        BusyIndexError: another process is changing one of them.
        SearchError: `place` contains other files, or an index cannot be removed.
    """
    home = _home(folder)
    places = [place] if place is not None else sorted(home.iterdir()) if home.is_dir() else []
    count = 0
    for one in places:
        if not one.exists():
            continue
        foreign = [item.name for item in one.iterdir() if not _is_ours(item.name)]
        if foreign:
            raise SearchError(f"{one}: not removed: expected an index, but it holds {foreign[0]!r}")
        index = Index(one, "", folder.resolve())
        index.check_place()
        with index.writing():  # refuse while another process writes; Windows removes no open file
            pass
        try:
            shutil.rmtree(one)
        except OSError as error:
            raise SearchError(f"{one}: cannot be removed: {error.strerror or error}") from None
        count += 1
    if place is None:
        with contextlib.suppress(OSError):
            home.rmdir()
    return count


def _home(folder: Path) -> Path:
    return user_cache_dir() / "search" / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, LOCK) or bool(_SHARD.fullmatch(name)) or (name.startswith(".") and name.endswith(".tmp"))


def _number(name: str) -> int:
    found = _SHARD.fullmatch(name)
    return int(found[1]) if found else 0
