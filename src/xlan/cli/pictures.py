"""Command-line arguments → pictures: files, folders with all subfolders, globs, and `-` for standard input.

Folders are walked as their pictures are needed, one folder's names in memory at a time, so they may be of any size.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from xlan.errors import ImageError

STDIN = "-"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

Problem = Callable[[str], None]


def find_pictures(arguments: Iterable[str], problem: Problem) -> Iterator[tuple[str, Path | bytes]]:
    """Name and picture for everything the arguments mean, in their order; folders and globs sorted by name.

    Inside folders and globs only files that are named like pictures count, and hidden ones do not. What cannot be a
    picture (an address, an empty folder) is reported to `problem` as one line, and the search continues.
    """
    from xlan.vision.sources import walk_pictures

    for argument in arguments:
        if argument == STDIN:
            try:
                yield STDIN, read_stdin()
            except ImageError as error:
                problem(str(error))
        elif _ADDRESS.match(argument):
            problem(f"{argument}: addresses are not fetched; download the picture and give its path")
        elif Path(argument).is_dir():
            pictures = map(_named, walk_pictures(Path(argument), problem))
            yield from _some(pictures, f"{argument}: no pictures in this folder", problem)
        elif glob.has_magic(argument) and not os.path.lexists(argument):
            yield from _some(_matches(argument), f"{argument}: no picture matches", problem)
        else:
            yield _named(Path(argument))


def picture_names(arguments: Iterable[str]) -> Iterator[str]:
    """Names of the files that `find_pictures` will give; nothing is read."""
    files = (argument for argument in arguments if argument != STDIN)
    return (name for name, _ in find_pictures(files, lambda _: None))


def count_pictures(arguments: Iterable[str]) -> int:
    """How many files `find_pictures` will give, for a progress bar."""
    return sum(1 for _ in picture_names(arguments))


def read_stdin() -> bytes:
    """One picture from standard input, at most one byte more than is allowed."""
    from xlan.vision.image import DEFAULT_LIMITS

    if sys.stdin.isatty():
        raise ImageError("-: expected a picture on standard input, which is a terminal; type: xlan caption - < FILE")
    return sys.stdin.buffer.read(DEFAULT_LIMITS.max_bytes + 1)


def _named(path: Path) -> tuple[str, Path]:
    return str(path), path


def _some(pictures: Iterator[tuple[str, Path]], otherwise: str, problem: Problem) -> Iterator[tuple[str, Path]]:
    found = False
    for picture in pictures:
        found = True
        yield picture
    if not found:
        problem(otherwise)


def _matches(pattern: str) -> Iterator[tuple[str, Path]]:
    from xlan.vision.sources import named_like_picture

    for name in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207 - takes absolute patterns too
        if named_like_picture(name) and not Path(name).is_dir():
            yield _named(Path(name))
