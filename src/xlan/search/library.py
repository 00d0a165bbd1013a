"""A folder of photos that can be searched: its index, kept up to date, and the model that reads it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from xlan.errors import ModelError, SearchError
from xlan.pipeline import Captioner
from xlan.search.index import Index, Problem, default_place
from xlan.search.rank import CANDIDATES, Answer, Ranker
from xlan.search.update import Progress, Update, update
from xlan.search.words import read_query

MAX_COUNT = 1000
MAX_CANDIDATES = 100_000


def _ignore_line(line: str) -> None:
    """Ignore problems."""


def _ignore_progress(done: int, total: int) -> None:
    """Ignore progress."""


def identity_of(captioner: Captioner) -> str:
    """Identifies the model, engine and extractor that made an encoding.

    Each engine encodes for its own decoder, and a detector may be given separately from the model.
    """
    described = json.dumps({} if captioner.extractor is None else dict(captioner.extractor.description), sort_keys=True)
    return f"{captioner.identity}:{captioner.engine.name}:{hashlib.sha256(described.encode()).hexdigest()[:16]}"


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse a path that is not a folder.

    Raises:
        SearchError: there is no such folder.
    """
    path = Path(folder)
    if not path.is_dir():
        what = "is a file, expected a folder" if path.exists() else "no such folder"
        raise SearchError(f"{os.fspath(folder)}: {what} of photos")


class PhotoSearch:
    """Searches the photos below a folder. The folder is only read; the index is stored elsewhere.

    Args:
        folder: the photos.
        captioner: the model; it must caption pictures, and have an identity.
        place: folder of the index; by default one in the user's cache, by folder and model.
        lanes: threads that share a search, for an engine that computes with one.

    Raises:
        SearchError: there is no such folder.
        ModelError: the model cannot be used for search.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        captioner: Captioner,
        *,
        place: str | os.PathLike[str] | None = None,
        lanes: int = 1,
    ) -> None:
        check_folder(folder)
        if captioner.extractor is None:
            raise ModelError("search needs a model that captions pictures: its directory has no vision.safetensors")
        if not captioner.identity:
            raise ModelError("search needs a model from a model directory, which has an identity of its own")
        self.folder = Path(folder).resolve()
        self.captioner = captioner
        self.identity = identity_of(captioner)
        self.place = Path(place) if place is not None else default_place(self.folder, self.identity)
        self._lanes = lanes
        self._ranker: Ranker | None = None
        self._stamp: tuple[int, ...] | None = None  # of the index that it ranks

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], captioner: Captioner, *, place: str | os.PathLike[str] | None = None
    ) -> PhotoSearch:
        """The same as the constructor; nothing is read before it is needed."""
        return cls(folder, captioner, place=place)

    def update(
        self,
        *,
        problem: Problem = _ignore_line,
        progress: Progress = _ignore_progress,
        rebuild: bool = False,
        batch_size: int = 16,
        threads: int = 2,
    ) -> Update:
        """Index new and changed photos, and remove missing ones. An interrupted update continues next time.

        Args:
            problem: called with one line for each unreadable folder and each damaged part of the index.
            progress: called with pictures done and pictures to do.
            rebuild: index all photos again.
            batch_size: pictures per call of the model.
            threads: threads that open pictures.

        Raises:
            BusyIndexError: another process is updating the index.
            SearchError: the index cannot be written.
        """
        index = Index(self.place, self.identity, self.folder)
        index.check_place()
        with index.writing():
            if not rebuild:
                index = Index.read(self.place, self.identity, self.folder, problem)
            done = update(
                index, self.captioner, problem=problem, progress=progress, batch_size=batch_size, threads=threads
            )
            stamp = Index.stamp(self.place)  # still locked
        if self._ranker is None or stamp is None or stamp != self._stamp:
            self._use(index, stamp)
        return done

    def refresh(self) -> bool:
        """Read the index again if it changed on disk; returns whether it did. Cheap if it did not.

        Searches that are under way go on with what they began with. An index that was removed is kept in memory.

        Raises:
            SearchError: the index on disk is damaged, or of another model; the previous one stays in use.
        """
        stamp = Index.stamp(self.place)  # before it is read: what changes meanwhile is seen next time
        if stamp is None or (self._ranker is not None and stamp == self._stamp):
            return False
        self._use(Index.read(self.place, self.identity, self.folder), stamp)
        return True

    def _use(self, index: Index, stamp: tuple[int, ...] | None) -> Ranker:
        ranker = Ranker(index, self.captioner, lanes=self._lanes)
        self._ranker, self._stamp = ranker, stamp
        return ranker

    def __len__(self) -> int:
        return len(self.ranker)

    @property
    def size(self) -> int:
        """Size of the index on disk."""
        return self.ranker.size

    def check(self, sentence: str) -> None:
        """Refuse a sentence that cannot be searched for, before the folder is read.

        Raises:
            SearchError: no word of it is known, or it is too long.
        """
        read_query(sentence, self.captioner.vocabulary)

    @property
    def ranker(self) -> Ranker:
        """Ranks the photos in the index, as of the last update or `refresh`.

        Raises:
            SearchError: the index is damaged.
        """
        if self._ranker is not None:
            return self._ranker
        stamp = Index.stamp(self.place)
        return self._use(Index.read(self.place, self.identity, self.folder), stamp)

    def search(self, sentence: str, *, count: int = 10, candidates: int = CANDIDATES) -> Answer:
        """The photos that a sentence describes best.

        Args:
            sentence: a description of the photo; unknown words are ignored and listed in the answer.
            count: most photos to return.
            candidates: how many to compare by likelihood, after ranking all by single words.

        Raises:
            SearchError: no word of the sentence is known, or a number is out of its limits.
        """
        for name, value, limit in (("count", count, MAX_COUNT), ("candidates", candidates, MAX_CANDIDATES)):
            if not 1 <= value <= limit:
                raise SearchError(f"{name}: expected a number from 1 to {limit:,}, got {value}")
        began = time.perf_counter()
        query = read_query(sentence, self.captioner.vocabulary)
        ranker = self.ranker
        found = ranker.rank(query, count=count, candidates=candidates)
        compared = min(len(ranker), max(candidates, count))
        return Answer(query, tuple(found), len(ranker), compared, time.perf_counter() - began)

    def photo(self, key: str) -> Path | None:
        """The file of a photo, by `Found.key`; None for an unknown key. The file may no longer exist."""
        ranker = self.ranker  # another thread may replace it
        place = ranker.places.get(key)
        return None if place is None else self.folder / os.fsdecode(ranker.name(place))
