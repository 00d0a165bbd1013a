"""The tokenizer of the official COCO caption scorer, in Python: Penn Treebank rules, lower case, punctuation removed.

The official pipeline hands all captions to a Java program, one a line, lower-cases its answer and then removes a list
of punctuation marks. Two consequences are kept on purpose: brackets come out as `-lrb-` and `-rrb-` and stay (the list
has them in capitals, so nothing matches), and a token may contain a no-break space (`25 1/2`).

The Java program sees the next line while it reads one, and a caption that ends in an abbreviation can come out
differently with a different neighbour. Scores must not depend on the order of a file, so a caption is read here
as if the next line began like most captions do (`FOLLOWING`); pass the real one to reproduce the official answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xlan.metrics.ptb_rules import (
    CAPITAL_ABBREVIATIONS,
    CLOSING_ABBREVIATIONS,
    DIGIT_RULES,
    KEPT_SYMBOLS,
    LETTER,
    LETTER_RULES,
    NUMBER_ABBREVIATIONS,
    OTHER_RULES,
    RESPELLED,
    TITLE_ABBREVIATIONS,
    Rule,
)

FOLLOWING = "A man"
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_SPACE = re.compile(r"\s+")
_CHUNK = re.compile(r"\S+")
_LETTER = re.compile(LETTER)
_KEPT = re.compile(rf"[!-/:-@\[-`{{-~{KEPT_SYMBOLS}]")
_OUTSIDE_BMP = re.compile("[\ud800-\udfff\U00010000-\U0010ffff]")
_SPACED_DOTS = re.compile(r"\.\s\.")
# Between spaces, such a piece means the same wherever it stands: no rule that starts in it looks past a space
# (but for a spaced ellipsis, `_SPACED_DOTS`).
_CONTEXT_FREE = re.compile(r"[A-Za-z!\"'(),/:;?\-\[\]`]+|[A-Za-z]{2,}\.")
_ABBREVIATIONS = frozenset(
    f"{word}."
    for words in (CLOSING_ABBREVIATIONS, CAPITAL_ABBREVIATIONS, TITLE_ABBREVIATIONS, NUMBER_ABBREVIATIONS)
    for word in (*words, "mfg", "mtg", "pte", "pty", "ptes", "ptys", "ppte", "ppty")
)
# Longer tokens are cut: without a limit a long run of "a,a,a,…" would be read again from every place in it.
_REACH = 512
_MAX_CACHED = 1 << 17
_cache: dict[str, tuple[str, ...]] = {}


def scan(caption: str, *, following: str = FOLLOWING) -> list[str]:
    """Lower-cased tokens of `caption`, punctuation included, as the official Java program prints them.

    Args:
        caption: any text; line breaks count as spaces.
        following: the line after it, which matters when the caption ends in an abbreviation.
    """
    if _SPACED_DOTS.search(caption):
        return _scan_text(caption, following)
    tokens: list[str] = []
    for chunk in caption.split():
        known = _cache.get(chunk)
        if known is None:
            return _scan_text(caption, following)
        tokens += known
    return tokens


def _scan_text(caption: str, following: str) -> list[str]:
    if not caption.isascii():
        caption = _OUTSIDE_BMP.sub("\ufffd", caption)
    caption = caption.replace("\n", " ")
    text, end, position = f"{caption}\n{following}", len(caption), 0
    tokens: list[str] = []
    at_chunk_start = True
    while True:
        space = _SPACE.match(text, position)
        if space is not None:
            position, at_chunk_start = space.end(), True
        if position >= end:
            return tokens
        if at_chunk_start and (known := _context_free(text, position)) is not None:
            chunk, words = known
            tokens += words
            position += len(chunk)
        else:
            at_chunk_start = False
            position, found = _next_token(text, position)
            tokens += [token.lower() for token in found]


def _context_free(text: str, position: int) -> tuple[str, tuple[str, ...]] | None:
    """The piece up to the next space and its tokens, when those do not depend on what follows the space."""
    match = _CHUNK.match(text, position)
    assert match is not None
    chunk = match.group()
    if chunk[-1] == "." and _SPACED_DOTS.match(text, match.end() - 1):
        return None
    words = _cache.get(chunk)
    if words is not None:
        return chunk, words
    if len(chunk) > 64 or not _CONTEXT_FREE.fullmatch(chunk) or chunk.lower() in _ABBREVIATIONS:
        return None
    words = _tokens_of(chunk)
    if len(_cache) < _MAX_CACHED:
        _cache[chunk] = words
    return chunk, words


def _tokens_of(chunk: str) -> tuple[str, ...]:
    text, position, tokens = f"{chunk} {FOLLOWING}", 0, []
    while position < len(chunk):
        position, found = _next_token(text, position)
        tokens += [token.lower() for token in found]
    return tuple(tokens)


def _next_token(text: str, position: int) -> tuple[int, tuple[str, ...]]:
    """Where the token at `position` ends, and how it is written (nothing for a character that is dropped)."""
    character = text[position]
    rules: Sequence[Rule]
    if character.isdigit():
        rules = DIGIT_RULES
    elif _LETTER.match(character):
        rules = LETTER_RULES
    else:
        rules = OTHER_RULES.get(character, ())
    longest, seen, chosen = None, position, None
    for rule in rules:
        match = rule.pattern.match(text, position, position + _REACH)
        if match is not None and match.end() > seen:
            longest, seen, chosen = match, match.end(), rule
    if longest is not None and chosen is not None:
        return longest.end(1), chosen.write(longest.group(1))
    if character in RESPELLED:
        return position + 1, (RESPELLED[character],)
    return position + 1, (character,) if _KEPT.match(character) else ()


def tokenize(caption: str, *, following: str = FOLLOWING) -> str:
    """The words of `caption`, joined by single spaces: what every metric but SPICE counts."""
    return " ".join([token for token in scan(caption, following=following) if token not in PUNCTUATION])
