"""Where JPEG, PNG and WebP keep XMP. Pixels are never decoded: all other bytes are copied as they are."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from xlan.errors import ImageError
from xlan.photos.xmp import MAX_PACKET, without_padding

_JPEG_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_PNG_XMP = b"XML:com.adobe.xmp\0"
_JPEG_ROOM = 65533 - len(_JPEG_XMP)
_MAX_PIECES = 1_000_000


@dataclass(frozen=True)
class Piece:
    """A segment or chunk of a picture file: its name, where it is with its frame, and where its content is."""

    name: bytes
    start: int
    end: int
    content: int
    length: int


def kind_of(head: bytes) -> str | None:
    """`JPEG`, `PNG` or `WebP` by a file's first 16 bytes; None for all else."""
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(_PNG_HEAD):
        return "PNG"
    return "WebP" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


def read_xmp(file: BinaryIO) -> bytes | None:
    """The XMP packet in an open picture file; only headers are read.

    Raises:
        ImageError: the file is damaged or of another format.
    """
    kind = kind_of(file.read(16))
    if kind is None:
        raise ImageError("expected JPEG, PNG or WebP")
    for piece in _PIECES[kind](file):
        if _is_xmp(kind, piece, file):
            return _xmp_content(kind, piece, file)
    return None


def with_xmp(data: bytes, packet: bytes) -> bytes:
    """The picture file with this packet in place of the one it has, or where such a packet belongs.

    Raises:
        ImageError: the file is damaged, of another format, or the packet is too large for it.
    """
    kind = kind_of(data[:16])
    if kind is None:
        raise ImageError("expected JPEG, PNG or WebP")
    changed = {"JPEG": _jpeg_with, "PNG": _png_with, "WebP": _webp_with}[kind](data, packet)
    file = io.BytesIO(changed)
    if read_xmp(file) not in (packet, without_padding(packet)) or essence(changed) != essence(data):
        raise ImageError("the file could not be changed without touching the picture")
    return changed


def essence(data: bytes) -> list[bytes]:
    """Everything in a picture file except its XMP and the lengths that depend on it."""
    kind = kind_of(data[:16]) or ""
    file = io.BytesIO(data)
    kept, at = [], 12 if kind == "WebP" else 0
    for piece in _PIECES[kind](file):
        kept.append(data[at : piece.start])
        if not _is_xmp(kind, piece, file) and piece.name != b"VP8X":
            kept.append(data[piece.start : piece.end])
        at = piece.end
    return [one for one in [*kept, data[at:]] if one]


def _jpeg_pieces(file: BinaryIO) -> Iterator[Piece]:
    """The segments before the picture's data."""
    at = 2
    for _ in range(_MAX_PIECES):
        file.seek(at)
        head = file.read(4)
        if len(head) < 4 or head[0] != 0xFF:
            raise ImageError("the JPEG is damaged: no marker where one is expected")
        if head[1] == 0xFF:  # filling
            at += 1
            continue
        if head[1] in (0xDA, 0xD9):
            return
        if head[1] == 0x01 or 0xD0 <= head[1] <= 0xD8:
            at += 2
            continue
        length = struct.unpack(">H", head[2:])[0]
        if length < 2:
            raise ImageError("the JPEG is damaged: a segment with an invalid length")
        yield Piece(head[1:2], at, at + 2 + length, at + 4, length - 2)
        at += 2 + length


def _png_pieces(file: BinaryIO) -> Iterator[Piece]:
    at = 8
    for _ in range(_MAX_PIECES):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            raise ImageError("the PNG is damaged: it ends too early")
        length, name = struct.unpack(">I4s", head)
        yield Piece(name, at, at + 12 + length, at + 8, length)
        if name == b"IEND":
            return
        at += 12 + length


def _webp_pieces(file: BinaryIO) -> Iterator[Piece]:
    file.seek(4)
    end = 8 + struct.unpack("<I", file.read(4))[0]
    if file.seek(0, io.SEEK_END) < end:
        raise ImageError("the WebP is damaged: it ends too early")
    at = 12
    for _ in range(_MAX_PIECES):
        if at + 8 > end:
            return
        file.seek(at)
        name, length = struct.unpack("<4sI", file.read(8))
        if at + 8 + length > end:
            raise ImageError("the WebP is damaged: a chunk is longer than the file")
        yield Piece(name, at, min(end, at + 8 + length + length % 2), at + 8, length)
        at += 8 + length + length % 2


_PIECES: dict[str, Callable[[BinaryIO], Iterator[Piece]]] = {
    "JPEG": _jpeg_pieces,
    "PNG": _png_pieces,
    "WebP": _webp_pieces,
}


