"""Pictures of every kind are opened or refused; the test draws them all."""

from __future__ import annotations

import io
import struct
import sys
import threading
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from xlan.errors import ImageError
from xlan.vision.image import FORMATS, ImageLimits, open_image, original_size, square_pixels

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def corners(width: int = 40, height: int = 20) -> Image.Image:
    """Red top left, green top right, blue bottom left, white bottom right."""
    image = Image.new("RGB", (width, height), WHITE)
    image.paste(RED, (0, 0, width // 2, height // 2))
    image.paste(GREEN, (width // 2, 0, width, height // 2))
    image.paste(BLUE, (0, height // 2, width // 2, height))
    return image


def near(image: Image.Image, place: tuple[int, int], colour: tuple[int, int, int], tolerance: int = 40) -> bool:
    got = image.getpixel(place)
    assert isinstance(got, tuple)
    return all(abs(a - b) <= tolerance for a, b in zip(got, colour, strict=True))


def png_claiming(width: int, height: int) -> bytes:
    """A PNG with a true header of that size and a few bytes of data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF"])
def test_every_listed_format_opens(kind: str) -> None:
    image = open_image(encode(corners(), kind))
    assert kind in FORMATS
    assert (image.mode, image.size) == ("RGB", (40, 20))
    assert near(image, (2, 2), RED)
    assert near(image, (37, 2), GREEN)


def test_sources_agree(tmp_path: Path) -> None:
    data = encode(corners(), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    wanted = np.asarray(corners())
    for source in (path, str(path), data, io.BytesIO(data), Image.open(path), corners(), wanted, wanted / 255.0):
        assert np.array_equal(np.asarray(open_image(source)), wanted)


def test_the_given_image_stays_as_it_was() -> None:
    image = corners()
    opened = open_image(image)
    opened.putpixel((0, 0), WHITE)
    assert image.getpixel((0, 0)) == RED
    assert image.info == {}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    # How a camera stores an upright picture under each orientation: the inverse of what a viewer does.
    store = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = corners().transpose(store[orientation]) if orientation in store else corners()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = open_image(encode(stored, "PNG", exif=exif))
    assert np.array_equal(np.asarray(image), np.asarray(corners()))
    assert original_size(image) == (40, 20)


def test_damaged_exif_does_not_matter() -> None:
    data = encode(corners(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remark on it
        assert open_image(data).size == (40, 20)


def test_cmyk_is_converted() -> None:
    image = open_image(encode(corners().convert("CMYK"), "JPEG", quality=95))
    assert near(image, (2, 2), RED, 60)
    assert near(image, (37, 17), WHITE)


def test_sixteen_bits_keep_their_brightness() -> None:
    values = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    wanted = (values >> 8).astype(np.uint8)
    for source in (encode(Image.fromarray(values), "PNG"), encode(Image.fromarray(values), "TIFF"), values):
        assert np.array_equal(np.asarray(open_image(source))[:, :, 0], wanted)


def test_thirty_two_bits_and_floats_open() -> None:
    whole = np.arange(64, dtype=np.int32).reshape(8, 8) * 1000
    assert np.array_equal(np.asarray(open_image(encode(Image.fromarray(whole), "TIFF")))[:, :, 1], whole >> 8)
    floats = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    opened = np.asarray(open_image(encode(Image.fromarray(floats), "TIFF")))
    assert np.array_equal(opened[:, :, 0], np.rint(floats * 255).astype(np.uint8))


def test_palette_transparency_lies_on_white() -> None:
    image = Image.new("P", (10, 10), 0)
    image.putpalette([0, 0, 0, 255, 0, 0] + [0] * 762)
    image.paste(1, (5, 0, 10, 10))
    opened = open_image(encode(image, "PNG", transparency=0))
    assert opened.getpixel((0, 0)) == WHITE
    assert opened.getpixel((9, 9)) == RED


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "La", "RGBa"])
def test_alpha_lies_on_white(mode: str) -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    steps = {"La": ("LA", "La"), "RGBa": ("RGBa",)}.get(mode, (mode,))
    for step in steps:
        clear = clear.convert(step)
    opened = open_image(clear)
    assert opened.mode == "RGB"
    assert near(opened, (1, 1), WHITE, 0)


def test_half_transparent_is_mixed_with_white() -> None:
    assert open_image(Image.new("RGBA", (2, 2), (0, 0, 0, 128))).getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "HSV", "RGBX"])
def test_other_modes_become_rgb(mode: str) -> None:
    assert open_image(corners().convert(mode)).mode == "RGB"


@pytest.mark.parametrize("kind", ["GIF", "WebP", "PNG", "TIFF"])
def test_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:])
    assert near(open_image(data), (8, 8), RED)


@pytest.mark.parametrize("size", [(1, 1), (10000, 3), (3, 10000), (1, 500)])
def test_odd_shapes_open_and_squash(size: tuple[int, int]) -> None:
    image = open_image(encode(Image.new("RGB", size, RED), "PNG"))
    assert image.size == size
    pixels = square_pixels(image, 32)
    assert pixels.shape == (32, 32, 3)
    assert (pixels == np.array(RED)).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_pictures_are_refused_in_one_line(kind: str, share: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = encode(noise, kind)
    with pytest.raises(ImageError, match=r"^cut\.jpg: is (damaged|not)") as caught:
        open_image(data[: int(len(data) * share)], name="cut.jpg")
    assert "\n" not in str(caught.value)


def test_empty_picture(tmp_path: Path) -> None:
    path = tmp_path / "empty.jpg"
    path.touch()
    with pytest.raises(ImageError, match=r"empty\.jpg: is empty \(0 bytes\)$"):
        open_image(path)


@pytest.mark.parametrize(
    "data",
    [
        png_claiming(50_000, 50_000),
        b"BM" + struct.pack("<IHHIIiiHHIIIIII", 1000, 0, 0, 54, 40, 50_000, 50_000, 1, 24, 0, 0, 0, 0, 0, 0),
        b"GIF89a"
        + struct.pack("<HHBBB", 50_000, 50_000, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 0, 0, 50_000, 50_000, 0)
        + b"\x08\x01\x00\x00;",
    ],
    ids=["PNG", "BMP", "GIF"],
)
def test_a_claim_of_many_pixels_is_refused_before_decoding(data: bytes) -> None:
    with pytest.raises(ImageError, match=r"claims 50,000×50,000 pixels, more than the limit of 120,000,000"):
        open_image(data)


@pytest.mark.parametrize(
    ("options", "kind"), [({"lossless": True}, b"VP8L"), ({}, b"VP8 "), ({"exif": b"Exif"}, b"VP8X")]
)
def test_webp_claims_are_read_from_the_header(options: dict[str, Any], kind: bytes) -> None:
    data = encode(corners(300, 200), "WebP", **options)
    assert data[12:16] == kind
    assert open_image(data).size == (300, 200)
    with pytest.raises(ImageError, match=r"claims 300×200 pixels, more than the limit of 59,999 pixels"):
        open_image(data[:30], limits=ImageLimits(max_pixels=59_999))


def test_large_but_allowed_claims_give_no_warning() -> None:
    # Between Pillow's own warning (89 million) and our limit: the data is missing, so only the claim is tested.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match="damaged"):
            open_image(png_claiming(10_000, 10_000))


def test_limits_can_be_lowered() -> None:
    data = encode(corners(), "PNG")
    with pytest.raises(ImageError, match=r"claims 40×20 pixels, more than the limit of 799 pixels"):
        open_image(data, limits=ImageLimits(max_pixels=799))
    with pytest.raises(ImageError, match=r"larger than the limit of 10 bytes"):
        open_image(data, limits=ImageLimits(max_bytes=10))
    with pytest.raises(ImageError, match="more than the limit"):
        open_image(np.zeros((20, 40, 3), dtype=np.uint8), limits=ImageLimits(max_pixels=799))


def test_a_file_is_read_no_further_than_the_limit() -> None:
    class Endless(io.RawIOBase):
        asked = 0

        def read(self, size: int = -1) -> bytes:
            self.asked = size
            return b"\xff\xd8\xff" + bytes(size - 3)

    file = Endless()
    with pytest.raises(ImageError, match="larger than the limit of 100 bytes"):
        open_image(file, limits=ImageLimits(max_bytes=100))  # type: ignore[arg-type]
    assert file.asked == 101


def test_what_only_looks_like_a_picture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")
    with pytest.raises(ImageError, match=r"photo\.jpg: is not a picture but a ZIP archive"):
        open_image(path)
    for data, what in (
        (b"%PDF-1.7", "a PDF document"),
        (b"\n<!DOCTYPE html><html>", "a web page"),
        (b"<svg xmlns=''>", "an SVG drawing"),
        (b"\0\0\0\x18ftypisom", "an AVIF or video file; save it as JPEG first"),
        (b"hello world, this is text", "not a picture of a known format; known are JPEG, PNG, WebP, GIF, BMP, TIFF"),
        (b"RIFF\0\0\0\0WAVEfmt ", "not a picture of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "not a picture of a known format"),
    ):
        with pytest.raises(ImageError, match=what):
            open_image(data)


def test_paths_that_cannot_be_pictures(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.jpg: no such file"):
        open_image(tmp_path / "gone.jpg")
    with pytest.raises(ImageError, match="is a folder, expected a picture"):
        open_image(tmp_path)
    with pytest.raises(ImageError, match="it is a pipe, a socket or a device"):
        open_image("/dev/zero")
    with pytest.raises(ImageError, match="cannot be read"):
        open_image("a\0b")
    with pytest.raises(ImageError, match="addresses are not fetched; download the picture"):
        open_image("https://example.org/cat.jpg")
    with pytest.raises(ImageError, match="expected a path, bytes, a binary file, a Pillow image or an array, got int"):
        open_image(3)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="opened in binary mode"):
        open_image(io.StringIO("text"))  # type: ignore[arg-type]


def test_bytes_errors_do_not_name_any_file() -> None:
    with pytest.raises(ImageError) as caught:
        open_image(encode(corners(), "PNG")[:60])
    assert "/" not in str(caught.value)
    assert "BytesIO" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 4, 2), dtype=np.uint8), r"got \[4, 4, 2\]"),
        (np.zeros((4,), dtype=np.uint8), r"got \[4\]"),
        (np.zeros((0, 4, 3), dtype=np.uint8), r"has no pixels \(4×0\)"),
        (np.full((4, 4), np.nan), "NaN or infinity"),
        (np.zeros((4, 4), dtype=complex), "expected numbers as pixels, got complex128"),
        (np.full((4, 4), -1), "whole numbers outside 0 to 65,535"),
    ],
)
def test_arrays_that_are_no_pictures(array: np.ndarray, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        open_image(array)


def test_array_kinds() -> None:
    assert open_image(np.ones((2, 2), dtype=bool)).getpixel((0, 0)) == WHITE
    assert open_image(np.full((2, 2, 1), 7, dtype=np.uint8)).getpixel((0, 0)) == (7, 7, 7)
    assert open_image(np.zeros((2, 2, 4), dtype=np.uint8)).getpixel((0, 0)) == WHITE
    assert open_image(np.full((2, 2, 3), 200.0)).getpixel((0, 0)) == (200, 200, 200)
    assert open_image(np.full((2, 2, 3), 9, dtype=np.int64)).getpixel((0, 0)) == (9, 9, 9)


def test_large_jpegs_are_decoded_small() -> None:
    data = encode(corners(1600, 800), "JPEG")
    image = open_image(data, min_side=200)
    assert image.size == (400, 200)
    assert original_size(image) == (1600, 800)
    assert near(image, (5, 5), RED)
    assert open_image(data).size == (1600, 800)


def test_threads_may_open_pictures_at_once() -> None:
    data, wanted = encode(corners(), "PNG"), np.asarray(corners())
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i in range(20) if not np.array_equal(np.asarray(open_image(data)), wanted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pillow_settings_are_left_alone() -> None:
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(ImageError):
        open_image(png_claiming(50_000, 50_000))
    assert before == Image.MAX_IMAGE_PIXELS


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF"]),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_bytes_never_raise_anything_else(kind: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(encode(corners(), kind))
    for place, value in changes:
        data[place % len(data)] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = open_image(bytes(data), limits=ImageLimits(max_pixels=1_000_000))
            outcome = image.mode
        except ImageError as error:
            outcome = "RGB" if "\n" not in str(error) else str(error)
    assert outcome == "RGB"


def test_a_heic_picture_without_its_reader_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"a\.heic: is a HEIC picture; save it as JPEG first, or .*xlan\[heif\]"):
        open_image(b"\0\0\0\x18ftypheic" + bytes(20), name="a.heic")


def test_a_heic_picture_is_read_when_its_reader_is_there() -> None:
    heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    heif.from_pillow(Image.new("RGB", (64, 48), (200, 30, 30))).save(file, quality=90)
    image = open_image(file.getvalue())
    assert image.size == (64, 48)
    assert np.abs(np.asarray(image, dtype=int) - (200, 30, 30)).max() < 12
    with pytest.raises(ImageError, match="claims 64×48 pixels, more than the limit of 100 pixels"):
        open_image(file.getvalue(), limits=ImageLimits(max_pixels=100))
    with pytest.raises(ImageError, match=r"is not a readable picture|is damaged"):
        open_image(file.getvalue()[:200])
