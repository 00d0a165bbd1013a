"""Templates in documents: what is inside `{{ }}`, `{% %}`, `<% %>` or `<?php ?>` is code and is left alone."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

# Opening, closing, and how long one may be: two braces also occur in scripts, far from their counterpart.
_KINDS: tuple[tuple[str, str, int | None], ...] = (
    ("{{", "}}", 2000),
    ("{%", "%}", 2000),
    ("{#", "#}", 2000),
    ("<%", "%>", None),
    ("<?php", "?>", None),
    ("<?=", "?>", None),
)
_DELIMITER = re.compile(r"\{\{|\{%|\{#|\}\}|%\}|#\}|<%|%>|<\?|\?>|\$\{|#\{")


class TemplateMap:
    """Where the template expressions of a text are."""

    def __init__(self, text: str) -> None:
        spans: list[tuple[int, int]] = []
        for opening, closing, longest in _KINDS:
            at = 0
            while (start := text.find(opening, at)) >= 0:
                end = text.find(closing, start + len(opening))
                if end < 0 and longest is not None:
                    break
                end = len(text) if end < 0 else end + len(closing)
                if longest is None or end - start <= longest:
                    spans.append((start, end))
                    at = end
                else:
                    at = start + 1
                    # The next closing mark is the same one until we are past it: go to the last opening before it.
                    nearer = text.rfind(opening, start + 1, end)
                    at = end if nearer < 0 else max(at, nearer)
        self._spans: list[tuple[int, int]] = []
        for start, end in sorted(spans):
            if self._spans and start < self._spans[-1][1]:
                self._spans[-1] = (self._spans[-1][0], max(end, self._spans[-1][1]))
            else:
                self._spans.append((start, end))

    def covers(self, at: int) -> bool:
        """Whether a character is part of a template expression."""
        found = bisect_right(self._spans, (at, len(self._spans) and self._spans[-1][1] + 1)) - 1
        return found >= 0 and self._spans[found][0] <= at < self._spans[found][1]

    @staticmethod
    def outside_values(tag: str, attributes: Iterable[tuple[int, int]]) -> bool:
        """Whether a tag has a template where a name should be: its attributes are then not what they seem."""
        if not _DELIMITER.search(tag):
            return False
        rest, at = [], 0
        for start, end in attributes:
            name, equals, value = tag[start:end].partition("=")
            quoted = equals and value.strip()[:1] in ("'", '"')
            rest += [tag[at:start], name, "" if quoted else value]
            at = end
        return _DELIMITER.search(" ".join([*rest, tag[at:]])) is not None


def is_computed(source: str) -> bool:
    """Whether an address is made by a template."""
    return _DELIMITER.search(source) is not None
