"""Opening pictures that anybody may have made: every source and mode becomes RGB, or one clear line says why not.

A picture is hostile until it is decoded. Limits on bytes and on claimed pixels come before any decoding; only the
formats in `FORMATS` are tried, by their first bytes, never by file name; decoders' exceptions become `ImageError`.
Pillow's module-wide settings (`MAX_IMAGE_PIXELS`, `LOAD_TRUNCATED_IMAGES`) and the warning filters are neither read
nor changed, so several threads may open pictures at once.
"""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

from xlan.errors import ImageError, one_line

if TYPE_CHECKING:
    from torch import Tensor

ImageSource: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | Image.Image | npt.NDArray[Any] | Tensor"

# Class and first bytes of every format that is opened. JPEG's own class is used, not its factory, which would look
# for further pictures in the file.
FORMATS: dict[str, tuple[type[Any], tuple[bytes, ...]]] = {
    "JPEG": (JpegImagePlugin.JpegImageFile, (b"\xff\xd8\xff",)),
    "PNG": (PngImagePlugin.PngImageFile, (b"\x89PNG\r\n\x1a\n",)),
    "WebP": (WebPImagePlugin.WebPImageFile, (b"RIFF",)),
    "GIF": (GifImagePlugin.GifImageFile, (b"GIF87a", b"GIF89a")),
    "BMP": (BmpImagePlugin.BmpImageFile, (b"BM",)),
    "TIFF": (TiffImagePlugin.TiffImageFile, (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")),
}
# Names of pictures. Those that cannot be decoded are among them: captioning a folder must report each of them.
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"}
    | {".heic", ".heif", ".hif", ".avif"}
)
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

# What people rename or download by mistake, so that the message can name it.
_STRANGERS = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"%PDF", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"<svg", "an SVG drawing; save it as PNG first"),
    (b"<?xml", "an XML or SVG file; save it as PNG first"),
    (b"<!doctype html", "a web page"),
    (b"<html", "a web page"),
)
_ORIENTATION_TAG = 0x0112
_ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUARTER_TURNS = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
_SIZE_KEY = "xlan_original_size"


@dataclass(frozen=True)
class ImageLimits:
    """What is refused before decoding.

    Attributes:
        max_bytes: largest file.
        max_pixels: most pixels a picture may claim (120 million lets through every phone's main mode).
    """

    max_bytes: int = 64 << 20
    max_pixels: int = 120_000_000


DEFAULT_LIMITS = ImageLimits()


def open_image(
    source: ImageSource, *, limits: ImageLimits = DEFAULT_LIMITS, min_side: int | None = None, name: str | None = None
) -> Image.Image:
    """Open a picture from anywhere as upright RGB.

    Args:
        source: a path, the bytes of a file, an open binary file, a Pillow image, or an array or tensor `[H, W]`,
            `[H, W, C]` with 1, 3 or 4 channels or `[C, H, W]` with 1 or 3, of uint8, uint16, bool, or floats in 0–1.
        limits: what to refuse.
        min_side: when given, a JPEG may be decoded at a half, a quarter or an eighth, both sides staying at least this
            long. `original_size` still tells the size of the file.
        name: what errors call the picture; a path's own name by default.

    Returns:
        A Pillow image in mode RGB: first frame of an animation, turned as EXIF says, transparency laid on white.

    Raises:
        ImageError: the source was refused or cannot be decoded; one line, beginning with the picture's name.
    """
    if isinstance(source, Image.Image):
        return _finish(source, name or "image", limits, min_side=None)
    if hasattr(source, "detach") and hasattr(source, "cpu"):  # a tensor, without importing torch
        return _from_array(source.detach().cpu().numpy(), name or "tensor", limits)
    if isinstance(source, np.ndarray):
        return _from_array(source, name or "array", limits)
    if isinstance(source, str | os.PathLike):
        name = name or os.fspath(source)
        data = read_path(source, name, limits)
    elif isinstance(source, bytes | bytearray | memoryview):
        name, data = name or "image", bytes(source)
    elif hasattr(source, "read"):
        name = name or "image"
        data = _read_file(source, name, limits)
    else:
        kinds = "a path, bytes, a binary file, a Pillow image or an array"
        raise ImageError(f"{name or 'image'}: expected {kinds}, got {type(source).__name__}")
    return _decode(data, name, limits, min_side)


