"""From the bytes of a request to pictures and options, hostile until checked.

Bodies are read into memory, never to disk, and no further than the limits. The Content-Type says whether a body is a
form, JSON or the picture itself; only the first bytes of a file decide what kind of picture it is. Parsing is plain
code without `await`: it runs in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from xlan.errors import ImageError
from xlan.options import CaptionOptions
from xlan.serving.problems import Problem
from xlan.serving.schemas import read_options
from xlan.vision.image import ImageLimits, claimed_size, picture_kind

FORM = b"multipart/form-data"
JSON = b"application/json"
MAX_PARTS = 64
MAX_FIELD = 4096
# Most pictures in one request.
MAX_IMAGES = 16
# Most commas and opening brackets of a JSON body. Base64 has none, and millions of small values would keep all threads
# waiting while they are parsed, and take many times the memory of the body.
MAX_MARKS = 4096


@dataclass(frozen=True)
class Upload:
    """A request that has been understood: the files of its pictures, not looked at yet, and how to caption them."""

    images: list[bytes]
    options: CaptionOptions


class BodyMemory:
    """Counts the bytes of all bodies that are held at once, so that many large ones cannot fill the memory.

    Args:
        limit: most bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.used = 0

    def take(self, count: int) -> None:
        """Raises Problem (503) when there is no room."""
        with self._lock:
            if self.used + count > self._limit:
                raise Problem("busy", "too many uploads are under way; try again in a moment", {"Retry-After": "1"})
            self.used += count

    def give_back(self, count: int) -> None:
        """These bytes are free again."""
        with self._lock:
            self.used -= count


class Body:
    """Bytes of a request, counted until they are released."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()  # the event loop and the threads that open pictures both release bytes
        self._counted = 0
        self.data = bytearray()

    def add(self, part: bytes) -> None:
        """Raises Problem (503) when the server holds too many bytes already."""
        self._memory.take(len(part))
        self._counted += len(part)
        self.data += part

    def replace(self, count: int) -> None:
        """The body was parsed: from now on only its parts are held, `count` bytes."""
        with self._lock:
            self.data = bytearray()
            self._give_back(self._counted - count)

    def release(self, count: int | None = None) -> None:
        """Give back some bytes, or all without a number; more than are held do no harm."""
        with self._lock:
            if count is None:
                self.data = bytearray()
            self._give_back(self._counted if count is None else count)

    def _give_back(self, count: int) -> None:
        count = max(0, min(count, self._counted))
        self._counted -= count
        self._memory.give_back(count)


async def read_body(request: Request, body: Body, *, limit: int, stall: float, total: float) -> None:
    """Read a whole body.

    Raises:
        Problem: larger than `limit`, or slower than `stall` seconds between bytes or `total` seconds in all.
        ClientDisconnect: the client went away.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > limit:
        _too_large(limit)
    end = time.monotonic() + total
    more = True
    while more:
        try:
            message = await asyncio.wait_for(request.receive(), min(stall, end - time.monotonic()))
        except TimeoutError:
            raise Problem("too-slow", "the body of the request did not arrive in time") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        if len(body.data) + len(part) > limit:
            _too_large(limit)
        body.add(part)
        more = message.get("more_body", False)


def parse_upload(body: bytes | bytearray, content_type: str, query: str = "", *, several: bool = False) -> Upload:
    """Pictures and options of a whole body, with options from the query string.

    Args:
        body: a form, JSON, or one picture itself.
        content_type: which of them.
        query: the query string of the request.
        several: whether the request may hold several pictures (`images` in JSON, `image` repeated in a form).

    Raises:
        Problem: it is not what it claims, something is missing, or an option is wrong.
    """
    kind, parameters = parse_options_header(content_type)
    if kind == FORM:
        images, values = _parse_form(body, parameters.get(b"boundary", b""))
        values = _joined(_parse_query(query), values)
        options = read_options(values, typed=False)
    elif kind == JSON:
        images, values = _parse_json(body, several)
        options = read_options(values, typed=True, text=_parse_query(query))
    elif kind.startswith(b"image/") or kind == b"application/octet-stream":
        images, options = [bytes(body)], read_options(_parse_query(query), typed=False)
    else:
        raise Problem(
            "content-type",
            "expected Content-Type multipart/form-data, application/json, or image/… for a bare picture",
        )
    if len(images) > 1 and not several:
        raise Problem("bad-request", "image: expected one picture, got several; send them to /v1/captions/batch")
    if len(images) > MAX_IMAGES:
        raise Problem("bad-request", f"expected at most {MAX_IMAGES} pictures in one request, got {len(images)}")
    return Upload(images, options)


def check_image(image: bytes, limits: ImageLimits) -> None:
    """Refuse a file that is too large or not a picture, before anything is decoded.

    Raises:
        Problem: what is wrong with it.
    """
    if len(image) > limits.max_bytes:
        raise Problem("too-large", f"the picture is larger than the limit of {limits.max_bytes:,} bytes")
    if picture_kind(image) is None:
        try:
            claimed_size(image, limits=limits)  # a HEIC picture is read where its reader is installed
        except ImageError as error:  # which names what it is instead
            raise Problem("not-a-picture", str(error)) from None


