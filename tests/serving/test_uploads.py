"""Bodies of requests, whatever is in them."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from xlan.options import CaptionOptions
from xlan.serving.problems import Problem
from xlan.serving.uploads import MAX_IMAGES, Body, BodyMemory, Upload, parse_upload, read_body

PNG = b"\x89PNG\r\n\x1a\n and more"
PIECES = [PNG, b"--x", b"--x--", b"\r\n", b"\r\n\r\n", b"\n", b"\0", b"--", b"a: b", b":", b"3"]
PIECES += [b'Content-Disposition: form-data; name="image"', b'Content-Disposition: form-data; name="beams"']
FORM = "multipart/form-data; boundary=x"


def form(**fields: bytes | list[bytes]) -> bytes:
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
        for name, values in fields.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return b"".join(parts) + b"--x--\r\n"


@settings(max_examples=60, deadline=None)
@given(image=st.binary(max_size=2000))
@example(image=b"\r\n")
@example(image=b"\r\n--")
def test_a_picture_arrives_byte_for_byte(image: bytes) -> None:
    wanted = Upload([PNG + image], CaptionOptions(beams=2, must=("a", "b c")))
    body = form(image=PNG + image, beams=b"2", must=[b"a", b"b c"])
    text = {"image": base64.b64encode(PNG + image).decode(), "beams": 2, "must": ["a", "b c"]}
    if b"\r\n--x" not in image:
        assert parse_upload(body, FORM) == wanted
    assert parse_upload(json.dumps(text).encode(), "application/json; charset=utf-8") == wanted
    assert parse_upload(PNG + image, "image/png", "beams=2&must=a&must=b+c") == wanted


@settings(max_examples=150, deadline=None)
@given(
    body=st.one_of(
        st.binary(max_size=300),
        st.lists(
            st.sampled_from(PIECES),
            max_size=14,
        ).map(b"".join),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=20) | st.integers(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.sampled_from(["image", "beams", "must", "seed", "x"]), inner, max_size=4)
            ),
            max_leaves=10,
        ).map(lambda value: json.dumps(value).encode()),
    ),
    kind=st.sampled_from(
        [FORM, "application/json", "multipart/form-data; boundary=" + "y" * 300, "image/png", "text/plain", "", ";"]
    ),
    query=st.one_of(st.just(""), st.text(max_size=30), st.sampled_from(["beams=2", "must=a&must=b", "x&" * 70])),
    several=st.booleans(),
)
def test_anything_is_understood_or_refused_in_words(body: bytes, kind: str, query: str, several: bool) -> None:
    refused: Problem | None = None
    try:
        upload = parse_upload(body, kind, query, several=several)
        assert 1 <= len(upload.images) <= (MAX_IMAGES if several else 1)
    except Problem as problem:
        refused = problem
    if refused is not None:
        assert refused.status in (400, 413, 415, 422)
        assert "\n" not in refused.detail
        assert refused.response().body  # text that can be sent


def test_a_word_that_is_half_a_character_is_refused_and_the_answer_can_be_sent() -> None:
    body = json.dumps({"image": base64.b64encode(PNG).decode(), "\ud800": 1}).encode()
    with pytest.raises(Problem) as caught:
        parse_upload(body, "application/json")
    assert caught.value.response().body.isascii()


def json_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_data_url_is_the_picture_it_holds() -> None:
    text = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert parse_upload(json_of(image=text), "application/json").images == [PNG]


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"image": "data:image/svg+xml,%3Csvg"}, "image: expected a data: URL with base64"),
        ({"image": "data:"}, "image: expected a data: URL with base64"),
        ({"image": "https://example.org/a.jpg"}, "image: this server fetches no addresses"),
        ({"images": ["QQ=="]}, "image: expected the picture as base64 text"),
    ],
)
def test_pictures_in_json_that_are_refused(fields: dict[str, Any], detail: str) -> None:
    with pytest.raises(Problem, match=detail):
        parse_upload(json_of(**fields), "application/json")


@pytest.mark.parametrize("inside", [b"[]", b'{"a": 1}', b"1", b'"QQ=="'])
def test_json_of_millions_of_values_is_refused_before_it_is_parsed(
    inside: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"images": [' + b",".join([inside] * 100_000) + b"]}"
    monkeypatch.setattr(json, "loads", pytest.fail)
    with pytest.raises(Problem, match="too many values"):
        parse_upload(body, "application/json", several=True)


def test_the_largest_request_in_json_is_understood() -> None:
    fields = {"images": ["data:image/png;base64,QQ=="] * MAX_IMAGES, "must": [",[{" * 33] * 10, "beams": 2}
    assert len(parse_upload(json_of(**fields), "application/json", several=True).images) == MAX_IMAGES


def test_several_pictures_keep_their_order() -> None:
    texts = [base64.b64encode(PNG + bytes([i])).decode() for i in range(3)]
    wanted = Upload([PNG + bytes([i]) for i in range(3)], CaptionOptions(beams=2))
    assert parse_upload(json_of(images=texts, beams=2), "application/json", several=True) == wanted
    assert parse_upload(form(image=wanted.images, beams=b"2"), FORM, several=True) == wanted
    with pytest.raises(Problem, match="expected one picture, got several; send them to /v1/captions/batch"):
        parse_upload(form(image=wanted.images), FORM)


@pytest.mark.parametrize("images", [[], ["QQ=="] * (MAX_IMAGES + 1), "QQ==", [3]])
def test_lists_of_pictures_that_are_refused(images: Any) -> None:
    with pytest.raises(Problem, match="images"):
        parse_upload(json_of(images=images), "application/json", several=True)


def test_options_of_the_query_string_join_those_of_the_body() -> None:
    body = json_of(image=base64.b64encode(PNG).decode(), beams=2)
    assert parse_upload(body, "application/json", "max_length=9").options == CaptionOptions(beams=2, max_length=9)
    for kind, both in (("application/json", body), (FORM, form(image=PNG, beams=b"2"))):
        with pytest.raises(Problem, match="'beams': given more than once"):
            parse_upload(both, kind, "beams=3")


def request_of(*messages: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = (), pause: float = 0.0) -> Request:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return left.pop(0)

    return Request({"type": "http", "method": "POST", "path": "/", "headers": list(headers)}, receive)


def part(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def read(request: Request, memory: BodyMemory, *, limit: int = 100, stall: float = 5, total: float = 5) -> Body:
    body = Body(memory)
    asyncio.run(read_body(request, body, limit=limit, stall=stall, total=total))
    return body


def test_a_body_in_parts_is_counted_until_it_is_released() -> None:
    memory = BodyMemory(100)
    body = read(request_of(part(b"ab"), part(b"cd"), part(b"", more=False)), memory)
    assert (body.data, memory.used) == (b"abcd", 4)
    body.release()
    body.release()
    assert memory.used == 0


def test_pictures_are_counted_until_each_is_opened() -> None:
    memory = BodyMemory(100)
    body = read(request_of(part(b"x" * 40, more=False)), memory)
    body.replace(30)  # two pictures of 10 and 20 bytes were in it
    assert (body.data, memory.used) == (b"", 30)
    body.release(10)
    assert memory.used == 20
    body.release()
    body.release(20)  # a thread that comes late
    assert memory.used == 0


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (request_of(headers=((b"content-length", b"101"),)), "too-large"),
        (request_of(headers=((b"content-length", b"9" * 400),)), "too-large"),
        (request_of(part(b"x" * 60), part(b"x" * 60, more=False)), "too-large"),
        (request_of(part(b"x"), pause=1.0), "too-slow"),
        (request_of(*[part(b"x")] * 100, pause=0.03), "too-slow"),
    ],
    ids=["announced", "announced with many digits", "not announced", "stalls", "in single bytes"],
)
def test_bodies_that_are_not_read_to_the_end(request_: Request, kind: str) -> None:
    with pytest.raises(Problem) as caught:
        read(request_, BodyMemory(1000), stall=0.1, total=0.3)
    assert caught.value.kind == kind


def test_all_bodies_together_are_limited() -> None:
    memory = BodyMemory(10)
    read(request_of(part(b"12345678", more=False)), memory)
    with pytest.raises(Problem) as caught:
        read(request_of(part(b"123", more=False)), memory)
    assert (caught.value.kind, caught.value.headers) == ("busy", {"Retry-After": "1"})


def test_a_client_that_leaves_in_the_middle() -> None:
    with pytest.raises(ClientDisconnect):
        read(request_of(part(b"x"), {"type": "http.disconnect"}), BodyMemory(100))
