from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import SearchError
from xlan.search.words import nearest_words, read_query
from xlan.text.vocab import Vocabulary

VOCABULARY = Vocabulary.from_words(["a", "dog", "beach", "labradors", "puppies", "on", "the", "retriever", "unknown"])


def test_words_that_are_not_known_are_named_with_their_nearest() -> None:
    query = read_query("A dgo, on the BEACH! retreiver", VOCABULARY)
    assert query.words == ("a", "on", "the", "beach")
    assert [str(one) for one in query.unknown] == [
        "unknown word 'dgo'; nearest known: dog",
        "unknown word 'retreiver'; nearest known: retriever",
    ]


def test_singular_and_plural_stand_for_each_other() -> None:
    query = read_query("dogs, a labrador and puppy", VOCABULARY)
    assert query.words == ("dog", "a", "labradors", "puppies")
    assert [one.word for one in query.unknown] == ["and"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a sentence such as 'a dog on the beach', got ''"),
        (" ?! ", "expected a sentence"),
        ("zzz labradorz", "the model knows none of its words: unknown word 'zzz'; unknown word 'labradorz'; nearest"),
        ("<bos> <unk>", "the model knows none of its words"),
        ("a " * 31, "at most 30 words, got 31"),
        ("a" * 501, "at most 500 characters, got 501"),
    ],
)
def test_a_query_that_cannot_be_is_one_line(text: str, message: str) -> None:
    with pytest.raises(SearchError) as caught:
        read_query(text, VOCABULARY)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_every_word_is_known_or_unknown(text: str) -> None:
    try:
        query = read_query(text, VOCABULARY)
    except SearchError:
        return
    assert query.words
    assert all(word in VOCABULARY for word in query.words)
    assert all(one.word not in VOCABULARY or one.word.startswith("<") for one in query.unknown)


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="abcde", min_size=1, max_size=8), st.lists(st.text(alphabet="abcde", min_size=1), unique=True))
def test_the_nearest_words_are_known_ones(word: str, words: list[str]) -> None:
    found = nearest_words(word, words)
    assert set(found) <= set(words)
    assert len(found) <= 3
    if word in words:
        assert found[0] == word
