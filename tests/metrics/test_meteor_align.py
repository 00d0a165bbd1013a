from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from xlan.metrics.meteor_align import Match, align, count_chunks
from xlan.metrics.meteor_text import normalise

FIXTURES = Path(__file__).parent.parent / "fixtures" / "metrics"
PREFIXES = frozenset({"v", "vs", "i.e", "rev", "e.g"})


def test_the_same_matches_are_chosen_as_by_the_official_program() -> None:
    with gzip.open(FIXTURES / "meteor_alignments.json.gz", "rt", encoding="utf-8") as file:
        cases = json.load(file)
    assert len(cases) == 3000
    for test_length, found, expected in cases:
        matches = [[Match(*match) for match in here] for here in found]
        assert sorted(map(list, align(matches, test_length))) == expected, found


def test_no_word_is_covered_twice() -> None:
    found = [[Match(0, 2, 0, 1, 3), Match(0, 1, 0, 1, 0)], [Match(1, 2, 0, 2, 3), Match(1, 2, 1, 2, 0)]]
    assert align(found, 2) == [Match(0, 1, 0, 1, 0), Match(1, 2, 1, 2, 0)]


def test_a_match_without_rival_is_always_taken() -> None:
    assert align([[], [Match(1, 2, 4, 5, 3)], []], 6) == [Match(1, 2, 4, 5, 3)]


@pytest.mark.parametrize(
    ("alignment", "chunks"),
    [
        ([], 0),
        ([Match(0, 1, 0, 1, 0), Match(1, 2, 1, 2, 0)], 1),
        ([Match(0, 1, 1, 2, 0), Match(1, 2, 0, 1, 0)], 2),
        ([Match(0, 1, 0, 1, 0), Match(2, 3, 1, 2, 0)], 2),
        ([Match(0, 2, 0, 1, 3), Match(2, 3, 1, 2, 0)], 1),
    ],
)
def test_chunks(alignment: list[Match], chunks: int) -> None:
    assert count_chunks(alignment) == chunks


def test_lines_are_split_as_by_the_official_program() -> None:
    expected = json.loads((FIXTURES / "meteor_normalised.json").read_text(encoding="utf-8"))
    got = {line: " ".join(normalise(line, prefixes=PREFIXES, numeric_prefixes=frozenset({"pp"}))) for line in expected}
    assert {line: tokens for line, tokens in got.items() if tokens != expected[line]} == {}
