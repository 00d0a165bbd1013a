"""Images of Markdown: markdown-it says which there are, and a scan of the same lines says where.

An image that the scan cannot place beyond doubt is not touched. HTML inside Markdown is handled as in `xlan.alt.html`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from xlan.alt import html
from xlan.alt.images import MARK, Edit, Image, State
from xlan.alt.sentence import is_file_name
from xlan.alt.templates import TemplateMap

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_COMMENT = re.compile(rf"<!-- alt-by: {MARK}(?:, was: ([^ >]*))? -->")
_ATTRIBUTES = re.compile(r"\{(?![{%#])[^{}\n]*\}")  # kramdown's and Pandoc's, behind the image
_SPECIAL = re.compile(r"([\\`*_\[\]<>&|$~!])")
_CODE = re.compile(r"`++")
_LINK_TARGET = re.compile(
    r"""\(\s*+(<(?:[^<>\n\\]|\\.)*+>|(?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.|\([^\s()]*+\))*+\))*+)"""
    r"""(?:\s++(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|\((?:[^()\\]|\\.)*+\)))?\s*+\)""",
    re.DOTALL,
)
_REFERENCE = re.compile(r"\[(?:[^\[\]\\]|\\.)++\]", re.DOTALL)
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_LINE_ENDS = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class MarkdownImage(Image):
    """`![alt](source)` or `![alt][reference]`."""

    alt_start: int
    alt_end: int
    raw_alt: str
    end: int  # behind the image and the attributes in braces that follow it
    mark_end: int  # behind our comment, where there is one
    was: str | None

    def describe(self, text: str, *, marked: bool) -> list[Edit]:
        """Write the text between the brackets, and where `marked` a comment behind the image."""
        edits = [Edit(self.alt_start, self.alt_end, _escaped(text))]
        if self.state == "marked":
            return edits if marked else [*edits, Edit(self.end, self.mark_end, "")]
        if marked:
            was = f", was: {quoted(self.raw_alt)}" if self.raw_alt else ""
            edits.append(Edit(self.end, self.end, f"<!-- alt-by: {MARK}{was} -->"))
        return edits

    def undo(self) -> list[Edit]:
        """Put back what was between the brackets and take the comment out."""
        old = "" if self.was is None else unquote(self.was, errors="surrogatepass")
        return [Edit(self.alt_start, self.alt_end, old), Edit(self.end, self.mark_end, "")]


def find(text: str) -> list[Image]:
    """The images of a document in order."""
    templates = TemplateMap(text)
    starts = [0, *(found.end() for found in _LINE_ENDS.finditer(text)), len(text)]
    images: list[Image] = []
    for first, last, tokens in _blocks(text):
        begin, end = starts[first], starts[min(last, len(starts) - 1)]
        piece = text[begin:end]
        if tokens and tokens[0].type == "html_block":
            images += html.find(piece, offset=begin)
        else:
            images += _images_of(piece, begin, tokens, templates)
    return images


def skeleton(text: str) -> Iterator[object]:
    """All of a document but alternative texts and our comments, as its parser sees it."""
    for token in _parser().parse(text):
        if token.type == "inline":
            children = [child for child in token.children or () if not _is_mark(child)]
            for is_text, group in groupby(children, key=lambda child: child.type == "text"):
                if is_text:  # our comment may stand between two halves of one text
                    yield "".join(child.content for child in group)
                else:
                    yield from map(_outline, group)
        elif token.type == "html_block":
            yield tuple(html.skeleton(token.content))
        else:
            yield token.type, token.tag, token.content, token.info, tuple((token.attrs or {}).items())


def _outline(token: Token) -> object:
    if token.type == "html_inline":
        return tuple(html.skeleton(token.content))
    attributes = tuple((key, value) for key, value in (token.attrs or {}).items() if key != "alt")
    return token.type, token.tag, "" if token.type == "image" else token.content, attributes


def _is_mark(token: Token) -> bool:
    return token.type == "html_inline" and _COMMENT.fullmatch(token.content) is not None


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


def _blocks(text: str) -> Iterator[tuple[int, int, list[Token]]]:
    """Ranges of lines that hold images or HTML, with the tokens in them."""
    if "![" not in text and "<" not in text:
        return
    tokens = [one for one in _parser().parse(text) if one.type in ("inline", "html_block") and one.map is not None]
    for (first, last), group in groupby(tokens, key=lambda one: (one.map or [0, 0])[:2]):
        yield first, last, list(group)


@dataclass(frozen=True)
class _Candidate:
    start: int
    alt_start: int
    alt_end: int
    end: int
    source: str | None  # None for a reference


def _images_of(piece: str, begin: int, tokens: list[Token], templates: TemplateMap) -> list[Image]:
    """The images and `<img>` tags of a paragraph, heading or row of a table, where all can be placed."""
    expected = [child for token in tokens for child in token.children or () if _wanted(child)]
    if not expected:
        return []
    found = iter(_scan(piece))
    images: list[Image] = []
    for token in expected:
        for start, what in found:
            if isinstance(what, str) and token.type == "html_inline" and what == token.content:
                images += html.find(what, offset=begin + start)
                break
            if isinstance(what, _Candidate) and token.type == "image":
                raw = piece[what.alt_start : what.alt_end]
                if _squeezed(raw) == _squeezed(token.content) and what.source in (None, _source(token)):
                    images.append(_image(piece, begin, what, raw, token, templates))
                    break
        else:
            # Not all were found: none of them is certain, and all are left to a person.
            return [_unplaced(begin, one) for one in expected if one.type == "image"]
    return images


def _unplaced(begin: int, token: Token) -> MarkdownImage:
    return MarkdownImage(begin, (_source(token),), _plain(token), "computed", begin, begin, "", begin, begin, None)


def _source(token: Token) -> str:
    return unquote(str((token.attrs or {}).get("src", "")))


def _wanted(token: Token) -> bool:
    return token.type == "image" or (token.type == "html_inline" and token.content[:4].lower() == "<img")


def _squeezed(text: str) -> str:
    """Text as the parser keeps it: line breaks, margins and escaped bars in tables apart."""
    return re.sub(r"[\s>]+", " ", text.replace("\\|", "|")).strip()


def _image(piece: str, begin: int, at: _Candidate, raw: str, token: Token, templates: TemplateMap) -> MarkdownImage:
    source = _source(token)
    end = at.end
    if attributes := _ATTRIBUTES.match(piece, end):
        end = attributes.end()
    mark = _COMMENT.match(piece, end)
    alt = _plain(token)
    state: State = "described"
    if templates.covers(begin + at.start):
        state = "computed"
    elif mark is not None:
        state = "marked"
    elif not alt.strip():
        state = "missing"
    elif is_file_name(alt, source.removeprefix("attachment:")) and at.alt_end != at.end - 1:
        state = "file name"
    return MarkdownImage(
        begin + at.start,
        (source,) if source else (),
        alt,
        state,
        begin + at.alt_start,
        begin + at.alt_end,
        raw,
        begin + end,
        begin + (end if mark is None else mark.end()),
        None if mark is None else mark[1],
    )


def _plain(token: Token) -> str:
    """The alternative text that a reader gets."""
    return "".join(
        child.content
        if child.type in ("text", "code_inline", "html_inline")
        else _plain(child)
        if child.children
        else " "
        for child in token.children or ()
        if child.nesting == 0
    )


def _scan(piece: str) -> Iterator[tuple[int, str | _Candidate]]:
    """Images and HTML tags of a piece of inline text with their places; escapes and code are skipped."""
    at, runs = 0, _code_spans(piece)
    while at < len(piece):
        character = piece[at]
        if character == "\\":
            at += 2
        elif character == "`":
            at = runs[at]
        elif character == "<":
            tag = next(html.tags(piece[at : at + 65536]), None) if piece[at + 1 : at + 2].isalpha() else None
            if tag is not None and tag.start == 0:
                yield at, piece[at : at + tag.end]
                at += tag.end
            elif piece.startswith("<!--", at):
                end = piece.find("-->", at)
                at = at + 1 if end < 0 else end + 3
            else:
                at += 1
        elif piece.startswith("![", at):
            candidate = _candidate(piece, at, runs)
            if candidate is not None:
                yield at, candidate
            at = at + 2 if candidate is None else candidate.end
        else:
            at = min((n for n in (piece.find(c, at + 1) for c in "\\`<!") if n >= 0), default=len(piece))


def _code_spans(piece: str) -> dict[int, int]:
    """Where each run of backticks leads: behind the code that it opens, or just behind itself."""
    runs = [(found.start(), found.end()) for found in _CODE.finditer(piece)]
    later: dict[int, int] = {}  # the length of a run → the end of the next such run
    ends: dict[int, int] = {}
    for start, end in reversed(runs):
        for inside in range(start, end):
            ends[inside] = later.get(end - inside, end) if inside == start else end
        later[end - start] = end
    return ends


def _candidate(piece: str, start: int, runs: dict[int, int]) -> _Candidate | None:
    """The image that begins with `![` at `start`."""
    depth, at = 1, start + 2
    while at < len(piece):
        character = piece[at]
        if character == "\\":
            at += 2
            continue
        if character == "`":
            at = runs[at]
            continue
        depth += (character == "[") - (character == "]")
        if depth == 0:
            break
        if at - start > 10_000:
            return None
        at += 1
    else:
        return None
    if target := _LINK_TARGET.match(piece, at + 1):
        written = target[1][1:-1] if target[1].startswith("<") else target[1]
        return _Candidate(start, start + 2, at, target.end(), unquote(unescape(_ESCAPE.sub(r"\1", written))))
    reference = _REFERENCE.match(piece, at + 1)
    return _Candidate(start, start + 2, at, at + 1 if reference is None else reference.end(), None)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def quoted(raw: str) -> str:
    """Any text as part of an HTML comment."""
    return quote(raw, safe="/:,()'", errors="surrogatepass").replace("-", "%2D")