def _too_large(limit: int) -> NoReturn:
    raise Problem("too-large", f"the request is larger than the limit of {limit:,} bytes")


def _parse_query(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    try:
        for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARTS):
            _add_text(values, name, value)
    except ValueError:
        raise Problem("bad-request", f"the query string has more than {MAX_PARTS} fields") from None
    return values


def _add_text(values: dict[str, Any], name: str, text: str) -> None:
    """An option of a form or of a query string: `must` may be repeated, others may not."""
    if name == "must":
        values.setdefault("must", []).append(text)
    elif name in values:
        raise Problem("bad-request", f"{name[:60]!r}: given more than once")
    else:
        values[name] = text


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    if twice := first.keys() & second.keys():
        raise Problem("bad-request", f"{min(twice)[:60]!r}: given more than once")
    return {**first, **second}


def _parse_json(body: bytes | bytearray, several: bool) -> tuple[list[bytes], dict[str, Any]]:
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_MARKS:
        raise Problem("bad-request", 'the JSON has too many values; expected {"image": "<base64>", …}')
    try:
        values = json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise Problem("bad-request", "the JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise Problem("bad-request", "the JSON is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise Problem("bad-request", f"not valid JSON: {error.msg} at character {error.pos}") from None
    except ValueError:  # a number with thousands of digits
        raise Problem("bad-request", "the JSON has a number that cannot be used") from None
    if not isinstance(values, dict):
        raise Problem("bad-request", 'expected a JSON object: {"image": "<base64>", …}')
    if not several:
        return [_decode_text(values.pop("image", None), "image")], values
    texts = values.pop("images", None)
    if not isinstance(texts, list) or not texts:
        raise Problem("bad-request", "images: expected a list of pictures as base64 text")
    if len(texts) > MAX_IMAGES:
        raise Problem("bad-request", f"images: expected at most {MAX_IMAGES} pictures, got {len(texts)}")
    return [_decode_text(text, f"images[{i}]") for i, text in enumerate(texts)], values


def _decode_text(text: object, name: str) -> bytes:
    """A picture as JSON holds it: base64, or a `data:` URL with base64."""
    if not isinstance(text, str):
        raise Problem("bad-request", f"{name}: expected the picture as base64 text")
    if text[:8].lower().startswith(("http://", "https://")):
        raise Problem("bad-request", f"{name}: this server fetches no addresses; send the picture itself, as base64")
    if text[:5].lower() == "data:":
        head, _, text = text.partition(",")
        if not head.lower().endswith(";base64"):
            raise Problem("bad-request", f"{name}: expected a data: URL with base64, as in data:image/jpeg;base64,…")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem("bad-request", f"{name}: not valid base64") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _parse_form(body: bytes | bytearray, boundary: bytes) -> tuple[list[bytes], dict[str, Any]]:
    if not boundary:
        raise Problem("bad-request", "multipart: the Content-Type names no boundary")
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        parser.write(bytes(body))
        parser.finalize()
    except FormParserError:
        raise Problem("bad-request", "multipart: the body is not valid") from None
    if not form.ended:
        raise Problem("bad-request", "multipart: the body ends before its last boundary")
    if not form.images:
        raise Problem("bad-request", "image: expected a field of this name with the picture")
    return form.images, form.values


class _Form:
    """Collects the fields of a multipart body: `image` as files, `must` as a list, the others as text."""

    def __init__(self) -> None:
        self.images: list[bytes] = []
        self.values: dict[str, Any] = {}
        self.ended = False
        self._parts = 0
        self._name = ""
        self._is_file = False
        self._header = bytearray()
        self._value = bytearray()
        self._data = bytearray()

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._begin,
            "on_header_begin": self._begin_header,
            "on_header_field": self._add_header,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_part_end": self._end,
            "on_end": self._end_all,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise Problem("bad-request", f"multipart: expected at most {MAX_PARTS} fields")
        self._name, self._is_file, self._data = "", False, bytearray()

    def _begin_header(self) -> None:
        self._header, self._value = bytearray(), bytearray()

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, parameters = parse_options_header(bytes(self._value))
            self._name = parameters.get(b"name", b"").decode("utf-8", "replace")
            self._is_file = b"filename" in parameters

    def _end_headers(self) -> None:
        if not self._name:
            raise Problem("bad-request", "multipart: a field has no name")
        if self._is_file and self._name != "image":
            raise Problem("bad-request", f"{self._name[:60]!r}: this field holds a file; call the field 'image'")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "image" and len(self._data) + end - start > MAX_FIELD:
            raise Problem("bad-request", f"{self._name[:60]!r}: longer than {MAX_FIELD} bytes")
        self._data += data[start:end]

    def _end(self) -> None:
        if self._name == "image":
            self.images.append(bytes(self._data))
            return
        try:
            text = self._data.decode("utf-8")
        except UnicodeDecodeError:
            raise Problem("bad-request", f"{self._name[:60]!r}: not UTF-8 text") from None
        _add_text(self.values, self._name, text)

    def _end_all(self) -> None:
        self.ended = True
