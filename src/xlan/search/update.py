"""Bring an index up to date with its folder: new and changed pictures are indexed, missing ones removed."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from xlan.engines.interface import Decoded, SearchRequest
from xlan.errors import ImageError, SearchError
from xlan.options import CaptionOptions
from xlan.pipeline import Captioner
from xlan.search.codes import pack, to_codes
from xlan.search.index import Index, Problem, Skip
from xlan.search.shards import SAID, Record, Stamp
from xlan.types import Regions
from xlan.vision.image import DEFAULT_LIMITS, read_path
from xlan.vision.many import extract_many
from xlan.vision.regions import PreparedImage
from xlan.vision.sources import walk_pictures
from xlan.wording import request_of

# A killed run loses at most this many pictures, and at most this many seconds of work.
PICTURES_PER_FLUSH = 256
SECONDS_PER_FLUSH = 30.0
# For models without a word head: how many alternatives to store for each word of a caption.
_RUNNERS_UP = 20

Progress = Callable[[int, int], None]


@dataclass
class Update:
    """What an update did.

    Attributes:
        added: pictures that are new.
        changed: pictures whose files changed.
        removed: pictures removed from the index, because their files are missing or unreadable.
        kept: unchanged pictures.
        skipped: all pictures that cannot be indexed, and why.
        fresh: those that this update found and that were not skipped before in the same state.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    kept: int = 0
    skipped: dict[bytes, str] = field(default_factory=dict)
    fresh: dict[bytes, str] = field(default_factory=dict)


class _Reader:
    """Opens pictures of a folder and remembers which state of each file it has read."""

    def __init__(self, folder: Path, captioner: Captioner) -> None:
        self._folder, self._captioner = folder, captioner
        self.stamps: dict[bytes, Stamp] = {}

    def __call__(self, name: bytes) -> PreparedImage:
        """Open a picture whose file does not change meanwhile; runs in several threads."""
        path = self._folder / os.fsdecode(name)
        for _ in range(2):
            before = stamp_of(_stat(path))
            data = read_path(path, str(path), DEFAULT_LIMITS)
            if stamp_of(_stat(path)) == before:
                self.stamps[name] = before
                return self._captioner.prepare(data, name=str(path))
        raise ImageError(f"{path}: changed while it was being read; the next update tries it again")


def update(
    index: Index,
    captioner: Captioner,
    *,
    problem: Problem,
    progress: Progress,
    batch_size: int = 16,
    threads: int = 2,
) -> Update:
    """Index new and changed pictures of the folder, and remove missing ones from the index.

    Args:
        index: changed in memory and on disk; it must be locked (`Index.writing`).
        captioner: the model of the index.
        problem: called with one line for each folder that cannot be read.
        progress: called with pictures done and pictures to do.
        batch_size: pictures per call of the model.
        threads: threads that open pictures.

    Raises:
        SearchError: the folder is missing, or empty although the index is not, or the index cannot be written.
    """
    done = Update()
    home = _home(index.folder)
    there = _survey(index.folder, problem)
    if not there and len(index):
        raise SearchError(
            f"{index.folder}: contains no pictures, but its index has {len(index):,}; is a drive not mounted? "
            "To remove the index, use --forget"
        )
    todo, changed = _compare(index, there, done)
    if _home(index.folder) != home:  # keep the photos of a drive that was unmounted meanwhile
        raise SearchError(f"{index.folder}: was replaced while it was being read; try again")
    if index.changed:
        index.save()
    if not todo:
        return done
    reader = _Reader(index.folder, captioner)
    pending: list[Record] = []
    arrays: list[str] = []
    flushed = time.monotonic()

    def flush() -> None:
        nonlocal flushed
        records = list(pending)
        pending.clear()
        index.add(records, arrays)
        for record in records:
            done.changed += record.name in changed
            done.added += record.name not in changed
        flushed = time.monotonic()

    extractor = captioner.extractor
    if extractor is None:
        raise SearchError("this model captions region features, not pictures; use one with a vision.safetensors")
    describe = Describer(captioner)
    count = 0
    progress(0, len(todo))
    with _flushing(flush):
        for part in extract_many(extractor, todo, reader, name=os.fsdecode, batch=batch_size, threads=threads):
            good = [(name, found) for name, found in part if isinstance(found, Regions)]
            records = describe([(name, reader.stamps.pop(name), regions) for name, regions in good])
            for name, one in (*((name, e) for name, e in part if isinstance(e, ImageError)), *records):
                if isinstance(one, Record):
                    pending.append(one)
                    index.skipped.pop(name, None)
                else:
                    path = index.folder / os.fsdecode(name)
                    why = _reason(str(one), path)
                    # A file that is gone now, as on a drive that was pulled out, is tried again when it is back.
                    skip = Skip(there[name] if _state_of(path) == there[name] else (), why)
                    done.skipped[name] = why
                    if index.skipped.get(name) != skip:
                        done.fresh[name] = why
                        index.skipped[name] = skip
                        index.changed = True
            arrays = describe.arrays
            count += len(part)
            progress(count, len(todo))
            if len(pending) >= PICTURES_PER_FLUSH or time.monotonic() - flushed > SECONDS_PER_FLUSH:
                flush()
    if index.changed:
        index.save()
    return done


@contextlib.contextmanager
def _flushing(flush: Callable[[], None]) -> Iterator[None]:
    """Flush at the end and on interruption, but not when writing itself has failed."""
    try:
        yield
    except SearchError:
        raise
    except BaseException:
        with contextlib.suppress(SearchError):
            flush()
        raise
    flush()


