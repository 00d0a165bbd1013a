"""METEOR's English resources: paraphrase table, WordNet synsets, function words.

They are read from the installed `pycocoevalcap` package (its METEOR jar is a zip; its paraphrase table is a gzip
file), turned once into one index file in the user's cache directory and memory-mapped from there. Words and phrases
are stored as 64-bit hashes: a word by BLAKE2b, a phrase as the polynomial of its words' hashes modulo 2^64, which
NumPy computes for every span of a corpus at once. (Two different phrases of a corpus and the table share a hash with
a probability below 10^-6.)
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import struct
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlan.errors import MetricError, MissingExtraError
from xlan.files import atomic_path, user_cache_dir

HASH_FACTOR = 0x9E3779B97F4A7C15
MAX_PHRASE = 7
_MASK = (1 << 64) - 1
_MAGIC = b"xlan METEOR index 1\n"
_MAX_HEADER = 1 << 20
_MAX_MEMBER = 64 << 20
_MAX_PARAPHRASE_LINES = 60_000_000
_ARRAYS = {
    "phrases": "<u8",  # [S] hash of every source phrase, ascending
    "phrase_offsets": "<i8",  # [S + 1] where its paraphrases start in `paraphrases`
    "paraphrases": "<u8",  # [P] hashes, in the order of the table
    "lemmas": "<u8",  # [W] hash of every WordNet word, ascending
    "lemma_offsets": "<i8",  # [W + 1]
    "synsets": "<i4",  # [Y]
    "exceptions": "<u8",  # [E] hash of every irregular form, ascending
    "exception_offsets": "<i8",  # [E + 1]
    "bases": "<u8",  # [B] hashes of its base forms
}
Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]


def word_hash(word: str) -> int:
    """64-bit hash of one word, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Groups:
    """Lists of values by key: `keys` `[K]` ascending, group k is `values[offsets[k]:offsets[k + 1]]`."""

    keys: Words
    offsets: Offsets
    values: npt.NDArray[np.uint64] | npt.NDArray[np.int32]

    def rows(self, wanted: Words) -> npt.NDArray[np.int64]:
        """The row of each wanted key, -1 where there is none; same shape as `wanted`."""
        found = np.searchsorted(self.keys, wanted)
        found[found == len(self.keys)] = 0
        return np.where(self.keys[found] == wanted, found, -1) if len(self.keys) else np.full(wanted.shape, -1)

    def get(self, key: int) -> list[int]:
        """The group of one key, empty where there is none."""
        row = int(np.searchsorted(self.keys, np.uint64(key)))
        if row == len(self.keys) or int(self.keys[row]) != key:
            return []
        group: list[int] = self.values[self.offsets[row] : self.offsets[row + 1]].tolist()
        return group


@dataclass(frozen=True)
class MeteorData:
    """Everything METEOR looks up.

    Attributes:
        paraphrases: phrase hash → hashes of its paraphrases, in the table's order.
        synsets: word hash → WordNet synset numbers.
        exceptions: hash of an irregular form → hashes of its base forms.
        function_words: words that weigh less.
        prefixes: words that keep a final full stop wherever they stand.
        numeric_prefixes: words that keep it before a number.
    """

    paraphrases: Groups
    synsets: Groups
    exceptions: Groups
    function_words: frozenset[str]
    prefixes: frozenset[str]
    numeric_prefixes: frozenset[str]


@dataclass(frozen=True)
class Resources:
    """The two files of the installed package."""

    jar: Path
    table: Path

    def key(self) -> str:
        """Changes when either file does."""
        stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in (self.jar, self.table)]
        return hashlib.blake2b(repr(stamps).encode(), digest_size=8).hexdigest()


