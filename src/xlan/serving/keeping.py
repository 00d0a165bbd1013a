"""Keeps the library of a running server up to date, in one thread beside all requests.

Every second it looks whether the index on disk has changed, which costs a look at one file, and every `rescan` seconds
whether the folder has: then only photos that are new or changed are opened. These are indexed a few at a time, and
before each few it waits until no request is in progress, within limits: requests come first, but the index gets on.
What cannot be done is said once, and searches go on with what there is.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from xlan.errors import SearchError
from xlan.search import PhotoSearch
from xlan.search.index import BusyIndexError
from xlan.search.update import Update

_POLL = 1.0  # seconds between looks at the index
_BATCH = 4  # photos that are indexed at a time
_PATIENCE = 1.0  # most seconds that these wait for requests
_SHARE = 20  # a folder that takes a second to look through is left alone for so many
_LISTED = 20  # photos that cannot be indexed, before the rest is only counted

_log = logging.getLogger("xlan.serving")


class _StoppedError(Exception):
    """The server is stopping."""


class LibraryKeeper:
    """Follows the index and the folder of a library.

    Args:
        photos: the library.
        rescan: seconds between looks at the folder; 0 for none, so that only the index is followed.
        busy: whether requests are in progress.
    """

    def __init__(self, photos: PhotoSearch, *, rescan: float, busy: Callable[[], bool]) -> None:
        self._photos, self._rescan, self._busy = photos, rescan, busy
        self._stop = threading.Event()
        # A drive that does not answer must not keep the server from ending.
        self._thread = threading.Thread(target=self._run, name="xlan-library", daemon=True)
        self._said: set[str] = set()  # problems that were said at the last look at the folder
        self._trouble = ""  # with the index on disk, which was said
        self._failed = False  # whether the last look came to nothing

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; photos that are being indexed are finished, the others are left for the next time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        due = time.monotonic() + self._rescan
        while not self._stop.wait(min(_POLL, self._rescan or _POLL)):
            try:
                self._follow_index()
                if self._rescan and time.monotonic() >= due:
                    due = time.monotonic() + self._rescan  # whatever comes
                    due = time.monotonic() + max(self._rescan, _SHARE * self._follow_folder())
            except _StoppedError:
                return
            except Exception:
                _log.exception("library: an update failed; searches go on with the photos known so far")

    def _follow_index(self) -> None:
        try:
            self._photos.refresh()
            self._trouble = ""
        except SearchError as error:  # also when another process is quicker with its changes than we are with reading
            if self._trouble != str(error):
                self._trouble = str(error)
                _warn(f"{error}; searches go on with {_counted(self._photos)}")

    def _follow_folder(self) -> float:
        """Look at the folder and index what changed; returns how many seconds it takes when nothing has."""
        began, said = time.monotonic(), set[str]()

        def say(line: str) -> None:
            said.add(line)
            if line not in self._said:
                _warn(line)

        try:
            done = self._photos.update(problem=say, progress=self._give_way, batch_size=_BATCH, threads=1)
        except BusyIndexError:  # what the other process does is followed
            return 0.0
        except SearchError as error:
            say(f"{error}; searches go on with {_counted(self._photos)}")
            self._said, self._failed = said, True
            return 0.0
        took = time.monotonic() - began
        changes = self._report(done, say)
        self._said, self._failed = said, False
        return 0.0 if changes else took

    def _report(self, done: Update, say: Callable[[str], None]) -> bool:
        for name, why in list(done.fresh.items())[:_LISTED]:
            say(f"{self._photos.folder / os.fsdecode(name)}: {why}")
        if len(done.fresh) > _LISTED:
            say(f"and {len(done.fresh) - _LISTED:,} more that cannot be indexed; xlan search --skipped lists them")
        counts = ((done.added, "new"), (done.changed, "changed"), (done.removed, "removed"))
        changes = ", ".join(f"{number:,} {what}" for number, what in counts if number)
        if changes or self._failed:
            folder = _line(str(self._photos.folder))
            _log.info("library: %s of %s: %s", _counted(self._photos), folder, changes or "can be read again")
        return bool(changes or done.fresh)

    def _give_way(self, done: int, total: int) -> None:
        """Called before each few photos: lets requests pass, and lets searches find what is written by now."""
        self._follow_index()
        until = time.monotonic() + (_PATIENCE if done < total else 0.0)
        while self._busy() and time.monotonic() < until and not self._stop.wait(0.02):
            pass
        if self._stop.is_set():
            raise _StoppedError


def _warn(line: str) -> None:
    _log.warning("library: %s", _line(line))


def _counted(photos: PhotoSearch) -> str:
    return f"{len(photos):,} photo{'' if len(photos) == 1 else 's'}"


def _line(text: str) -> str:
    """One line of a log, whatever is in the names of files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
