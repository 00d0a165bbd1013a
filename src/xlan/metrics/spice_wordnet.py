"""Which words mean the same: WordNet's synonym sets, read from METEOR's jar in the installed pycocoevalcap package."""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path

from xlan.errors import MetricError

_ENTRY = "synonym/english.synsets"
_MAX_BYTES = 64 << 20
_NONE: frozenset[bytes] = frozenset()


class WordNet:
    """Synonym sets by word.

    Args:
        jar: METEOR 1.5's jar.

    Raises:
        MetricError: the jar is not there or not METEOR's.
    """

    def __init__(self, jar: Path) -> None:
        try:
            with zipfile.ZipFile(jar) as box:
                entry = box.getinfo(_ENTRY)
                if entry.file_size > _MAX_BYTES:
                    raise MetricError(f"{jar}: {_ENTRY} has {entry.file_size:,} bytes, more than {_MAX_BYTES:,}")
                lines = box.read(entry).splitlines()
        except (OSError, KeyError, zipfile.BadZipFile):
            raise MetricError(
                f"{jar}: no WordNet synonyms in there; type: pip install --force-reinstall pycocoevalcap"
            ) from None
        # A line with the word, then a line with the numbers of its synonym sets.
        self._sets = dict(zip(lines[0::2], lines[1::2], strict=False))
        self._cached = functools.lru_cache(maxsize=1 << 16)(self._lookup)

    def synsets(self, phrase: str) -> frozenset[bytes]:
        """Numbers of the synonym sets that hold a lower-case word or phrase ("ride", "hot dog"); empty when unknown."""
        return self._cached(phrase)

    def _lookup(self, phrase: str) -> frozenset[bytes]:
        found = self._sets.get(phrase.replace(" ", "_").encode(errors="replace"))
        return frozenset(found.split()) if found else _NONE

    def same(self, one: str, other: str) -> bool:
        """Whether two lemmas are equal or share a synonym set."""
        return one == other or not self.synsets(one).isdisjoint(self.synsets(other))
