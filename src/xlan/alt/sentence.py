"""Captions in the style of alternative text, and alternative text that is only a file name."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# Screen readers already say that it is a picture.
_PREAMBLE = re.compile(
    r"(?:there is |this is )?(?:an? |the )?(?:picture|image|photo|photograph)s? (?:of|showing|that shows) ",
    re.IGNORECASE,
)
_PICTURE_NAME = re.compile(r"\S.*\.(?:jpe?g|jpe|jfif|png|webp|gif|bmp|tiff?|hei[cf]|avif|svg)", re.IGNORECASE)
_CAMERA_NAME = re.compile(r"(?:IMG|DSC[NF]?|PXL|DCIM|MVIMG|GOPR|P)[-_]?\d[\w-]*", re.IGNORECASE)


def alt_sentence(caption: str) -> str:
    """A caption as alternative text: a capital, a full stop, no "a picture of".

    An empty caption stays empty.
    """
    words = " ".join(caption.split())
    while (start := _PREAMBLE.match(words)) and start.end() < len(words):
        words = words[start.end() :]
    if not words:
        return ""
    return words[0].upper() + words[1:] + ("" if words[-1] in ".!?…" else ".")


def is_file_name(alt: str, source: str = "") -> bool:
    """Whether an alternative text only names a file: `IMG_2041.jpg`, `DSC0001`, or the name in the picture's address.

    A plain word such as `dog` for `dog.png` is a description; a name with digits, `_` or `-` is not.
    """
    text = alt.strip()
    if _PICTURE_NAME.fullmatch(text) and (" " not in text or text == PurePosixPath(source).name):
        return True
    if _CAMERA_NAME.fullmatch(text):
        return True
    stem = PurePosixPath(source).stem
    return bool(stem) and text.lower() == stem.lower() and re.search(r"[\d_-]", text) is not None