def find_resources() -> Resources:
    """Locate METEOR's files without importing the package.

    Raises:
        MissingExtraError: the package is not installed, or has no METEOR in it.
    """
    spec = importlib.util.find_spec("pycocoevalcap")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        meteor = Path(folder) / "meteor"
        resources = Resources(meteor / "meteor-1.5.jar", meteor / "data" / "paraphrase-en.gz")
        if resources.jar.is_file() and resources.table.is_file():
            return resources
    raise MissingExtraError("METEOR", "metrics")


def load_data(resources: Resources | None = None) -> MeteorData:
    """Map the index into memory, building it first when it is missing, stale or damaged.

    Args:
        resources: the files to index; those of the installed package by default.

    Raises:
        MissingExtraError: the package with the resources is not installed.
        MetricError: a resource is damaged, or no folder can be written to.
    """
    resources = resources or find_resources()
    name = f"meteor-{resources.key()}.index"
    folders = [user_cache_dir(), Path(tempfile.gettempdir()) / f"xlan-cache-{_user()}"]
    for folder in folders:
        data = _read_index(folder / name, own=folder is not folders[0])
        if data is not None:
            return data
    problems = []
    arrays, words = _read_resources(resources)
    for folder in folders:
        try:
            _write_index(folder / name, arrays, words)
        except OSError as error:
            problems.append(f"{folder}: {error.strerror or error}")
        data = _read_index(folder / name, own=folder is not folders[0])  # ours, or a faster process's
        if data is not None:
            return data
    raise MetricError(
        f"METEOR cannot store its index ({'; '.join(problems) or 'it reads back damaged'});"
        " set XLAN_CACHE_DIR to a folder that can be written to"
    )


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _write_index(path: Path, arrays: dict[str, npt.NDArray[np.generic]], words: dict[str, list[str]]) -> None:
    """Header (names, lengths, checksums, word lists), then the arrays one after another."""
    bodies = {name: np.ascontiguousarray(arrays[name], dtype=dtype) for name, dtype in _ARRAYS.items()}
    sizes = {name: [len(body), zlib.crc32(body.view(np.uint8).data)] for name, body in bodies.items()}
    header = json.dumps({"arrays": sizes, "words": words}).encode()
    header += b" " * (-(len(_MAGIC) + 8 + len(header)) % 8)  # arrays start at multiples of their item size
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(_MAGIC + struct.pack("<Q", len(header)) + header)
        for body in bodies.values():
            file.write(body.tobytes() + b"\0" * (-body.nbytes % 8))