class Describer:
    """Regions → records of an index.

    Attributes:
        arrays: names of the arrays of an encoding; empty before the first.
    """

    def __init__(self, captioner: Captioner) -> None:
        self._captioner = captioner
        self._head = captioner.judge.witness.head
        options = CaptionOptions(runners_up=0 if self._head is not None else _RUNNERS_UP)
        self._request: SearchRequest = request_of(options, captioner.vocabulary)
        self.arrays: list[str] = []

    def __call__(self, pictures: Sequence[tuple[bytes, Stamp, Regions]]) -> list[tuple[bytes, Record | ImageError]]:
        """Each picture's name, and its record or why there is none."""
        if not pictures:
            return []
        encodings = self._captioner.engine.encode([regions for _, _, regions in pictures])
        self.arrays = sorted(encodings[0].arrays)
        look = self._captioner.judge.witness.look
        worths = self._captioner.worths([look(regions) for _, _, regions in pictures])
        captions = self._captioner.engine.decode(encodings, self._request, worths)
        found: list[tuple[bytes, Record | ImageError]] = []
        for (name, stamp, regions), encoding, decoded in zip(pictures, encodings, captions, strict=True):
            try:
                kept = pack(encoding)
            except ValueError as error:
                found.append((name, ImageError(f"{os.fsdecode(name)}: {error}")))
                continue
            said, said_codes = _said(decoded)
            seen = to_codes(self._head.logits(regions)) if self._head is not None else np.empty(0, np.uint8)
            caption = self._captioner.vocabulary.decode(decoded[0].words)
            found.append((name, Record(name, stamp, caption, said, said_codes, seen, kept)))
        return found


def _said(captions: Sequence[Decoded]) -> tuple[np.ndarray, np.ndarray]:
    """Words that the captioner would use, likeliest first, and the highest probability of each."""
    best: dict[int, float] = {}
    for caption in captions:
        for i, value in zip(caption.words, caption.log_probs, strict=False):
            best[i] = max(best.get(i, -np.inf), value)
        for place in caption.runners_up[: len(caption.words)]:
            for i, value in place:
                best[i] = max(best.get(i, -np.inf), value)
    chosen = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:SAID]
    ids, codes = np.full(SAID, -1, np.int32), np.zeros(SAID, np.uint8)
    ids[: len(chosen)] = [i for i, _ in chosen]
    codes[: len(chosen)] = to_codes([value for _, value in chosen])
    return ids, codes


def _home(folder: Path) -> tuple[int, int]:
    """Device and inode of a folder: they change when another one, such as an empty mount point, takes its place."""
    try:
        found = folder.stat()
        if stat.S_ISDIR(found.st_mode):
            return found.st_dev, found.st_ino
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise SearchError(f"{folder}: cannot be read: {error.strerror or error}") from None
    raise SearchError(f"{folder}: no such folder")


def _survey(folder: Path, problem: Problem) -> dict[bytes, tuple[int, ...]]:
    """State of every picture's file below a folder, by name; empty for a file whose state cannot be read."""
    found: dict[bytes, tuple[int, ...]] = {}
    for path in walk_pictures(folder, problem):
        name = os.fsencode(path.relative_to(folder))
        found[name] = _state_of(path)
    return found


def _compare(index: Index, there: dict[bytes, tuple[int, ...]], done: Update) -> tuple[list[bytes], frozenset[bytes]]:
    """Names to index, and which of them were indexed before; outdated rows are marked as deleted."""
    kept: set[bytes] = set()
    old: set[bytes] = set()
    for number in reversed(range(len(index.shards))):
        shard = index.shards[number]
        stamps = shard.stamps.tolist()
        for row in index.live(number).tolist():
            name = shard.names[row]
            state = there.get(name)
            if name in kept:
                index.forget([(number, row)])  # a second copy, left by a killed writer
            elif _is_same(state, stamps[row], index.folder / os.fsdecode(name)):
                kept.add(name)
            else:
                old.add(name)
                index.forget([(number, row)])
    old -= kept
    done.removed = sum(name not in there for name in old)
    done.kept = len(kept)
    tried = index.skipped
    index.skipped = {name: skip for name, skip in tried.items() if name in there and name not in kept}
    index.changed = index.changed or len(index.skipped) < len(tried)
    done.skipped = {name: skip.reason for name, skip in index.skipped.items() if skip.state == there[name] != ()}
    todo = [name for name in there if name not in kept and name not in done.skipped]
    return todo, frozenset(old)


def _is_same(state: tuple[int, ...] | None, stamp: Sequence[int], path: Path) -> bool:
    """Whether a picture is unchanged, or its folder cannot be read at the moment."""
    return _is_unreachable(path) if state is None else state[:3] == tuple(stamp)


def _is_unreachable(path: Path) -> bool:
    """Whether it is unknown if a file exists, as in a folder that cannot be read."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return not os.access(path.parent, os.R_OK)


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror or error}") from None


def stamp_of(found: os.stat_result) -> Stamp:
    """Identifies the state of a file."""
    return Stamp(*_state(found)[:3])


def _state_of(path: Path) -> tuple[int, ...]:
    """The state of a file; empty for a dangling or circular link, which is reported when the picture is read."""
    try:
        return _state(path.stat())
    except OSError:
        return ()


def _state(found: os.stat_result) -> tuple[int, ...]:
    """Size, time of change, inode, and time of the last change of permissions."""
    return found.st_size, found.st_mtime_ns, found.st_ino & (1 << 63) - 1, found.st_ctime_ns


def _reason(line: str, path: Path) -> str:
    """An error's message without the leading path."""
    return line.removeprefix(f"{path}: ")
