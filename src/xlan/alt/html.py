"""Images of HTML, found as browsers find tags, with their places in the text.

The scanner follows the tokenizer of the HTML standard for tags, attributes, comments and the elements whose content is
text (`script`, `style`, …); it builds no tree. So it accepts broken markup of any depth, in time proportional to its
length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape, unescape

from xlan.alt.images import MARK, Edit, Image, State
from xlan.alt.sentence import is_file_name
from xlan.alt.templates import TemplateMap

_WS = r"\t\n\f\r "
_TAG = re.compile(rf"</?([a-zA-Z][^{_WS}/>\0]*+)")
_ATTRIBUTE = re.compile(
    rf"[{_WS}/]*+(?:(>)|(=?[^{_WS}/>=]*+)(?:[{_WS}]*+=[{_WS}]*+(?:\"([^\"]*+)\"|'([^']*+)'|([^{_WS}>\"'][^{_WS}>]*+)|)|))"
)
_SPACE = re.compile(rf"[{_WS}]*+")
_RAW_TEXT = {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"}
_ENDS = {name: re.compile(rf"</{name}(?=[{_WS}/>])", re.IGNORECASE) for name in _RAW_TEXT}
_COMMENT_END = re.compile("--!?>")
_SCRIPT = re.compile(rf"<!--|-->|<(/?)script(?=[{_WS}/>])", re.IGNORECASE)
_LAZY = ("data-src", "data-original", "data-lazy-src", "data-lazy")
_SETS = ("srcset", "data-srcset", "data-lazy-srcset")
_CANDIDATE = re.compile(rf"[{_WS},]*+([^{_WS}]++)([^,]*+)")
BY, WAS = "data-alt-by", "data-alt-was"


@dataclass(frozen=True)
class Attribute:
    """An attribute of a start tag: its name in small letters, its value decoded, and where it is written."""

    name: str
    value: str
    start: int
    end: int


@dataclass(frozen=True)
class Tag:
    """A start or end tag with its place."""

    name: str
    start: int
    end: int
    name_end: int
    closing: bool
    attributes: tuple[Attribute, ...]

    def get(self, name: str) -> Attribute | None:
        """The attribute that counts: the first of its name."""
        return next((one for one in self.attributes if one.name == name), None)

    def value(self, name: str) -> str:
        """The value of an attribute, empty where there is none."""
        found = self.get(name)
        return "" if found is None else found.value


def tags(text: str, *, xml: bool = False) -> Iterator[Tag]:
    """The tags of a document in order; not those in comments, scripts and other raw text."""
    at, foreign = 0, int(xml)
    while (at := text.find("<", at)) >= 0:
        following = text[at + 1 : at + 2]
        if following in ("!", "?"):
            at = _after_markup(text, at, in_foreign=foreign > 0)
            continue
        name_match = _TAG.match(text, at)
        if name_match is None:
            # `</` and anything but a letter begins a comment for browsers.
            bogus = following == "/" and at + 2 < len(text)
            at = (text.find(">", at) if bogus else at) + 1
            if at == 0:
                return
            continue
        tag = _read_tag(text, at, name_match)
        if tag is None:
            return  # the document ends inside it
        yield tag
        at = tag.end
        if tag.name in ("svg", "math"):
            self_closed = text[tag.end - 2] == "/"
            foreign = max(int(xml), foreign + (-1 if tag.closing else int(not self_closed)))
        elif not tag.closing and tag.name == "plaintext" and not xml:
            return
        elif not tag.closing and tag.name in _RAW_TEXT and not (xml and text[tag.end - 2] == "/"):
            at = _end_of_raw_text(text, at, tag.name)


def _after_markup(text: str, at: int, *, in_foreign: bool) -> int:
    """Where a comment, a declaration or a processing instruction that begins at `at` ends."""
    if text.startswith("<!--", at):
        for short in ("<!-->", "<!--->"):
            if text.startswith(short, at):
                return at + len(short)
        found = _COMMENT_END.search(text, at + 4)
        return len(text) if found is None else found.end()
    if in_foreign and text.startswith("<![CDATA[", at):
        end = text.find("]]>", at)
        return len(text) if end < 0 else end + 3
    end = text.find(">", at)
    return len(text) if end < 0 else end + 1


def _end_of_raw_text(text: str, at: int, name: str) -> int:
    """Where the end tag of an element whose content is text begins."""
    if name != "script":
        found = _ENDS[name].search(text, at)
        return len(text) if found is None else found.start()
    depth = 0  # 0 plain, 1 inside <!--, 2 inside <!-- <script
    for mark in _SCRIPT.finditer(text, at):
        if mark[0] == "<!--":
            depth = max(depth, 0 if text.startswith("<!-->", mark.start()) else 1)
        elif mark[0] == "-->":
            depth = 0
        elif mark[1] and depth < 2:
            return mark.start()
        elif mark[1]:
            depth = 1
        elif depth == 1:
            depth = 2
    return len(text)


def _read_tag(text: str, start: int, name: re.Match[str]) -> Tag | None:
    """The tag at `start`; None where the text ends before it does."""
    attributes: list[Attribute] = []
    at = name.end()
    while True:
        found = _ATTRIBUTE.match(text, at)
        if found is None:
            return None
        if found[1]:
            closing = text[start + 1] == "/"
            return Tag(name[1].lower(), start, found.end(), name.end(), closing, tuple(attributes))
        if found.start(2) == len(text):
            return None
        end = found.end()
        value = found[3] if found[3] is not None else found[4] if found[4] is not None else found[5]
        if value is None and end > found.end(2) and text[end : end + 1] in ("", '"', "'"):
            return None  # a quote that is never closed, or nothing after =
        attributes.append(Attribute(found[2].lower(), unescape(value or ""), found.start(2), end))
        at = end


@dataclass(frozen=True)
class HtmlImage(Image):
    """An `<img>`."""

    tag: Tag
    source_text: str

    def describe(self, text: str, *, marked: bool) -> list[Edit]:
        """Write `alt`, and where `marked` what makes it undoable, in place of an old `alt` or after `src`."""
        written = f'alt="{escape(text)}"'
        if self.state == "marked":
            if marked:
                alt = self.tag.get("alt")
                assert alt is not None
                return [Edit(alt.start, alt.end, written)]
            span = self._marked_span()
            return [Edit(span[0].start, span[1].end, written)]
        old = self.tag.get("alt")
        if old is None:
            return [Edit(self._insert_at(), self._insert_at(), f" {written}" + (f' {BY}="{MARK}"' if marked else ""))]
        was = f' {BY}="{MARK}" {WAS}="{escape(self._raw(old))}"'
        return [Edit(old.start, old.end, written + (was if marked else ""))]

    def undo(self) -> list[Edit]:
        """Put back the old attribute, or take out the one that was added with the space before it."""
        alt, last = self._marked_span()
        if last.name == WAS:
            return [Edit(alt.start, last.end, last.value)]
        before = self.source_text[alt.start - self.tag.start - 1]
        return [Edit(alt.start - before.isspace(), last.end, "")]

    @property
    def can_be_decorative(self) -> bool:
        """HTML has a role for it."""
        return True

    def decorate(self) -> list[Edit]:
        """An empty `alt` and the role of presentation."""
        written = 'alt="" role="presentation"' if self.tag.get("role") is None else 'alt=""'
        if self.state == "marked":
            span = self._marked_span()
            return [Edit(span[0].start, span[1].end, written)]
        old = self.tag.get("alt")
        if old is None:
            return [Edit(self._insert_at(), self._insert_at(), f" {written}")]
        return [Edit(old.start, old.end, written)]

    def _insert_at(self) -> int:
        source = self.tag.get("src")
        return self.tag.name_end if source is None else source.end

    def _raw(self, attribute: Attribute) -> str:
        return self.source_text[attribute.start - self.tag.start : attribute.end - self.tag.start]

    def _marked_span(self) -> tuple[Attribute, Attribute]:
        """`alt` and our last attribute after it."""
        alt = self.tag.get("alt")
        assert alt is not None
        at = self.tag.attributes.index(alt)
        following = self.tag.attributes[at + 1 : at + 3]
        return alt, following[-1] if len(following) == 2 and following[1].name == WAS else following[0]


def find(text: str, *, xml: bool = False, offset: int = 0) -> list[HtmlImage]:
    """The images of a document, or of a piece of one that begins at `offset` of a larger text."""
    templates = TemplateMap(text)
    images: list[HtmlImage] = []
    picture: list[str] | None = None  # the srcset of sources, inside <picture>
    base = ""
    for tag in tags(text, xml=xml):
        if tag.name == "picture":
            picture = None if tag.closing else []
        elif tag.name == "source" and picture is not None:
            picture += (tag.value(name) for name in _SETS if tag.get(name) is not None)
        elif tag.name == "base" and not base:
            base = tag.value("href").strip()
        elif tag.name == "img" and not tag.closing:
            raw = text[tag.start : tag.end]
            sources = tuple(_join(base, source) for source in _sources(tag, picture or []))
            state = _state(tag, raw, sources, inside_template=templates.covers(tag.start))
            alt = tag.get("alt")
            if offset:
                tag = _moved(tag, offset)
            images.append(HtmlImage(tag.start, sources, None if alt is None else alt.value, state, tag, raw))
    return images


def skeleton(text: str, *, xml: bool = False) -> Iterator[object]:
    """All of a document but the alternative texts of its images: equal before and after a change that is right."""
    last = 0
    for tag in tags(text, xml=xml):
        yield text[last : tag.start]
        last = tag.end
        if tag.name == "img" and not tag.closing:
            kept = [(one.name, one.value) for one in tag.attributes if one.name not in ("alt", BY, WAS)]
            yield tag.name, tuple(kept)
        else:
            yield text[tag.start : tag.end]
    yield text[last:]


def _moved(tag: Tag, offset: int) -> Tag:
    attributes = tuple(Attribute(a.name, a.value, a.start + offset, a.end + offset) for a in tag.attributes)
    return Tag(tag.name, tag.start + offset, tag.end + offset, tag.name_end + offset, tag.closing, attributes)


def _sources(tag: Tag, picture: list[str]) -> list[str]:
    """Addresses of an image's picture, the best first; a placeholder in `src` comes after what is loaded later."""
    source = tag.value("src").strip()
    later = [value for name in _LAZY if (value := tag.value(name).strip())]
    sets = [one for name in _SETS for one in _largest_first(tag.value(name))]
    others = [one for srcset in picture for one in _largest_first(srcset)]
    first = [source] if source else []
    found = [*later, *sets, *first, *others] if later or not source or source.startswith("data:") else [source, *sets]
    return list(dict.fromkeys(found if found[:1] != [source] else [*found, *others]))


