"""The vocabulary: words ↔ ids, with four named special ids, kept as readable JSON.

Public checkpoints use id 0 for start, end and padding at once and give the others as a list of words, or by number;
`Vocabulary.from_released` reads both. New vocabularies keep the four ids apart.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from xlan.errors import DataError
from xlan.files import read_json, write_json
from xlan.types import SpecialIds

VOCAB_FORMAT = 1
SPECIAL_WORDS = ("<pad>", "<bos>", "<eos>", "<unk>")
MAX_VOCAB_BYTES = 64 << 20
MAX_ORIGIN = 500
DEFAULT_THRESHOLD = 6  # the paper drops words that occur less than 6 times


class Vocabulary:
    """Words in id order and the special ids among them.

    Args:
        words: the word of every id, without duplicates. Special ids have a word too (it is never printed).
        special: which ids mean padding, start, end and unknown word; they may be the same id.
        origin: how the words were chosen, in a few words; "" when unknown. Vocabularies that differ only in this are
            equal.
    """

    def __init__(self, words: Sequence[str], special: SpecialIds, *, origin: str = "") -> None:
        self.words = tuple(words)
        self.special = special
        self.origin = origin
        if not self.words:
            raise DataError("a vocabulary needs at least one word, got none")
        self._ids = {word: i for i, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            twice = next(word for i, word in enumerate(self.words) if self._ids[word] != i)
            raise DataError(f"a vocabulary lists each word once, but {twice!r} appears more than once")
        for name in ("pad", "bos", "eos", "unk"):
            i = getattr(special, name)
            if not 0 <= i < len(self.words):
                raise DataError(f"special id {name}={i} is outside the vocabulary (0 to {len(self.words) - 1})")
        for i in {special.pad, special.bos, special.eos}:  # said by a person, they are words that nobody knows
            del self._ids[self.words[i]]

    @classmethod
    def from_words(cls, words: Iterable[str], *, origin: str = "") -> Vocabulary:
        """A new vocabulary: ids 0–3 are pad, bos, eos and unk, then `words` in the given order."""
        return cls([*SPECIAL_WORDS, *words], SpecialIds(pad=0, bos=1, eos=2, unk=3), origin=origin)

    @classmethod
    def build(
        cls, captions: Iterable[Iterable[str]], *, threshold: int = DEFAULT_THRESHOLD, origin: str = ""
    ) -> Vocabulary:
        """The words that occur at least `threshold` times in `captions` (each a sequence of words).

        The most frequent word comes first and words of equal frequency are in alphabetical order, so the same
        captions give the same ids, whatever order they come in.

        Raises:
            DataError: no word is frequent enough.
        """
        words = frequent_words(Counter(w for words in captions for w in words), threshold)
        return cls.from_words(words, origin=origin)

    @classmethod
    def from_released(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read the vocabulary of a public checkpoint: id 0 is start, end and padding, words begin at id 1.

        Args:
            path: a text file, in which line i (from 1) is the word of id i, or JSON: `{"1": "a", "2": "on", …}`, also
                as the entry `ix_to_word` or `vocab` of a larger object. The word `UNK` is the unknown one; without it
                the last word is.

        Raises:
            DataError: the file cannot be read, or ids are missing.
        """
        source = Path(path)
        if source.suffix.lower() in (".pkl", ".pickle"):
            raise DataError(
                f"{source}: a pickle can run code and is not read; write its vocabulary as JSON, "
                'json.dump(infos["vocab"], open("vocab.json", "w")), and give that'
            )
        words = _numbered_words(source) if source.suffix.lower() == ".json" else _listed_words(source)
        _check_words(source, words)
        unknown = words.index("UNK") + 1 if "UNK" in words else len(words)
        return cls([".", *words] if "." not in words else ["<end>", *words], SpecialIds(0, 0, 0, unknown))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read `vocab.json` as `save` writes it."""
        value = read_json(path, max_bytes=MAX_VOCAB_BYTES)
        if not isinstance(value, dict) or value.get("format") != VOCAB_FORMAT:
            got = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise DataError(f"{path}: expected a vocabulary of format {VOCAB_FORMAT}, got {got!r}")
        words, special = value.get("words"), value.get("special")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{path}: 'words' must be a list of strings")
        names = ("pad", "bos", "eos", "unk")
        if not isinstance(special, dict) or not all(type(special.get(name)) is int for name in names):
            raise DataError(f"{path}: 'special' must give an id for each of {', '.join(names)}")
        origin = value.get("origin", "")
        if not isinstance(origin, str) or len(origin) > MAX_ORIGIN:
            raise DataError(f"{path}: 'origin' must be a text of at most {MAX_ORIGIN} characters")
        return cls(words, SpecialIds(**{name: special[name] for name in names}), origin=origin)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `vocab.json`, atomically."""
        special = {name: getattr(self.special, name) for name in ("pad", "bos", "eos", "unk")}
        origin = {"origin": self.origin} if self.origin else {}
        write_json(path, {"format": VOCAB_FORMAT, **origin, "special": special, "words": list(self.words)}, indent=1)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self.words, self.special) == (other.words, other.special)

    def __hash__(self) -> int:
        return hash((self.words, self.special))

    def id_of(self, word: str) -> int:
        """Id of `word`, or of the unknown word."""
        return self._ids.get(word, self.special.unk)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of `words`, without start and end."""
        return [self.id_of(word) for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of `ids`: stops at the first `eos`, leaves out `pad` and `bos`."""
        words: list[str] = []
        for i in ids:
            if i == self.special.eos:
                break
            if i in (self.special.pad, self.special.bos):
                continue
            if not 0 <= i < len(self.words):
                raise DataError(f"id {i} is outside the vocabulary (0 to {len(self.words) - 1})")
            words.append(self.words[i])
        return " ".join(words)