def _is_xmp(kind: str, piece: Piece, file: BinaryIO) -> bool:
    if kind == "WebP":
        return piece.name == b"XMP "
    start = _JPEG_XMP if kind == "JPEG" else _PNG_XMP
    if piece.name != (b"\xe1" if kind == "JPEG" else b"iTXt"):
        return False
    file.seek(piece.content)
    return file.read(min(len(start), piece.length)) == start


def _xmp_content(kind: str, piece: Piece, file: BinaryIO) -> bytes:
    if piece.length > MAX_PACKET:
        raise ImageError(f"its XMP has more than {MAX_PACKET:,} bytes")
    file.seek(piece.content)
    content = file.read(piece.length)
    if kind == "WebP":
        return content
    if kind == "JPEG":
        return content[len(_JPEG_XMP) :]
    rest = content[len(_PNG_XMP) :]
    packed = rest[:1] == b"\1"
    parts = rest[2:].split(b"\0", 2)  # language, its translated name, text
    if len(parts) != 3:
        raise ImageError("the PNG is damaged: an incomplete iTXt chunk")
    if not packed:
        return parts[2]
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(parts[2], MAX_PACKET)
    except zlib.error as error:
        raise ImageError(f"the PNG is damaged: its XMP cannot be unpacked: {error}") from None
    if unpacker.unconsumed_tail:
        raise ImageError(f"its XMP has more than {MAX_PACKET:,} bytes")
    return text


def _jpeg_with(data: bytes, packet: bytes) -> bytes:
    if len(packet) > _JPEG_ROOM:
        packet = without_padding(packet)
    if len(packet) > _JPEG_ROOM:
        raise ImageError(f"its XMP would have {len(packet):,} bytes, more than the {_JPEG_ROOM:,} a JPEG has room for")
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(_JPEG_XMP) + len(packet)) + _JPEG_XMP + packet
    file = io.BytesIO(data)
    pieces = list(_jpeg_pieces(file))
    for piece in pieces:
        if _is_xmp("JPEG", piece, file):
            return data[: piece.start] + segment + data[piece.end :]
    at = 2
    for piece in pieces:  # behind JFIF and EXIF, which have to come first
        if piece.name not in (b"\xe0", b"\xe1"):
            break
        at = piece.end
    return data[:at] + segment + data[at:]


def _png_with(data: bytes, packet: bytes) -> bytes:
    content = b"iTXt" + _PNG_XMP + b"\0\0\0\0" + packet
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    file = io.BytesIO(data)
    pieces = list(_png_pieces(file))
    for piece in pieces:
        if _is_xmp("PNG", piece, file):
            return data[: piece.start] + chunk + data[piece.end :]
    if pieces[0].name != b"IHDR":
        raise ImageError("the PNG is damaged: it does not begin with its header")
    at = pieces[0].end
    return data[:at] + chunk + data[at:]


def _webp_with(data: bytes, packet: bytes) -> bytes:
    chunk = b"XMP " + struct.pack("<I", len(packet)) + packet + b"\0" * (len(packet) % 2)
    pieces = list(_webp_pieces(io.BytesIO(data)))
    if not pieces:
        raise ImageError("the WebP is damaged: it has no chunks")
    end = pieces[-1].end
    rest = data[8 + struct.unpack("<I", data[4:8])[0] :]
    body = [data[p.start : p.end] + b"\0" * (p.end - p.start & 1) for p in pieces if p.name != b"XMP "]
    if pieces[0].name == b"VP8X":
        head = bytearray(body[0])
        if len(head) < 18:
            raise ImageError("the WebP is damaged: its header is too short")
        head[8] |= 0x04
        body[0] = bytes(head)
    else:
        body.insert(0, _webp_header(data, pieces[0]))
    gap = data[end : 8 + struct.unpack("<I", data[4:8])[0]]  # a few bytes that are no chunk
    inner = b"WEBP" + b"".join(body) + chunk + gap
    return b"RIFF" + struct.pack("<I", len(inner)) + inner + rest


def _webp_header(data: bytes, piece: Piece) -> bytes:
    """The chunk `VP8X` for a file that has only the picture: its size, and that it has XMP."""
    content = data[piece.content : piece.content + 10]
    if piece.name == b"VP8 " and content[3:6] == b"\x9d\x01\x2a":
        width = int.from_bytes(content[6:8], "little") & 0x3FFF
        height = int.from_bytes(content[8:10], "little") & 0x3FFF
        flags = 0x04
    elif piece.name == b"VP8L" and content[:1] == b"\x2f":
        bits = int.from_bytes(content[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        flags = 0x04 | (0x10 if bits >> 28 & 1 else 0)
    else:
        raise ImageError("the WebP is damaged: its picture has no header")
    if not width or not height:
        raise ImageError("the WebP is damaged: a picture without size")
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"VP8X" + struct.pack("<IB3x", 10, flags) + sizes
