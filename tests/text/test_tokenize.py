"""Captions become words by one written rule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.text.tokenize import tokenize


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        (
            "A man with a red helmet on a small moped on a dirt road. ",
            "a man with a red helmet on a small moped on a dirt road",
        ),
        ("It's a man's T-shirt", "its a mans tshirt"),
        ("A t.v. in the U.S.", "a tv in the us"),
        ("tub/shower,and a sink", "tub shower and a sink"),
        ("«Café» – ein Hund…", "café ein hund"),
        ("A ﬁne dog", "a fine dog"),
        ("don’t", "dont"),
        ("two\u00a0dogs\tand\n3 cats", "two dogs and 3 cats"),
        ("...", ""),
        ("", ""),
    ],
)
def test_the_rule(caption: str, words: str) -> None:
    assert " ".join(tokenize(caption)) == words


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_words_are_clean_and_stay_as_they_are(caption: str) -> None:
    words = tokenize(caption)
    assert all(words)
    assert not any(character.isspace() for word in words for character in word)
    assert tokenize(" ".join(words)) == words
