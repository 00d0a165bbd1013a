"""From the addresses in a document to pictures on this machine; nothing is ever fetched."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from xlan.alt.templates import is_computed
from xlan.errors import ImageError
from xlan.vision.image import DEFAULT_LIMITS, open_image, original_size

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_DRAWING = (".svg", ".svgz")
_SMALL_FILE = 2048  # bytes; only such a file can be a picture of a pixel or two
_SPACER = 2  # pixels


@dataclass(frozen=True)
class LocalPicture:
    """A picture that can be captioned.

    Attributes:
        name: what messages call it.
        key: equal for the same picture.
        source: its file, or its bytes where the document carries it.
    """

    name: str
    key: str
    source: Path | bytes


def locate(sources: Sequence[str], folder: Path, root: Path) -> LocalPicture | str:
    """The first address that leads to a picture on this machine, or why none does.

    Args:
        sources: addresses, the best first.
        folder: where relative addresses begin.
        root: where addresses that begin with `/` begin.
    """
    reason = "no address"
    for number, source in enumerate(sources):
        found = _locate(source.strip(), folder, root)
        if isinstance(found, LocalPicture):
            return found
        reason = found if number == 0 else reason
    return reason


def _locate(source: str, folder: Path, root: Path) -> LocalPicture | str:
    if not source:
        return "no address"
    if source[:5].lower() == "data:":
        return _inline(source)
    if is_computed(source):
        return "the address is made by a template"
    if _SCHEME.match(source) or source.startswith(("//", "\\\\")):
        return "not local"
    name = source.split("#", 1)[0].split("?", 1)[0].replace("\\", "/")
    candidates = [unquote(name, errors="surrogateescape"), source]
    if candidates[0].lower().endswith(_DRAWING):
        return "a drawing (SVG), not a photo"
    if any("\0" in one for one in candidates):
        return "not a file name"
    for one in candidates:
        path = root / one.lstrip("/") if one.startswith("/") else folder / one
        try:
            if path.is_file():
                return LocalPicture(source, str(path.resolve()), path)
        except (OSError, RuntimeError):  # the name is too long, or links form a loop
            continue
    return "no such file"


def _inline(source: str) -> LocalPicture | str:
    """The picture of a `data:` address."""
    head, comma, content = source.partition(",")
    kind = head[5:].split(";")[0].strip().lower()
    if not comma or not kind.startswith("image/"):
        return "not a picture"
    if "svg" in kind:
        return "a drawing (SVG), not a photo"
    if len(content) > 2 * DEFAULT_LIMITS.max_bytes:
        return "too large"
    try:
        data = (
            base64.b64decode("".join(unquote(content).split()), validate=True)
            if head.lower().endswith(";base64")
            else unquote_to_bytes(content)
        )
    except (binascii.Error, ValueError):
        return "a damaged data: address"
    digest = hashlib.sha256(data).hexdigest()
    return LocalPicture(f"data:{kind}, {len(data):,} bytes", f"data:{digest}", data)


def is_spacer(picture: LocalPicture) -> bool:
    """Whether a picture is only a pixel or two: it keeps a place or counts readers, and shows nothing."""
    try:
        size = len(picture.source) if isinstance(picture.source, bytes) else picture.source.stat().st_size
        if size > _SMALL_FILE:
            return False
        return max(original_size(open_image(picture.source))) <= _SPACER
    except (OSError, ImageError):
        return False  # captioning it will report what is wrong


def shown(source: str) -> str:
    """An address for a report: a `data:` address is truncated."""
    return source if len(source) <= 200 and not source.startswith("data:") else source[:40] + "…"
