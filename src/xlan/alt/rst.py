"""Images of reStructuredText: the directives `image` and `figure`, found line by line.

Literal blocks, comments and directives whose content is code are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from xlan.alt.images import MARK, Edit, Image, State, one_line
from xlan.alt.markdown import quoted
from xlan.alt.sentence import is_file_name

_LINE = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n|\Z)")
_MARKUP = re.compile(r"(?P<prefix>[ \t]*(?:(?:[-*+•]|\(?(?:\d+|[A-Za-z]|#)[.)])[ \t]+)*)\.\.(?=[ \t]|[\r\n]|\Z)")
_DIRECTIVE = re.compile(r"\.\.[ \t]+(?P<name>[A-Za-z][\w.+:-]*?)[ \t]?::(?:[ \t]+(?P<rest>[^\r\n]*)|(?=[\r\n]|\Z))")
_SUBSTITUTION = re.compile(r"\.\.[ \t]+\|[^|\r\n]+\|[ \t]+(?:image|figure)::", re.IGNORECASE)
_COMMENT = re.compile(rf"\.\.[ \t]+alt-by: {MARK}(?:, was: (?P<was>[^\s]*))?[ \t]*(?:\r\n|\r|\n)")
_OPTION = re.compile(r"(?P<indent>[ \t]+):(?P<name>[^:\r\n]+):(?:[ \t]+(?P<value>[^\r\n]*))?")
# Directives whose content is read as reStructuredText; the content of all others is skipped.
# fmt: off
_CONTAINERS = frozenset({
    "admonition", "attention", "card", "caution", "centered", "class", "compound", "container", "cssclass",
    "danger", "deprecated", "details", "dropdown", "epigraph", "error", "figure", "footer", "grid", "grid-item",
    "grid-item-card", "header", "highlights", "hint", "hlist", "image", "important", "list-table", "note", "only",
    "pull-quote", "rst-class", "seealso", "sidebar", "tab", "tab-item", "tab-set", "table", "tabs", "tip", "todo",
    "topic", "versionadded", "versionchanged", "warning",
})
# fmt: on


@dataclass(frozen=True)
class RstImage(Image):
    """An `image` or `figure` directive."""

    prefix: str
    alt_span: tuple[int, int] | None  # the value of `:alt:` with the space before it
    raw_alt: str
    insert_at: int  # where an option can be added
    insert_form: tuple[str, str]  # before and behind `:alt: text`
    mark_span: tuple[int, int] | None
    was: str | None
    alt_line: tuple[int, int] | None
    line_end: str

    def describe(self, text: str, *, marked: bool) -> list[Edit]:
        """Write the option `:alt:`, and where `marked` a comment before the directive."""
        value = " " + one_line(text)
        if self.alt_span is not None:
            edits = [Edit(*self.alt_span, value)]
        else:
            before, behind = self.insert_form
            edits = [Edit(self.insert_at, self.insert_at, f"{before}:alt:{value}{behind}")]
        if self.mark_span is not None:
            return edits if marked else [*edits, Edit(*self.mark_span, "")]
        if marked:
            was = "" if self.alt_span is None else f", was: {quoted(self.raw_alt) or '-'}"
            margin = "".join(c if c in " \t" else " " for c in self.prefix)
            edits.append(Edit(self.start, self.start, f".. alt-by: {MARK}{was}{self.line_end}{margin}"))
        return edits

    def undo(self) -> list[Edit]:
        """Put back the old option, or take the new one out with its line, and the comment."""
        assert self.mark_span is not None
        edits = [Edit(*self.mark_span, "")]
        if self.was is not None and self.alt_span is not None:
            edits.append(Edit(*self.alt_span, "" if self.was == "-" else unquote(self.was, errors="surrogatepass")))
        elif self.alt_line is not None:
            edits.append(Edit(*self.alt_line, ""))
        return edits


@dataclass(frozen=True)
class _Line:
    start: int
    end: int
    text: str  # with its end

    @property
    def blank(self) -> bool:
        return not self.text.strip()

    @property
    def indent(self) -> int:
        return len(self.text[: len(self.text) - len(self.text.lstrip(" \t"))].expandtabs(8))


def find(text: str) -> list[Image]:
    """The images of a document in order."""
    lines = [_Line(m.start(), m.end(), m[0]) for m in _LINE.finditer(text) if m[0]]
    line_end = "\r\n" if "\r\n" in text else "\n"
    images: list[Image] = []
    skip_deeper: int | None = None  # lines indented deeper than this are not reStructuredText
    mark: tuple[_Line, re.Match[str], int] | None = None
    opens = True  # whether explicit markup may begin here
    for number, line in enumerate(lines):
        if line.blank:
            mark, opens = None, True
            continue
        if skip_deeper is not None:
            if line.indent > skip_deeper:
                continue
            skip_deeper = None
        markup = _MARKUP.match(line.text)
        if markup is None or not (opens or markup["prefix"].strip() or line.indent != lines[number - 1].indent):
            if line.text.rstrip().endswith("::"):
                skip_deeper = line.indent
            mark, opens = None, _is_underline(line.text)
            continue
        opens = True
        at = line.start + markup.end() - 2
        rest = line.text[markup.end() - 2 :]
        column = len(markup["prefix"].expandtabs(8))
        if comment := _COMMENT.match(rest):
            mark = (line, comment, at)
            continue
        directive = _DIRECTIVE.match(rest)
        if directive is None or directive["name"].lower() not in _CONTAINERS:
            if _SUBSTITUTION.match(rest) is None:
                skip_deeper = column
            mark = None
            continue
        if directive["name"].lower() in ("image", "figure"):
            images.append(_image(text, lines, number, column, markup["prefix"], at, directive, mark, line_end))
        mark = None
    return images


def _is_underline(text: str) -> bool:
    shown = text.strip()
    return len(set(shown)) == 1 and not shown[0].isalnum()


def _image(
    text: str,
    lines: list[_Line],
    number: int,
    column: int,
    prefix: str,
    start: int,
    directive: re.Match[str],
    mark: tuple[_Line, re.Match[str], int] | None,
    line_end: str,
) -> RstImage:
    """Read the argument and the options that follow the directive."""
    source = [(directive["rest"] or "").strip()]
    margin = "".join(c if c in " \t" else " " for c in prefix) + "   "
    behind = lines[number]
    alt_span: tuple[int, int] | None = None
    alt_line: tuple[int, int] | None = None
    in_options, in_alt = False, False
    for following in range(number + 1, len(lines)):
        line = lines[following]
        if line.blank or line.indent <= column:
            break
        option = _OPTION.match(line.text)
        if option is not None:
            if not in_options:
                margin, in_options = option["indent"], True
            in_alt = option["name"].strip().lower() == "alt" and alt_span is None
            if in_alt:
                name_end = line.start + option.end("name") + 1
                alt_span = (name_end, line.start + len(line.text.rstrip("\r\n")))
                alt_line = (line.start, line.end)
        elif not in_options:
            source.append(line.text.strip())
            margin, behind = line.text[: len(line.text) - len(line.text.lstrip())], line
        elif in_alt and alt_span is not None:  # a value of several lines
            alt_span = (alt_span[0], line.start + len(line.text.rstrip("\r\n")))
    raw = "" if alt_span is None else text[slice(*alt_span)]
    if behind.text.endswith(("\r", "\n")):
        form = (margin, line_end)
    else:
        form = (line_end + margin, "")
        if alt_line is None and mark is not None:
            mark = None
    if alt_line is not None and alt_line[1] == len(text) and not text.endswith(("\r", "\n")):
        before = text[: alt_line[0]]
        alt_line = (alt_line[0] - (2 if before.endswith("\r\n") else 1), alt_line[1])
    alt = one_line(raw) if alt_span is not None else None
    picture = unquote("".join("".join(source).split()))
    marked = mark is not None and alt_span is not None
    state: State = "described"
    if marked:
        state = "marked"
    elif alt is None:
        state = "missing"
    elif not alt:
        state = "empty"
    elif is_file_name(alt, picture):
        state = "file name"
    return RstImage(
        start,
        (picture,) if picture else (),
        alt,
        state,
        prefix,
        alt_span,
        raw,
        behind.end,
        form,
        (mark[2], start) if marked and mark is not None else None,
        mark[1]["was"] if marked and mark is not None else None,
        alt_line,
        line_end,
    )


def skeleton(text: str) -> Iterator[object]:
    """All of a document but the `:alt:` options of its images and our comments."""
    edits: list[tuple[int, int]] = []
    for image in find(text):
        assert isinstance(image, RstImage)
        edits += [span for span in (image.alt_line, image.alt_span, image.mark_span) if span is not None]
    at = 0
    for start, end in sorted(edits):
        yield from text[at : max(at, start)].split()
        at = max(at, end)
    yield from text[at:].split()
