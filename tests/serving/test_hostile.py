"""Uploads that are hostile or broken: the right status for each, and the server keeps answering."""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

MAX_BYTES = 1_000_000  # of the server in conftest.py


def noise(size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def bomb() -> bytes:
    """Four million pixels, nearly: legal, small on the wire, 12 MB when open."""
    return encoded(Image.new("RGB", (2000, 1990)), "PNG")


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as box:
        box.writestr("a", "b")
    return file.getvalue()


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(noise(), "JPEG", exif=exif)


UPLOADS: dict[str, tuple[Callable[[], bytes], int, str]] = {
    # name: (file, status, end of the problem's type, or the size of the picture)
    "truncated.jpg": (lambda: encoded(noise((200, 200)), "JPEG")[:900], 422, "unusable-picture"),
    "half.png": (lambda: encoded(noise((200, 200)), "PNG")[:5000], 422, "unusable-picture"),
    "header-only.jpg": (lambda: b"\xff\xd8\xff", 422, "unusable-picture"),
    "claims.png": (lambda: png_that_claims(50_000, 50_000), 422, "unusable-picture"),
    "one-too-many.png": (lambda: png_that_claims(2000, 2001), 422, "unusable-picture"),
    "zero.jpg": (lambda: b"", 415, "not-a-picture"),
    "zip.jpg": (zipped, 415, "not-a-picture"),
    "text.png": (lambda: b"hello, I am text", 415, "not-a-picture"),
    "page.jpg": (lambda: b"<!doctype html><script>alert(1)</script>", 415, "not-a-picture"),
    "drawing.png": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "not-a-picture"),
    "phone.jpg": (lambda: b"\0\0\0\x18ftypheic" + bytes(20), 415, "not-a-picture"),
    "sound.webp": (lambda: b"RIFF\0\0\0\0WAVEfmt " + bytes(50), 415, "not-a-picture"),
    "script.eps": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n", 415, "not-a-picture"),
    "large.png": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(MAX_BYTES), 413, "too-large"),
    "polyglot.jpg": (lambda: encoded(noise(), "JPEG") + zipped(), 200, "60×40"),
    "polyglot.gif": (lambda: encoded(noise(), "GIF") + b"<script>alert(1)</script>", 200, "60×40"),
    "cmyk.jpg": (lambda: encoded(noise().convert("CMYK"), "JPEG"), 200, "60×40"),
    "deep.png": (lambda: encoded(Image.fromarray(np.full((9, 8), 40_000, np.uint16)), "PNG"), 200, "8×9"),
    "palette.png": (lambda: encoded(noise().quantize(8), "PNG", transparency=3), 200, "60×40"),
    "animated.gif": (lambda: encoded(noise(), "GIF", save_all=True, append_images=[noise()] * 2), 200, "60×40"),
    "rotated.jpg": (rotated, 200, "40×60"),
    "dot.png": (lambda: encoded(Image.new("RGB", (1, 1)), "PNG"), 200, "1×1"),
    "thin.png": (lambda: encoded(Image.new("RGB", (10_000, 3)), "PNG"), 200, "10000×3"),
    "bomb.png": (bomb, 200, "2000×1990"),
}


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as opened:
        yield opened


@pytest.mark.parametrize("name", UPLOADS)
def test_uploads(client: httpx.Client, name: str) -> None:
    make, status, wanted = UPLOADS[name]
    data = make()
    as_form = client.post("/v1/captions", files={"image": (name, data, "image/jpeg")})
    as_json = client.post("/v1/captions", json={"image": base64.b64encode(data).decode()})
    for answer in (as_form, as_json):
        assert answer.status_code == status, answer.text
        record = answer.json()
        if status == 200:
            assert f"{record['image']['width']}×{record['image']['height']}" == wanted
        else:
            assert record["type"] == f"urn:xlan:problem:{wanted}"
            assert "/" not in record["detail"]
            assert "Traceback" not in record["detail"]
    assert client.get("/v1/health").json() == {"status": "ok"}


def test_what_the_file_is_called_does_not_matter(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    for name in ("photo.txt", "../../etc/passwd", "x" * 3000, "a\0b.jpg", "\u202egpj.exe"):
        answer = client.post("/v1/captions", files={"image": (name, picture(0), "text/html")})
        assert answer.status_code == 200, answer.text


def endless(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield bytes(65536)


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
def test_a_body_without_an_announced_length_is_read_no_further_than_the_limit(client: httpx.Client, kind: str) -> None:
    headers = {"Content-Type": kind}  # httpx sends a generator in chunks
    answer = client.post("/v1/captions", content=endless(80), headers=headers)
    assert answer.status_code == 413
    assert answer.json()["type"] == "urn:xlan:problem:too-large"


def test_an_announced_length_is_refused_before_a_byte_is_read(server: Any) -> None:
    with httpx.Client(base_url=server.url, timeout=10, trust_env=False) as client:
        # The client keeps what it announced, so the answer comes while the body is on its way.
        answer = client.post("/v1/captions", content=endless(80), headers={"Content-Length": str(80 * 65536)})
        assert answer.status_code == 413
        assert client.get("/v1/health").status_code == 200


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads the server's memory from /proc")
def test_memory_stays_bounded(server: Any, client: httpx.Client) -> None:
    def resident() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    body = bomb()
    grown, before = [], resident()
    for _ in range(3):
        for _ in range(20):
            assert client.post("/v1/captions", files={"image": body}).status_code == 200
            assert client.post("/v1/captions", content=endless(30)).status_code in (413, 415)
        grown.append(resident() - before)
        before = resident()
    # Kilobytes; 20 open pictures would be 240,000. What is kept grows each time, an allocator's reserve does not.
    assert min(grown) < 60_000, grown


def test_heic_pictures_are_captioned_where_their_reader_is_installed(client: httpx.Client) -> None:
    heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    heif.from_pillow(noise()).save(file, quality=90)
    answer = client.post("/v1/captions", content=file.getvalue(), headers={"Content-Type": "image/heic"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["image"] == {"width": 60, "height": 40}
