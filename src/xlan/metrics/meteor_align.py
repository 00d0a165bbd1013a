"""METEOR's aligner: which words of a caption stand for which words of a reference.

All matches are found first; the best set of them that covers no word twice is then searched for with a beam, as in
Denkowski & Lavie (2014): most covered words, then fewest chunks, then least distance. To give the official
program's answer in every tie, its observed behaviour is reproduced:

- a match that is not exact counts half its words, rounded down on each side, while paths are compared;
- the beam compares the chunks that are *closed*; the one still open counts only at the end;
- the distance of a match is charged to the path without it, so later alternatives and the path that skips the word
  carry it, not the path that takes it;
- a match without any rival is taken beforehand;
- paths that tie stay in the order in which they were made: matches in the order exact, stem, synonym, paraphrase
  (reference phrases first, then caption phrases), then the path that skips the word.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
BEAM = 40
# Official behaviour for any caption a person would write; beyond these limits time stays bounded instead.
MAX_RIVALS = 64  # matches of one kind that start at one word, in references of up to 1,000 words
MAX_EXPANSIONS = 1_000_000  # steps of the beam

_COUNT, _CHUNK = 1 << 48, 1 << 34  # a path's rank in one integer: words covered, closed chunks, distance
_rank = itemgetter(0)


class Match(NamedTuple):
    """Words `start:stop` of the reference stand for words `test_start:test_stop` of the caption."""

    start: int
    stop: int
    test_start: int
    test_stop: int
    module: int


class Sentence:
    """One tokenised sentence with what matching needs of it.

    Attributes:
        words: its tokens.
        positions: word → where it stands.
        related: for each token, the words of the corpus with its stem and those that share a synset with it.
        sources: (start, stop, hashes of paraphrases that occur in the corpus) of each phrase found in the table.
        phrases: hash → (start, stop) of each phrase that is a paraphrase of another one in the corpus.
        content: for each token, whether it is a content word.
    """

    __slots__ = ("content", "functions", "phrases", "positions", "related", "sources", "words")

    def __init__(self, words: Sequence[str], related: Mapping[str, Any], function_words: frozenset[str]) -> None:
        self.words = words
        self.positions: dict[str, list[int]] = {}
        for index, word in enumerate(words):
            self.positions.setdefault(word, []).append(index)
        self.related: list[tuple[frozenset[str], frozenset[str]]] = [related[word] for word in words]
        self.content = [word not in function_words for word in words]
        self.functions = len(words) - sum(self.content)
        self.sources: list[tuple[int, int, tuple[int, ...]]] = []
        self.phrases: dict[int, list[tuple[int, int]]] = {}


def find_matches(test: Sentence, reference: Sentence) -> list[list[Match]]:
    """All matches by the reference word they start at, in the official order."""
    found: list[list[Match]] = []
    limit = max(4, min(MAX_RIVALS, 1000 * MAX_RIVALS // (len(reference.words) + 1)))
    positions = test.positions
    seen = positions.keys()
    for start, (word, related) in enumerate(zip(reference.words, reference.related, strict=True)):
        here: list[Match] = []
        if word in positions:
            places = _nearest(positions[word], start, limit)
            here += [Match(start, start + 1, at, at + 1, EXACT) for at in places]
        for module, others in zip((STEM, SYNONYM), related, strict=True):
            if others and not others.isdisjoint(seen):
                places = sorted(at for other in others & seen for at in _nearest(positions[other], start, limit))
                here += [Match(start, start + 1, at, at + 1, module) for at in _nearest(places, start, limit)]
        found.append(here)
    for start, stop, others_hashes in reference.sources:
        for other in others_hashes:
            if other in test.phrases:
                for at, end in _nearest(test.phrases[other], (start, 0), limit):
                    found[start].append(Match(start, stop, at, end, PARAPHRASE))
    for at, end, others_hashes in test.sources:
        for other in others_hashes:
            if other in reference.phrases:
                for start, stop in _nearest(reference.phrases[other], (at, 0), limit):
                    found[start].append(Match(start, stop, at, end, PARAPHRASE))
    return found


_Place = TypeVar("_Place", int, tuple[int, int])


def _nearest(places: list[_Place], start: _Place, limit: int) -> list[_Place]:
    """At most `limit` of the ascending places, those around `start`."""
    if len(places) <= limit:
        return places
    first = max(0, min(bisect_left(places, start) - limit // 2, len(places) - limit))
    return places[first : first + limit]


def _without_rival(found: list[list[Match]], test_length: int) -> set[int]:
    """Reference words whose only match touches no word that another match touches."""
    claims, test_claims = [0] * len(found), [0] * test_length
    for here in found:
        for start, stop, at, end, _ in here:
            for index in range(start, stop):
                claims[index] += 1
            for index in range(at, end):
                test_claims[index] += 1
    sure = set()
    for here in found:
        if len(here) == 1:
            start, stop, at, end, _ = here[0]
            if max(claims[start:stop]) == 1 and max(test_claims[at:end]) == 1:
                sure.add(start)
    return sure


def align(found: list[list[Match]], test_length: int) -> list[Match]:
    """Choose the matches that make the alignment, in the order of the reference.

    Args:
        found: matches by the reference word they start at, as `find_matches` gives them.
        test_length: number of words of the caption.
    """
    sure = _without_rival(found, test_length)
    if all(len(here) == (start in sure) for start, here in enumerate(found)):
        return [match for here in found for match in here]
    total = sum(map(len, found))
    width = max(1, min(BEAM, MAX_EXPANSIONS // total))
    # A path: rank, covered up to (reference), end of the last match (caption), caption words used, matches so far.
    paths: list[tuple[int, int, int, int, Any]] = [(0, -1, -1, 0, None)]
    for position, here in enumerate(found):
        if not here and all(path[1] < position for path in paths):
            continue  # no match to take, no chunk to close: nothing changes
        paths = _step(paths, position, here, skip=position not in sure)
        if len(paths) > 1:
            paths.sort(key=_rank)
            del paths[width:]
    length = len(found)
    best = min(paths, key=lambda path: path[0] + _CHUNK * (path[1] == length))
    chosen: list[Match] = []
    node = best[4]
    while node is not None:
        node, match = node
        chosen.append(match)
    return chosen[::-1]


def _step(
    paths: list[tuple[int, int, int, int, Any]], position: int, here: list[Match], *, skip: bool
) -> list[tuple[int, int, int, int, Any]]:
    """Extend every path over one reference word, by each match that starts there and by skipping it."""
    options = [
        (
            match,
            ((1 << (match[3] - match[2])) - 1) << match[2],
            _COUNT * (2 if match[4] == EXACT else (match[1] - match[0]) // 2 + (match[3] - match[2]) // 2),
            abs(position - match[2]),
        )
        for match in here
    ]
    extended: list[tuple[int, int, int, int, Any]] = []
    for path in paths:
        rank, covered, end, used, chosen = path
        if covered > position:
            extended.append(path)
            continue
        is_open = covered == position
        for match, mask, gain, distance in options:
            if used & mask:
                continue
            broken = _CHUNK if is_open and match[2] != end else 0
            extended.append((rank - gain + broken, match[1], match[3], used | mask, (chosen, match)))
            rank += distance
        if skip:
            extended.append((rank + _CHUNK if is_open else rank, covered, end, used, chosen))
    return extended


def count_chunks(alignment: Sequence[Match]) -> int:
    """Number of runs of matches that are adjacent and in the same order on both sides."""
    chunks, stop, end = 0, -1, -1
    for match in alignment:
        if match.start != stop or match.test_start != end:
            chunks += 1
        stop, end = match.stop, match.test_stop
    return chunks
