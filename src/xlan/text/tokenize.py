"""Captions → words, for training and for the vocabulary.

The rule is the one the COCO captioning field trains with (neuraltalk, then all others): lower case, no
punctuation, split at white space. In detail, so that a word never depends on the writer's keyboard:

- text is brought to Unicode NFKC and lower case;
- apostrophes, hyphens and full stops vanish: "man's" → "mans", "close-up" → "closeup", "t.v." → "tv";
- every other character that is not a letter, a mark or a digit separates words: "tub/shower" → "tub shower".

Two deviations: neuraltalk also glues words at commas and slashes without a space around them ("computer,a"),
and knows ASCII only. A caption file that brings its own words (the `tokens` of Karpathy's files) keeps them
instead. Scoring has a tokeniser of its own, the one of the official COCO evaluation.
"""

from __future__ import annotations

import unicodedata

_VANISH = frozenset("'’‘`´-‐‑.")


class _Table(dict[int, str]):
    """Translation of characters, filled as characters are met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in _VANISH:
            replacement = ""
        else:
            replacement = character if unicodedata.category(character)[0] in "LMN" else " "
        self[code] = replacement
        return replacement


_TABLE = _Table()


def tokenize(caption: str) -> tuple[str, ...]:
    """Words of a caption; empty when it has none.

    >>> tokenize("A man's T-shirt, close-up.")
    ('a', 'mans', 'tshirt', 'closeup')
    """
    text = unicodedata.normalize("NFKC", caption).lower()
    return tuple(text.translate(_TABLE).split())
