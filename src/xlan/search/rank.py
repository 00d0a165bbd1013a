"""Pictures ranked for a sentence, in two stages.

**First**, all pictures by their words: the sum over the query's content words of the log of the chance that the word is
used for the picture, as the vision network sees it by itself; for words that it does not name, and for models without
such a network, as the captioner would say them (the best probability in its captions, and among the words that it
considered there). That reads a few numbers a picture.

**Then**, the best few hundred also by the captioner: how much likelier it finds the sentence for this picture than in
general, log p(sentence | picture) - log p(sentence), word by word:

    score = first stage + LIKELIHOOD · Σ_t (log p(w_t | picture, w_<t) - log p(w_t | any picture, w_<t))

"Any picture" is the mean over pictures spread evenly over the library. For one query that part is the same for all
pictures, so it cannot change their order; it makes scores comparable: 0 is a picture like any other of the library, and
each word shows what it adds. Its likelihood alone would not: common sentences are likely for every picture. The
captioner has a smaller say than the words: self-critical training makes it too sure of its own wording.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlan.engines.interface import Encoding
from xlan.errors import SearchError
from xlan.pipeline import Captioner
from xlan.search.codes import from_codes
from xlan.search.index import Index
from xlan.search.words import Query
from xlan.text.content import fold, is_content

CANDIDATES = 256  # pictures of the second stage
LIKELIHOOD = 0.2  # weight of the second stage, chosen on COCO's validation pictures (docs/log.md)
BACKGROUND = 32  # pictures that stand for any picture
_NEVER = -7.0  # log-probability of a word that the captioner did not consider
_ROWS = 64  # pictures per call of the model: what it computes with stays in the processor's cache

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """A picture that was found.

    Attributes:
        path: its file.
        name: its path below the folder, as text.
        key: names it in addresses: letters and digits that do not tell its path.
        score: how much better the sentence fits it than any picture, see `rank`.
        words: each word of the query, and what it adds to the score.
        caption: what the captioner says of it.
    """

    path: Path
    name: str
    key: str
    score: float
    words: tuple[tuple[str, float], ...]
    caption: str


@dataclass(frozen=True)
class Answer:
    """What a search found.

    Attributes:
        query: what was searched for, with the words that are not known.
        found: pictures, best first.
        photos: how many there are in the index.
        compared: how many were compared by likelihood.
        seconds: how long it took.
    """

    query: Query
    found: tuple[Found, ...]
    photos: int
    compared: int
    seconds: float


def key_of(name: bytes) -> str:
    """Names a picture in addresses."""
    return hashlib.sha256(name).hexdigest()[:24]


class Ranker:
    """Ranks the pictures of an index as it was when it was opened; may be used by several threads at once."""

    def __init__(self, index: Index, captioner: Captioner, *, lanes: int = 1) -> None:
        self._index, self._captioner, self._lanes = index, captioner, lanes
        live = [index.live(number) for number in range(len(index.shards))]
        self._live = live
        self._shard = np.repeat(np.arange(len(live)), [len(rows) for rows in live])
        self._row = np.concatenate([*live, np.empty(0, np.int64)])
        head = captioner.judge.witness.head
        if head is not None and any(shard.seen.shape[0] != len(head.words) for shard in index.shards):
            raise SearchError(f"{index.path}: damaged: it has not the words of this model; rebuild it with --rebuild")
        self._seen: dict[str, list[int]] = {}
        for number, word in enumerate(() if head is None else head.words):
            self._seen.setdefault(fold(word), []).append(number)
        self._said: dict[str, list[int]] = {}
        for number, word in enumerate(captioner.vocabulary.words):
            self._said.setdefault(fold(word), []).append(number)

    def __len__(self) -> int:
        return len(self._row)

    @property
    def size(self) -> int:
        """Size of the index on disk."""
        return self._index.size

    def name(self, place: int) -> bytes:
        """Path of a picture below the folder."""
        return self._index.shards[int(self._shard[place])].names[int(self._row[place])]

    def caption(self, place: int) -> str:
        """What the captioner says of a picture."""
        return self._index.shards[int(self._shard[place])].captions[int(self._row[place])]

    @cached_property
    def places(self) -> dict[str, int]:
        """Key → picture."""
        return {key_of(self.name(place)): place for place in range(len(self))}

    def rank(self, query: Query, *, count: int, candidates: int = CANDIDATES) -> list[Found]:
        """The best pictures for a query, best first; of equals the one that comes first in the folder."""
        if not len(self) or count < 1:
            return []
        chosen, per_word = self.compare(query, max(candidates, count))
        scores = per_word.sum(axis=1)
        order = best(scores, count)
        return [self._found(int(chosen[i]), float(scores[i]), query, per_word[i]) for i in order]

    def compare(self, query: Query, candidates: int) -> tuple[Ints, Floats]:
        """The best pictures of the first stage, and `[n, words + 1]` what each word of the query, and its end, adds."""
        words, places = self.first(query)
        chosen = best(words.sum(axis=1), candidates)
        per_word = LIKELIHOOD * self.second(query, chosen)
        per_word[:, places] += words[chosen]
        return chosen, per_word

    def first(self, query: Query) -> tuple[Floats, list[int]]:
        """`[N, C]` how well each content word of a query fits each picture, by itself; 0 is as well as any.

        Also where each of the C words stands in the query for the first time.
        """
        content = [place for place, word in enumerate(query.words) if is_content(word)] or range(len(query.words))
        first: dict[str, int] = {}
        for place in content:
            first.setdefault(fold(query.words[place]), place)
        evidence = np.stack([self._evidence(word) for word in first], axis=1)
        return evidence - log_mean_exp(evidence), list(first.values())

    def _evidence(self, word: str) -> Floats:
        """`[N]` log of the chance that a word, in singular or plural, is used for each picture."""
        parts = []
        for shard, rows in zip(self._index.shards, self._live, strict=True):
            if word in self._seen:
                odds = from_codes(shard.seen[self._seen[word]].max(axis=0)[rows])
                parts.append(-np.log1p(np.exp(-odds)))
            else:
                codes = np.zeros(shard.count, np.uint8)
                for i in self._said.get(word, ()):
                    hit, column = (shard.said == i).nonzero()  # once in a row at most
                    codes[hit] = np.maximum(codes[hit], shard.said_codes[hit, column])
                parts.append(np.maximum(from_codes(codes[rows]), _NEVER))
        return np.concatenate(parts).astype(np.float64)

    def second(self, query: Query, chosen: Ints) -> Floats:
        """`[n, words + 1]` what each word of a query, and its end, adds to the score of the chosen pictures."""
        ids = self._captioner.vocabulary.encode(query.words)
        found = self._log_probs(chosen, ids)
        if len(chosen) == len(self):
            general = found
        else:
            general = self._log_probs(np.linspace(0, len(self) - 1, BACKGROUND).round().astype(np.int64), ids)
        return found - log_mean_exp(general)

    def _log_probs(self, places: Ints, ids: Sequence[int]) -> Floats:
        def score(part: Ints) -> list[npt.NDArray[np.float32]]:
            encodings = [self._encoding(int(place)) for place in part]
            return [one for (one,) in self._captioner.engine.score(encodings, [[ids]] * len(encodings))]

        parts = [places[start : start + _ROWS] for start in range(0, len(places), _ROWS)]
        if self._lanes > 1 and len(parts) > 1:
            with ThreadPoolExecutor(min(self._lanes, len(parts))) as lanes:
                found = list(lanes.map(score, parts))
        else:
            found = [score(part) for part in parts]
        return np.stack([one for part in found for one in part]).astype(np.float64)

    def _encoding(self, place: int) -> Encoding:
        return self._index.shards[int(self._shard[place])].encoding(int(self._row[place]))

    def _found(self, place: int, score: float, query: Query, per_word: Floats) -> Found:
        name = self.name(place)
        path = self._index.folder / os.fsdecode(name)
        words = tuple(zip(query.words, per_word.tolist(), strict=False))  # its end is not a word
        return Found(path, os.fsdecode(name), key_of(name), score, words, self.caption(place))


def best(scores: npt.NDArray[np.floating], count: int) -> Ints:
    """Places of the `count` highest scores, highest first; of equals the earlier one."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    border = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = (scores > border).nonzero()[0]
    equal = (scores == border).nonzero()[0][: count - len(above)]
    chosen = np.sort(np.concatenate([above, equal]))
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def log_mean_exp(values: Floats) -> Floats:
    """Over the first axis: the log of the mean of what these are logs of."""
    highest = values.max(axis=0)
    return np.asarray(highest + np.log(np.exp(values - highest).mean(axis=0)))
