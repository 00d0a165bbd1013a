"""What is known about a caption's words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xlan.confidence.evidence import LEAST_DOUBT, NAMING, WORD_FEATURES, Evidence, Witness
from xlan.types import Regions, Word
from xlan.vision.words import WordHead

HEAD = WordHead(
    ("dog", "dogs", "kite"), np.array([[4, 0], [5, 0], [0, 4]], np.float32), np.array([-2, -3, -2], np.float32)
)
PICTURE = Regions(np.array([[1, 0], [1, 0]], np.float32), np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1]], np.float32))


def words(text: str, *log_probs: float) -> tuple[Word, ...]:
    chances = [math.exp(p) for p in log_probs] or [1.0] * len(text.split())
    return tuple(Word(word, chance) for word, chance in zip(text.split(), chances, strict=True))


def known_about(witness: Witness, caption: tuple[Word, ...], others: list[tuple[Word, ...]]) -> Evidence:
    return witness.evidence(caption, others, witness.look(PICTURE))


def column(known: Evidence, name: str) -> list[float]:
    return known.words[:, WORD_FEATURES.index(name)].tolist()


def test_only_content_words_are_looked_at() -> None:
    spoken = words("a dog with a kite", -0.1, -0.5, -0.2, -0.1, -2.0)
    known = known_about(Witness(HEAD), spoken, [])
    assert known.places == (1, 4)
    assert column(known, "log_probability") == pytest.approx([-0.5, -2.0])


def test_the_likelier_of_singular_and_plural_counts() -> None:
    known = known_about(Witness(HEAD), words("dog kite"), [])
    assert column(known, "seen") == pytest.approx([2.0, -2.0])


def test_other_captions_agree_or_not() -> None:
    known = known_about(Witness(), words("dog cow"), [words("two dogs"), words("a cat")])
    assert column(known, "in_other_captions") == [0.5, 0.0]


def test_without_a_head_nothing_is_seen() -> None:
    assert column(known_about(Witness(), words("dog"), []), "seen_known") == [0.0]


def test_impossible_words_keep_finite_evidence() -> None:
    assert np.isfinite(known_about(Witness(), (Word("dog", 0.0),), []).words).all()


DOG, KITE = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))  # chances: log-odds 4 - 2 or 5 - 3, and -2


def test_coverage_is_the_share_of_what_is_expected_that_the_caption_names() -> None:
    assert known_about(Witness(HEAD), words("two dogs"), []).caption.coverage == pytest.approx(DOG / (DOG + KITE))
    assert known_about(Witness(HEAD), words("a dog with a kite"), []).caption.coverage == pytest.approx(1.0)
    assert known_about(Witness(HEAD), words("a cow"), []).caption.coverage == 0.0
    assert known_about(Witness(), words("a dog"), []).caption.coverage == 0.0


def test_a_word_whose_singular_says_nothing_covers_nothing() -> None:
    head = WordHead(("pictures", "dog"), np.zeros((2, 2), np.float32), np.zeros(2, np.float32))
    known = known_about(Witness(head), words("pictures of pictures"), [])  # "picture" is a stop word, "pictures" is not
    assert known.places == (0, 2)
    assert (known.caption.coverage, known.caption.rare_coverage) == (0.0, 0.0)


def test_a_rare_word_covers_more() -> None:
    dog, kite = DOG * math.log(2), KITE * math.log(4)  # the first and the third of the head's words, commonest first
    assert known_about(Witness(HEAD), words("a kite"), []).caption.rare_coverage == pytest.approx(kite / (dog + kite))
    assert known_about(Witness(HEAD), words("dog kite"), []).caption.rare_coverage == pytest.approx(1.0)
    assert known_about(Witness(), words("a kite"), []).caption.rare_coverage == 0.0


def test_naming_what_is_seen_is_worth_its_share_of_what_is_expected() -> None:
    witness = Witness(HEAD)
    worth = witness.look(PICTURE).worth
    assert sum(worth.values()) == pytest.approx(NAMING)
    assert worth["kite"] == pytest.approx(NAMING * known_about(witness, words("a kite"), []).caption.rare_coverage)
    assert Witness().look(PICTURE).worth == {}


def test_doubt_tells_nearly_sure_words_apart_and_leaves_out_words_that_say_nothing() -> None:
    surer, less_sure = (
        known_about(Witness(), (Word("a", 0.1), Word("dog", probability)), []).caption.doubt
        for probability in (0.99, 0.9)
    )
    assert surer == pytest.approx(math.log(0.01 + LEAST_DOUBT))
    assert less_sure == pytest.approx(math.log(0.1 + LEAST_DOUBT))


def test_a_picture_is_clear_when_its_likeliest_words_are_likely() -> None:
    assert known_about(Witness(HEAD), words("a cow"), []).caption.clearness == pytest.approx(
        (DOG**2 + KITE**2) / (DOG + KITE)
    )
    assert known_about(Witness(), words("a dog"), []).caption.clearness == 0.0
