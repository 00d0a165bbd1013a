"""The tokens METEOR sees: what `-norm` does to a line, learnt from the official program's answers.

Captions arrive PTB-tokenised and lower-case, yet METEOR splits them once more: hyphenated words come apart, `'s`
becomes `' s`, `u.s.` becomes `us`.
"""

from __future__ import annotations

import re
from collections.abc import Set

_LETTERS = "A-Za-zÀ-ÖØ-öø-žЀ-ԧᴀ-ᵿꙀ-ꙮ꙾-ꚗ"
_SPACE = re.compile("[\t\n\f\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_PLAIN = re.compile("[a-z0-9 ]*")
_SINGLE_QUOTE = re.compile("[‘’`]")
_DOUBLE_QUOTE = re.compile("''|[“”]")
_SYMBOL = re.compile(f"([^{_LETTERS}0-9 .',\v-])")  # a vertical tab stays inside its word
_DOTS = re.compile(r"(\.\.+)")
_COMMA = re.compile(r"(?<![0-9]),|,(?![0-9])")
_HYPHEN = re.compile(f"([{_LETTERS}0-9.])-([{_LETTERS}0-9])")
_APOSTROPHES = (
    (re.compile(f"([^{_LETTERS}])'([^{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(f"([^{_LETTERS}0-9])'([{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(f"([{_LETTERS}])'([^{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(f"([{_LETTERS}])'([{_LETTERS}])"), r"\1 '\2"),
    (re.compile("([0-9])'s"), r"\1 's"),
)
_HAS_LETTER = re.compile(f"[{_LETTERS}]")
_LOWER_START = re.compile("[a-z]")
_DIGIT_START = re.compile("[0-9]")


def normalise(line: str, *, prefixes: Set[str], numeric_prefixes: Set[str]) -> list[str]:
    """Split one caption into METEOR's tokens.

    Args:
        line: the caption, tokenised or raw.
        prefixes: words that keep a final full stop wherever they stand.
        numeric_prefixes: words that keep it before a number.
    """
    text = _SPACE.sub(" ", line.lower())
    if _PLAIN.fullmatch(text):  # most captions: nothing below would change them
        return text.split()
    text = _DOUBLE_QUOTE.sub('"', _SINGLE_QUOTE.sub("'", text)).replace("–", " - ").replace("--", "-")
    text = _SYMBOL.sub(r" \1 ", f" {text} ")
    text = _COMMA.sub(" , ", _DOTS.sub(r" \1 ", text))
    for pattern, replacement in _APOSTROPHES:
        text = pattern.sub(replacement, text)
    words = [word for word in _HYPHEN.sub(r"\1 \2", text).split(" ") if word]
    tokens: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        tokens += _full_stop(word, following, prefixes, numeric_prefixes)
    return tokens


def _full_stop(word: str, following: str, prefixes: Set[str], numeric_prefixes: Set[str]) -> list[str]:
    """Decide what becomes of the full stop at a word's end: dropped in an acronym, kept, or a token of its own."""
    stem = word[:-1]
    if not word.endswith(".") or not stem.strip("."):
        return [word]
    if "." in stem and _HAS_LETTER.search(stem):
        return [word.replace(".", "")]
    if stem in prefixes or _LOWER_START.match(following):
        return [word]
    if stem in numeric_prefixes and _DIGIT_START.match(following):
        return [word]
    return [stem, "."]