def _listed_words(source: Path) -> list[str]:
    """Words of a text file, one a line."""
    try:
        if source.stat().st_size > MAX_VOCAB_BYTES:
            raise DataError(f"{source}: larger than {MAX_VOCAB_BYTES >> 20} MiB, this is not a vocabulary")
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: cannot be read as a vocabulary: {error}") from None
    words = [line.strip() for line in lines]
    while words and not words[-1]:
        words.pop()
    for number, word in enumerate(words, start=1):
        if not word:
            raise DataError(f"{source}: line {number} is empty, expected one word on every line")
    return words


def _numbered_words(source: Path) -> list[str]:
    """Words of a JSON object by their ids, from 1 on."""
    value = read_json(source, max_bytes=MAX_VOCAB_BYTES)
    for name in ("ix_to_word", "vocab"):
        if isinstance(value, dict) and isinstance(value.get(name), dict):
            value = value[name]
    expected = 'expected words by id, {"1": "a", "2": "on", …}'
    if not isinstance(value, dict) or not value or not all(isinstance(word, str) for word in value.values()):
        raise DataError(f"{source}: {expected}, got {type(value).__name__}")
    missing = next((i for i in range(1, len(value) + 1) if str(i) not in value), None)
    if missing is not None:
        raise DataError(f"{source}: {expected} without gaps, but id {missing} of {len(value)} is missing")
    return [value[str(i)] for i in range(1, len(value) + 1)]


def _check_words(source: Path, words: Sequence[str]) -> None:
    """Refuse a list with entries that are no words, or the same; `source` is where it comes from."""
    seen: set[str] = set()
    for number, word in enumerate(words, start=1):
        if not word.strip() or any(space in word for space in " \t\r\n"):
            raise DataError(f"{source}: expected a word without spaces as id {number}, got {word!r}")
        if word in seen:
            raise DataError(f"{source}: expected each word once, but {word!r} comes again as id {number}")
        seen.add(word)


def frequent_words(counts: Counter[str], threshold: int) -> list[str]:
    """Words counted at least `threshold` times, by falling frequency, then alphabetically."""
    if threshold < 1:
        raise DataError(f"a word threshold is at least 1, got {threshold}")
    kept = [word for word, count in counts.items() if count >= threshold and word not in SPECIAL_WORDS]
    if not kept:
        most = max(counts.values(), default=0)
        raise DataError(f"no word occurs {threshold} times or more (the most frequent: {most}); use a lower threshold")
    return sorted(kept, key=lambda word: (-counts[word], word))
