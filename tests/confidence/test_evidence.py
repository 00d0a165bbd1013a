"""What is known about a caption's words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xlan.confidence.evidence import WORD_FEATURES, Evidence, Witness
from xlan.types import Regions, Word
from xlan.vision.words import WordHead

HEAD = WordHead(
    ("dog", "dogs", "kite"), np.array([[4, 0], [5, 0], [0, 4]], np.float32), np.array([-2, -3, -2], np.float32)
)
PICTURE = Regions(np.array([[1, 0], [1, 0]], np.float32), np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1]], np.float32))


def words(text: str, *log_probs: float) -> tuple[Word, ...]:
    chances = [math.exp(p) for p in log_probs] or [1.0] * len(text.split())
    return tuple(Word(word, chance) for word, chance in zip(text.split(), chances, strict=True))


def column(known: Evidence, name: str) -> list[float]:
    return known.words[:, WORD_FEATURES.index(name)].tolist()


def test_only_content_words_are_looked_at() -> None:
    spoken = words("a dog with a kite", -0.1, -0.5, -0.2, -0.1, -2.0)
    known = Witness(HEAD).evidence(spoken, [], PICTURE)
    assert known.places == (1, 4)
    assert column(known, "log_probability") == pytest.approx([-0.5, -2.0])


def test_the_likelier_of_singular_and_plural_counts() -> None:
    known = Witness(HEAD).evidence(words("dog kite"), [], PICTURE)
    assert column(known, "seen") == pytest.approx([2.0, -2.0])


def test_other_captions_agree_or_not() -> None:
    known = Witness().evidence(words("dog cow"), [words("two dogs"), words("a cat")], PICTURE)
    assert column(known, "in_other_captions") == [0.5, 0.0]


def test_without_a_head_nothing_is_seen() -> None:
    assert column(Witness().evidence(words("dog"), [], PICTURE), "seen_known") == [0.0]


def test_impossible_words_keep_finite_evidence() -> None:
    assert np.isfinite(Witness().evidence((Word("dog", 0.0),), [], PICTURE).words).all()
