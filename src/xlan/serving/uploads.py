"""From the bytes of a request to a picture and options, hostile until checked.

Bodies are read into memory, never to disk, and no further than the limits; multipart and JSON are told apart by the
Content-Type, pictures by their first bytes alone. Parsing is plain code without `await`: it runs in a thread.
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

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from xlan.errors import ImageError
from xlan.options import CaptionOptions
from xlan.serving.problems import Problem
from xlan.serving.schemas import read_options
from xlan.vision.image import ImageLimits, picture_kind

FORM = b"multipart/form-data"
JSON = b"application/json"
MAX_PARTS = 64
MAX_FIELD = 4096


@dataclass(frozen=True)
class Upload:
    """A request that has been understood: the bytes of the picture, and how to caption it."""

    image: bytes
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
        """So many bytes are gone."""
        with self._lock:
            self.used -= count


class Body:
    """Bytes of a request, counted until they are let go."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()  # the thread that reads the body and the one that parses it both let it go
        self.data = bytearray()

    def add(self, part: bytes) -> None:
        """Raises Problem (503) when the server holds too many bytes already."""
        self._memory.take(len(part))
        self.data += part

    def let_go(self) -> None:
        """Forget the bytes; doing so twice does no harm."""
        with self._lock:
            self._memory.give_back(len(self.data))
            self.data = bytearray()


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


def parse_upload(body: bytes | bytearray, content_type: str, limits: ImageLimits) -> Upload:
    """Picture and options of a whole body.

    Raises:
        Problem: it is not what it claims, something is missing, or an option is wrong.
    """
    kind, parameters = parse_options_header(content_type)
    if kind == FORM:
        image, values = _parse_form(body, parameters.get(b"boundary", b""))
        options = read_options(values, typed=False)
    elif kind == JSON:
        image, values = _parse_json(body)
        options = read_options(values, typed=True)
    else:
        raise Problem("content-type", "expected Content-Type multipart/form-data or application/json")
    if len(image) > limits.max_bytes:
        raise Problem("too-large", f"the picture is larger than the limit of {limits.max_bytes:,} bytes")
    if picture_kind(image) is None:
        _refuse_stranger(image)
    return Upload(image, options)


def _too_large(limit: int) -> NoReturn:
    raise Problem("too-large", f"the request is larger than the limit of {limit:,} bytes")


def _refuse_stranger(image: bytes) -> NoReturn:
    from xlan.vision.image import open_image

    try:
        open_image(image)
    except ImageError as error:  # which names what it is instead
        raise Problem("not-a-picture", str(error)) from None
    raise AssertionError("a picture of no known kind was opened")


def _parse_json(body: bytes | bytearray) -> tuple[bytes, dict[str, Any]]:
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
    text = values.pop("image", None)
    if not isinstance(text, str):
        raise Problem("bad-request", "image: expected the picture as base64 text")
    try:
        return base64.b64decode(text, validate=True), values
    except (binascii.Error, ValueError):
        raise Problem("bad-request", "image: not valid base64") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _parse_form(body: bytes | bytearray, boundary: bytes) -> tuple[bytes, dict[str, Any]]:
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
    if form.image is None:
        raise Problem("bad-request", "image: expected a field of this name with the picture")
    return form.image, form.values


class _Form:
    """Collects the fields of a multipart body: `image` as bytes, `must` as a list, the others as text."""

    def __init__(self) -> None:
        self.image: bytes | None = None
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
        if self._name == "image" and self.image is not None:
            raise Problem("bad-request", "image: expected one picture, got several; send a request for each")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "image" and len(self._data) + end - start > MAX_FIELD:
            raise Problem("bad-request", f"{self._name[:60]!r}: longer than {MAX_FIELD} bytes")
        self._data += data[start:end]

    def _end(self) -> None:
        if self._name == "image":
            self.image = bytes(self._data)
            return
        try:
            text = self._data.decode("utf-8")
        except UnicodeDecodeError:
            raise Problem("bad-request", f"{self._name[:60]!r}: not UTF-8 text") from None
        if self._name == "must":
            self.values.setdefault("must", []).append(text)
        elif self._name in self.values:
            raise Problem("bad-request", f"{self._name[:60]!r}: given more than once")
        else:
            self.values[self._name] = text

    def _end_all(self) -> None:
        self.ended = True
