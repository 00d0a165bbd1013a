"""XMP packets: a description with its language, and its confidence and model in our own namespace.

An existing packet is not rewritten: our properties are removed or inserted, everything else stays byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from xlan.errors import DataError

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DC = "http://purl.org/dc/elements/1.1/"
XLAN = "urn:xlan:caption:1.0#"
XML = "http://www.w3.org/XML/1998/namespace"
MAX_PACKET = 16 << 20
_DEEPEST = 200
_HEAD = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
_TAIL = '<?xpacket end="w"?>'
_OURS = (b"Caption", b"Confidence", b"Model")
_NAME = re.compile(rb"[^\s/>]*")
_ATTRIBUTE = re.compile(rb"\s+([\w:.-]+)\s*=\s*(?:\"[^\"]*\"|'[^']*')")
_PADDING = re.compile(rb"(?<!\s)\s++(?=<\?xpacket end=)")


@dataclass(frozen=True)
class Description:
    """What is said of a photo.

    Attributes:
        text: the sentence.
        confidence: how much it can be trusted, 0 to 1.
        model: the name of the model, with a short hash that distinguishes it from others of that name.
        language: of the text, as in `xml:lang`.
    """

    text: str
    confidence: float
    model: str
    language: str = "en"


@dataclass
class Packet:
    """What we need to know of a packet.

    Attributes:
        description: its `dc:description`, the default language first; empty where there is none.
        caption: the text that xlan wrote, as it was then; None where it wrote none.
        model: the model that xlan used; empty where unknown.
        about: what the packet is about, the same for all its parts.
        insert_at: the byte before which another `rdf:Description` can stand.
        cut: the bytes of the description and of our properties, removed before new ones are inserted.
    """

    description: str = ""
    caption: str | None = None
    model: str = ""
    about: str = ""
    insert_at: int = -1
    cut: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        """Whether the description is unchanged since xlan wrote it."""
        return self.caption is not None and self.description == self.caption


def read_packet(data: bytes) -> Packet:
    """Read a packet.

    Raises:
        DataError: it is not XMP, or not safe to change.
    """
    if len(data) > MAX_PACKET:
        raise DataError(f"its XMP has more than {MAX_PACKET:,} bytes")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise DataError("its XMP has a document type declaration, which is not allowed")
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<" or b"\0" in data:
        raise DataError("its XMP is not UTF-8")
    reader = _Reader()
    try:
        reader.parse(data)
    except expat.ExpatError as error:
        raise DataError(f"its XMP is not well-formed: {error}") from None
    if reader.packet.insert_at < 0:
        raise DataError("its XMP has no rdf:RDF to add a description to")
    return reader.packet


class _Reader:
    """Follows the tags of a packet and notes the bytes of what matters."""

    def __init__(self) -> None:
        self.packet = Packet()
        self._path: list[str] = []
        self._starts: list[int] = []
        self._texts: list[tuple[str, str]] = []  # language and text of a description
        self._characters = ""
        self._language = ""
        self._data = b""
        self._prefixes: dict[str, set[bytes]] = {}
        self._cuts_before = self._children = 0
        self._others = False
        self._parser = expat.ParserCreate(namespace_separator="}")
        self._parser.buffer_text = True  # else a text comes in as many pieces as it has lines and references
        self._parser.buffer_size = 1 << 20
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._more

    def parse(self, data: bytes) -> None:
        self._data = data
        self._prefixes = {
            space: set(re.findall(rb"xmlns:([\w.-]+)\s*=\s*[\"']" + re.escape(space.encode()) + rb"[\"']", data))
            for space in (DC, XLAN)
        }
        self._parser.Parse(data, True)
        default = [text for language, text in self._texts if language == "x-default"]
        self.packet.description = next(iter([*default, *(text for _, text in self._texts)]), "").strip()

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= _DEEPEST:
            raise DataError("its XMP is nested too deeply")
        self._path.append(name)
        self._starts.append(self._parser.CurrentByteIndex)
        self._characters = ""
        if name == f"{RDF}}}li":
            self._language = attributes.get(f"{XML}}}lang", "")
        if len(self._path) > 1 and self._path[-2] == f"{RDF}}}Description":
            self._children += 1
        if name == f"{RDF}}}Description" and len(self._path) <= 3:
            self.packet.about = attributes.get(f"{RDF}}}about", self.packet.about)
            if short := attributes.get(f"{DC}}}description"):
                self._texts.append(("", short))
            self._own("Caption", attributes.get(f"{XLAN}}}Caption"))
            self._own("Model", attributes.get(f"{XLAN}}}Model"))
            self._cuts_before, self._children = len(self.packet.cut), 0
            self._others = any(key != f"{RDF}}}about" for key in attributes)
            self._cut_attributes(self._parser.CurrentByteIndex)

    def _more(self, text: str) -> None:
        self._characters += text

    def _end(self, name: str) -> None:
        self._path.pop()
        start = self._starts.pop()
        at = self._parser.CurrentByteIndex
        end = self._data.find(b">", at) + 1 if self._data[at : at + 2] == b"</" else at
        if end == at:  # <name/>: expat gives its own place for both ends
            end = self._data.find(b">", start) + 1
        parent = self._path[-1] if self._path else ""
        if name == f"{RDF}}}li" and f"{DC}}}description" in self._path:
            self._texts.append((self._language, self._characters))
        if parent == f"{RDF}}}Description" and len(self._path) <= 3:
            if name == f"{DC}}}description":
                if self._characters.strip() and not self._texts:
                    self._texts.append(("", self._characters))
                self.packet.cut.append((start, end))
            elif name.startswith(f"{XLAN}}}"):
                self._own(name.split("}")[1], self._characters)
                self.packet.cut.append((start, end))
        if name == f"{RDF}}}Description" and len(self._path) <= 2 and not self._others:
            cuts = self.packet.cut[self._cuts_before :]
            if cuts and len(cuts) == self._children:  # only our properties: remove the whole element
                while self._data[end : end + 1].isspace():
                    end += 1
                self.packet.cut[self._cuts_before :] = [(start, end)]
        if name == f"{RDF}}}RDF":
            self.packet.insert_at = at if self._data[at : at + 2] == b"</" else -1
        self._characters = ""

    def _cut_attributes(self, start: int) -> None:
        """Note the attributes of a start tag that hold our properties: some programs write them that way."""
        names = [prefix + b":" + name for prefix in self._prefixes[XLAN] for name in _OURS]
        names += [prefix + b":description" for prefix in self._prefixes[DC]]
        tag = _NAME.match(self._data, start + 1)
        at = start if tag is None else tag.end()
        while attribute := _ATTRIBUTE.match(self._data, at):
            if attribute[1] in names:
                self.packet.cut.append(attribute.span())
            at = attribute.end()

    def _own(self, name: str, value: str | None) -> None:
        if value is not None and name == "Caption":
            self.packet.caption = value.strip()
        elif value is not None and name == "Model":
            self.packet.model = value.strip()


def new_packet(description: Description, *, sidecar: bool) -> bytes:
    """A whole packet; in a sidecar it is an XML file."""
    body = _block(description, "")
    text = (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="xlan">\n'
        f' <rdf:RDF xmlns:rdf="{RDF}">\n{body} </rdf:RDF>\n</x:xmpmeta>\n'
    )
    head = '<?xml version="1.0" encoding="UTF-8"?>\n' if sidecar else _HEAD
    return (head + text + ("" if sidecar else _TAIL)).encode("utf-8")


def changed_packet(data: bytes, description: Description) -> bytes:
    """A packet with its description and our properties replaced; everything else stays.

    Raises:
        DataError: the packet cannot be read or changed.
    """
    packet = read_packet(data)
    block = _block(description, packet.about).encode("utf-8")
    pieces, at = [], 0
    for start, end in sorted([*packet.cut, (packet.insert_at, packet.insert_at)]):
        if start < at:
            raise DataError("its XMP has descriptions inside descriptions")
        pieces.append(data[at:start])
        if start == packet.insert_at:
            pieces.append(block)
        at = end
    changed = b"".join([*pieces, data[at:]])
    again = read_packet(changed)
    if again.description != description.text or not again.is_ours:
        raise DataError("its XMP could not be changed safely")
    return changed


def without_padding(data: bytes) -> bytes:
    """The packet without the white space that leaves room for changes in place."""
    return _PADDING.sub(b"\n", data)


def _block(description: Description, about: str) -> str:
    text = escape(description.text)
    items = "".join(
        f"     <rdf:li xml:lang={quoteattr(language)}>{text}</rdf:li>\n"
        for language in ("x-default", description.language)
    )
    return (
        f'  <rdf:Description rdf:about={quoteattr(about)} xmlns:rdf="{RDF}" xmlns:dc="{DC}" xmlns:xlan="{XLAN}">\n'
        f"   <dc:description>\n    <rdf:Alt>\n{items}    </rdf:Alt>\n   </dc:description>\n"
        f"   <xlan:Caption>{text}</xlan:Caption>\n"
        f"   <xlan:Confidence>{description.confidence:.4f}</xlan:Confidence>\n"
        f"   <xlan:Model>{escape(description.model)}</xlan:Model>\n"
        f"  </rdf:Description>\n"
    )
