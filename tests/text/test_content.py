"""Content words and their folded form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlan.text.content import STOP_WORDS, content_words, fold

WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12)


@given(WORDS)
def test_an_unfolded_word_never_grows_by_more_than_a_letter(word: str) -> None:
    if word in ("people", "men", "women", "children"):
        return
    assert len(fold(word)) <= len(word) + 1


@pytest.mark.parametrize("word", ["dog", "bench", "bus", "glass", "person", "man", "puppy", "box", "skis", "tennis"])
def test_singulars_stay_and_plurals_join_them(word: str) -> None:
    plurals = {"person": "people", "man": "men", "puppy": "puppies", "bench": "benches", "bus": "buses"}
    plurals |= {"glass": "glasses", "box": "boxes", "skis": "skis", "tennis": "tennis"}
    assert fold(plurals.get(word, word + "s")) == fold(word)


def test_short_words_and_double_s_are_no_plurals() -> None:
    assert [fold(word) for word in ("bus", "gas", "grass", "bass", "cactus")] == [
        "bus",
        "gas",
        "grass",
        "bass",
        "cactus",
    ]


@given(st.lists(st.one_of(WORDS, st.sampled_from(sorted(STOP_WORDS)))))
def test_content_words_are_the_others_in_order(words: list[str]) -> None:
    assert content_words(words) == [fold(word) for word in words if word not in STOP_WORDS]
