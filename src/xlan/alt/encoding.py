"""Bytes ↔ text without loss: what was not edited is written back byte for byte, in any encoding."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from xlan.errors import DataError

_META = re.compile(rb"""<meta[^>]{0,512}?charset\s*=\s*["']?\s*([a-zA-Z0-9_:.+-]{1,40})""", re.IGNORECASE)
_XML = re.compile(rb"""^<\?xml[^>]{0,256}?encoding\s*=\s*["']([a-zA-Z0-9_:.+-]{1,40})""")
_PRESCAN = 4096
# What browsers read under these names.
_BROWSERS = {"iso-8859-1": "cp1252", "latin-1": "cp1252", "latin1": "cp1252", "ascii": "cp1252", "us-ascii": "cp1252"}
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ASCII = bytes(range(0x20, 0x7F)) + b"\t\r\n"


@dataclass(frozen=True)
class Decoded:
    """A document as text.

    Attributes:
        text: its characters; bytes that the encoding does not know are lone surrogates.
        codec: Python's name of the encoding.
        head: the byte order mark, not part of `text`.
        narrow: whether only ASCII can be added, since the encoding is unknown or does not give the same bytes back.
    """

    text: str
    codec: str
    head: bytes = b""
    narrow: bool = False

    def encode(self, text: str) -> bytes:
        """Changed text as bytes.

        Raises:
            DataError: a character cannot be written in this encoding.
        """
        try:
            return self.head + text.encode(self.codec, "surrogateescape" if self.codec != "latin-1" else "strict")
        except UnicodeEncodeError as error:
            raise DataError(f"the encoding {self.codec} has no {text[error.start]!r}") from None

    def fits(self, added: str) -> bool:
        """Whether text can be added as it is."""
        if self.narrow:
            return added.isascii()
        try:
            added.encode(self.codec)
        except UnicodeEncodeError:
            return False
        return True


def decode(data: bytes, *, html: bool) -> Decoded:
    """Decode a document; `encode(text)` of the result gives the same bytes again.

    A byte order mark counts most, then (in HTML) the declaration, then UTF-8 where the bytes are, else Windows-1252.

    Raises:
        DataError: it is UTF-16 or UTF-32 and damaged.
    """
    for head, codec in _MARKS:
        if data.startswith(head):
            if codec == "utf-8":
                return Decoded(data[len(head) :].decode(codec, "surrogateescape"), codec, head)
            try:
                return Decoded(data[len(head) :].decode(codec), codec, head)
            except UnicodeDecodeError as error:
                raise DataError(f"not whole {codec.upper()} text (byte {error.start})") from None
    declared = _declared(data) if html else None
    if declared is not None:
        try:
            text = data.decode(declared, "surrogateescape")
            if text.encode(declared, "surrogateescape") == data:
                return Decoded(text, declared)
        except (UnicodeError, ValueError):
            pass
    else:
        try:
            return Decoded(data.decode("utf-8"), "utf-8")
        except UnicodeDecodeError:
            pass
    # One byte, one character: markup is ASCII in every encoding that is left, and all bytes come back.
    return Decoded(data.decode("latin-1"), "latin-1", narrow=True)


def _declared(data: bytes) -> str | None:
    """The encoding that an HTML or XML document declares, if it is one that has ASCII in it."""
    found = _XML.search(data[:_PRESCAN]) or _META.search(data[:_PRESCAN])
    if found is None:
        return None
    name = found[1].decode("ascii").lower()
    name = _BROWSERS.get(name, name)
    if name.replace("_", "-").startswith(("utf-16", "utf-32", "utf-7", "utf16", "utf32", "utf7")):
        return "utf-8" if "7" not in name else None
    try:
        ok = _ASCII.decode(name) == _ASCII.decode("ascii")
    except (LookupError, UnicodeError, ValueError):
        return None
    return codecs.lookup(name).name if ok else None