def _largest_first(srcset: str) -> list[str]:
    """The addresses of a `srcset`, those with the largest width or density first."""
    found: list[tuple[float, int, str]] = []
    for number, candidate in enumerate(_CANDIDATE.finditer(srcset)):
        address, rest = candidate[1], candidate[2].strip()
        try:
            size = float(rest[:-1]) if rest else 1.0
        except ValueError:
            size = 1.0
        if address.rstrip(","):
            found.append((-size, number, address.rstrip(",")))
        if number > 1000:
            break
    return [address for _, _, address in sorted(found)]


def _join(base: str, source: str) -> str:
    """An address relative to `<base href>`."""
    if not base or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/", source):
        return source
    return base.rsplit("/", 1)[0] + "/" + source if "/" in base else source


def _state(tag: Tag, raw: str, sources: tuple[str, ...], *, inside_template: bool) -> State:
    alt = tag.get("alt")
    spans = [(one.start - tag.start, one.end - tag.start) for one in tag.attributes]
    if inside_template or TemplateMap.outside_values(raw, spans):
        return "computed"
    if alt is not None and _is_marked(tag, alt):
        return "marked"
    if (
        tag.value("role").strip().lower() in ("presentation", "none")
        or tag.value("aria-hidden").strip().lower() == "true"
        or tag.get("hidden") is not None
        or any(tag.value(side).strip().removesuffix("px") in ("0", "1") for side in ("width", "height"))
    ):
        return "decorative"
    if tag.value("aria-label").strip() or tag.value("aria-labelledby").strip():
        return "described"
    if alt is None:
        return "missing"
    if not alt.value.strip():
        return "empty"
    return "file name" if any(is_file_name(alt.value, source) for source in sources or ("",)) else "described"


def _is_marked(tag: Tag, alt: Attribute) -> bool:
    """Whether the attributes are in the order in which we write them; otherwise somebody has edited them."""
    at = tag.attributes.index(alt)
    return at + 1 < len(tag.attributes) and (tag.attributes[at + 1].name, tag.attributes[at + 1].value) == (BY, MARK)