def _read_index(path: Path, *, own: bool) -> MeteorData | None:
    """The mapped index, or None where there is none or it is damaged.

    Args:
        path: the file.
        own: refuse a file of another user (the temporary folder is everybody's).
    """
    try:
        if own and hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
            return None
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                return None
            header = json.loads(file.read(length))
        whole = np.memmap(path, dtype=np.uint8, mode="r")
        arrays, start = {}, len(_MAGIC) + 8 + length
        for name, dtype in _ARRAYS.items():
            count, checksum = header["arrays"][name]
            size = int(count) * np.dtype(dtype).itemsize
            body = whole[start : start + size]
            if len(body) != size or zlib.crc32(body.data) != checksum:
                return None
            arrays[name] = body.view(dtype)
            start += size + -size % 8
        words = {name: frozenset(str(word) for word in group) for name, group in header["words"].items()}
        return MeteorData(
            paraphrases=Groups(arrays["phrases"], arrays["phrase_offsets"], arrays["paraphrases"]),
            synsets=Groups(arrays["lemmas"], arrays["lemma_offsets"], arrays["synsets"]),
            exceptions=Groups(arrays["exceptions"], arrays["exception_offsets"], arrays["bases"]),
            function_words=words["function"],
            prefixes=words["prefixes"],
            numeric_prefixes=words["numeric"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def _read_resources(resources: Resources) -> tuple[dict[str, npt.NDArray[np.generic]], dict[str, list[str]]]:
    try:
        with zipfile.ZipFile(resources.jar) as jar:
            function = _member(jar, "function/english.words")
            breaks = _member(jar, "nonbreaking/english.prefixes")
            synsets = _member(jar, "synonym/english.synsets")
            exceptions = _member(jar, "synonym/english.exceptions")
        phrases, phrase_offsets, paraphrases = _read_table(resources.table)
        lemmas, lemma_offsets, members = _group(_pairs(synsets), np.int32)
        irregular = ((form, word_hash(base)) for base, forms in _lines(exceptions) for form in forms.split())
        forms, form_offsets, bases = _group(((word_hash(form), base) for form, base in irregular), np.uint64)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise MetricError(
            f"METEOR's resources in {resources.jar.parent} cannot be read ({error});"
            ' type: pip install --force-reinstall "pycocoevalcap"'
        ) from None
    entries = [line.split("#")[0].strip() for line in breaks if not line.startswith("#")]
    numeric = [line.split()[0] for line in breaks if "#NUMERIC_ONLY#" in line and not line.startswith("#")]
    words = {
        "function": sorted(word.strip() for word in function if word.strip()),
        "prefixes": sorted(entry for entry in entries if entry and entry not in numeric),
        "numeric": sorted(numeric),
    }
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "phrases": phrases,
        "phrase_offsets": phrase_offsets,
        "paraphrases": paraphrases,
        "lemmas": lemmas,
        "lemma_offsets": lemma_offsets,
        "synsets": members,
        "exceptions": forms,
        "exception_offsets": form_offsets,
        "bases": bases,
    }
    return arrays, words


def _member(jar: zipfile.ZipFile, name: str) -> list[str]:
    if jar.getinfo(name).file_size > _MAX_MEMBER:
        raise ValueError(f"{name} is larger than expected")
    return jar.read(name).decode("utf-8").splitlines()


def _lines(lines: list[str]) -> Iterable[tuple[str, str]]:
    return zip(lines[0::2], lines[1::2], strict=True)


def _pairs(lines: list[str]) -> Iterable[tuple[int, int]]:
    return ((word_hash(word), int(number)) for word, numbers in _lines(lines) for number in numbers.split())


def _group(pairs: Iterable[tuple[int, int]], dtype: type[np.generic]) -> tuple[Words, Offsets, npt.NDArray[np.generic]]:
    """Key-value pairs as sorted keys, offsets and values; values keep their order within a key."""
    keys, values = array("Q"), array("Q")
    for key, value in pairs:
        keys.append(key)
        values.append(value)
    return _sorted_groups(np.frombuffer(keys, dtype=np.uint64), np.frombuffer(values, dtype=np.uint64), dtype)


def _sorted_groups(
    keys: Words, values: Words, dtype: type[np.generic]
) -> tuple[Words, Offsets, npt.NDArray[np.generic]]:
    order = np.argsort(keys, kind="stable")
    unique, starts = np.unique(keys[order], return_index=True)
    return unique, np.append(starts, len(keys)).astype(np.int64), values[order].astype(dtype)


def _read_table(path: Path) -> tuple[Words, Offsets, npt.NDArray[np.generic]]:
    """The paraphrase table: three lines per entry — probability, phrase, paraphrase."""
    known: dict[str, int] = {}
    sources, targets = array("Q"), array("Q")
    previous, source = "", 0

    def phrase_hash(phrase: str) -> int:
        value = 0
        for word in phrase.split():
            part = known.get(word)
            if part is None:
                part = known[word] = word_hash(word)
            value = (value * HASH_FACTOR + part) & _MASK
        return value

    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for count, _ in enumerate(file):
            phrase = file.readline()
            if phrase != previous:
                previous, source = phrase, phrase_hash(phrase)
            sources.append(source)
            targets.append(phrase_hash(file.readline()))
            if count * 3 > _MAX_PARAPHRASE_LINES:
                raise ValueError(f"{path.name} is larger than expected")
    return _sorted_groups(np.frombuffer(sources, dtype=np.uint64), np.frombuffer(targets, dtype=np.uint64), np.uint64)