def original_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of the file an image came from, upright; its own size when `open_image` did not make it."""
    return cast("tuple[int, int]", image.info.get(_SIZE_KEY, image.size))


def square_pixels(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """An RGB image squashed to a square: `[size, size, 3]`."""
    if image.size != (size, size):
        # reducing_gap first shrinks by whole factors, which is several times faster for large pictures.
        image = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.array(image, dtype=np.uint8)


def read_path(path: str | os.PathLike[str], name: str, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """The bytes of a picture file, at most one more than the limit allows; a pipe or a device is not waited for.

    Raises:
        ImageError: there is no such file, or it cannot be read; the message begins with `name`.
    """
    if os.fspath(path).startswith(("http://", "https://", "ftp://")):
        raise ImageError(f"{name}: addresses are not fetched; download the picture and give its path")
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise ImageError(f"{name}: is a folder, expected a picture")
        if not stat.S_ISREG(mode):
            raise ImageError(f"{name}: cannot be read: it is a pipe, a socket or a device, expected a file")
        with Path(path).open("rb") as file:
            return _read_file(file, name, limits)
    except FileNotFoundError:
        dangling = " (a dangling link)" if Path(path).is_symlink() else ""
        raise ImageError(f"{name}: no such file{dangling}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ImageError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _read_file(file: BinaryIO, name: str, limits: ImageLimits) -> bytes:
    data = file.read(limits.max_bytes + 1)
    if not isinstance(data, bytes):
        raise ImageError(f"{name}: expected a file opened in binary mode, it gave {type(data).__name__}")
    return data


def claimed_size(data: bytes, *, limits: ImageLimits = DEFAULT_LIMITS, name: str = "image") -> tuple[int, int]:
    """Width and height that the header of a file claims; no pixel is decoded.

    Raises:
        ImageError: it is not a picture of a known format, its header is damaged, or it claims too much.
    """
    width, height = _begin(data, name, limits).size
    _check_pixels(width, height, name, limits)
    return width, height


def _decode(data: bytes, name: str, limits: ImageLimits, min_side: int | None) -> Image.Image:
    return _finish(_begin(data, name, limits), name, limits, min_side=min_side)


def _begin(data: bytes, name: str, limits: ImageLimits) -> Image.Image:
    """The picture with its header read and nothing decoded."""
    if not data:
        raise ImageError(f"{name}: is empty (0 bytes)")
    if len(data) > limits.max_bytes:
        raise ImageError(f"{name}: is larger than the limit of {limits.max_bytes:,} bytes for a picture")
    decoder = _decoder_of(data, name)
    if decoder is WebPImagePlugin.WebPImageFile:
        _check_pixels(*_webp_canvas(data), name, limits)  # its decoder takes the memory when it is made
    try:
        return cast("Image.Image", decoder(io.BytesIO(data)))
    except Exception as error:  # a hostile header can raise nearly anything
        raise ImageError(f"{name}: is not a readable picture: {one_line(error)}") from None


def picture_kind(data: bytes) -> str | None:
    """The name in `FORMATS` that the first bytes of a file speak for; None for what is no picture of a known format."""
    for kind, (_, starts) in FORMATS.items():
        if data.startswith(starts) and (kind != "WebP" or data[8:12] == b"WEBP"):
            return kind
    return None


def _decoder_of(data: bytes, name: str) -> type[Any]:
    kind = picture_kind(data)
    if kind is not None:
        return FORMATS[kind][0]
    start = data[:64].lstrip().lower()
    for magic, what in _STRANGERS:
        if start.startswith(magic.lower()):
            raise ImageError(f"{name}: is not a picture but {what}")
    if data[4:8] == b"ftyp":
        if data[8:12] in _HEIF_BRANDS:
            return _heif_decoder(name)
        raise ImageError(f"{name}: is an AVIF or video file; save it as JPEG first")
    raise ImageError(f"{name}: is not a picture of a known format; known are {', '.join(FORMATS)}")


def _heif_decoder(name: str) -> type[Any]:
    """The class for pictures of phones, if the extra is installed."""
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        how = "save it as JPEG first, or install the reader with: pip install 'xlan[heif]'"
        raise ImageError(f"{name}: is a HEIC picture; {how}") from None
    return cast("type[Any]", HeifImageFile)


def _webp_canvas(data: bytes) -> tuple[int, int]:
    """Width and height that a WebP file claims; 1×1 when its first chunk is of no known kind."""
    kind, body = data[12:16], data[20:30]
    if kind == b"VP8X" and len(body) == 10:
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(body) == 10:
        sides = (int.from_bytes(body[i : i + 2], "little") & 0x3FFF for i in (6, 8))
        width, height = (max(1, side) for side in sides)
        return width, height
    return 1, 1


def _finish(image: Image.Image, name: str, limits: ImageLimits, *, min_side: int | None) -> Image.Image:
    """Check the claimed size, decode, turn upright, convert."""
    width, height = image.size
    _check_pixels(width, height, name, limits)
    try:
        if min_side is not None and isinstance(image, JpegImagePlugin.JpegImageFile):
            image.draft(None, (min_side, min_side))
        turn = _ORIENTATIONS.get(_orientation(image))
        image.load()
        _check_pixels(*image.size, name, limits)  # a frame may turn out larger than the canvas it claimed
        upright = _to_rgb(image, name)
        if turn is not None:
            upright = upright.transpose(turn)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"{name}: is damaged and cannot be decoded: {one_line(error)}") from None
    size = (height, width) if turn in _QUARTER_TURNS else (width, height)
    upright.info = {_SIZE_KEY: image.info.get(_SIZE_KEY, size)}
    return upright


def _check_pixels(width: int, height: int, name: str, limits: ImageLimits) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"{name}: has no pixels ({width}×{height})")
    if width * height > limits.max_pixels:
        limit = f"{limits.max_pixels:,} pixels"
        raise ImageError(f"{name}: claims {width:,}×{height:,} pixels, more than the limit of {limit}")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # damaged EXIF says nothing about the picture itself
        return 1


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()  # callers may close or change the image they gave
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_to_bytes(np.asarray(image), name)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _to_bytes(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    """Any numbers → 0–255: 16-bit by their top byte, floats as 0–1 (or 0–255 when they reach beyond 1)."""
    if values.dtype == np.uint8:
        return np.asarray(values, dtype=np.uint8)
    if values.dtype == np.bool_:
        return np.asarray(values * 255, dtype=np.uint8)
    if values.dtype.kind in "iu":
        top = int(values.max())
        if int(values.min()) < 0 or top > 65535:
            raise ImageError(f"{name}: has whole numbers outside 0 to 65,535, cannot tell black from white")
        shift = 8 if top > 255 or values.dtype == np.uint16 else 0
        return np.asarray(values >> shift, dtype=np.uint8)
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        raise ImageError(f"{name}: expected finite numbers as pixels, got {values.dtype} with NaN or infinity")
    scale = 255.0 if float(values.max()) <= 1.0 else 1.0
    return np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)


def _from_array(array: npt.NDArray[Any], name: str, limits: ImageLimits) -> Image.Image:
    shape = list(array.shape)
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)  # [C, H, W], as tensors come
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(
            f"{name}: expected [H, W], [H, W, C] or [C, H, W] with 1 or 3 channels (C last: or 4), got {shape}"
        )
    if array.dtype.kind not in "biuf":
        raise ImageError(f"{name}: expected numbers as pixels, got {array.dtype}")
    _check_pixels(array.shape[1], array.shape[0], name, limits)
    pixels = _to_bytes(array, name)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return _finish(Image.fromarray(np.ascontiguousarray(pixels)), name, limits, min_side=None)
