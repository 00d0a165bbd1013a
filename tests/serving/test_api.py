"""The API of a real server, answer by answer."""

from __future__ import annotations

import base64
import concurrent.futures
import html
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from xlan.caption_json import caption_record
from xlan.options import CaptionOptions
from xlan.pipeline import Captioner
from xlan.serving.openapi import EXAMPLE_ANSWER
from xlan.serving.problems import KINDS


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def captioner(model_directory: Path) -> Captioner:
    return Captioner.from_pretrained(model_directory)


def post_form(client: httpx.Client, image: bytes, **options: Any) -> httpx.Response:
    return client.post("/v1/captions", files={"image": ("photo.bin", image)}, data=options)


def post_json(client: httpx.Client, image: bytes, **options: Any) -> httpx.Response:
    return client.post("/v1/captions", json={"image": base64.b64encode(image).decode(), **options})


def check_problem(response: httpx.Response, kind: str, detail: str = "") -> None:
    problem = response.json()
    assert (problem["type"], response.status_code) == (f"urn:xlan:problem:{kind}", KINDS[kind][0]), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert set(problem) == {"type", "title", "status", "detail"}
    assert problem["status"] == response.status_code
    assert re.search(detail, problem["detail"]), problem["detail"]
    assert "\n" not in problem["detail"]


OPTIONS: list[tuple[dict[str, Any], CaptionOptions]] = [
    ({}, CaptionOptions()),
    ({"beams": 5, "max_length": 7}, CaptionOptions(beams=5, max_length=7)),
    ({"must": ["dog|dogs", "cat"]}, CaptionOptions(must=("dog|dogs", "cat"))),
    (
        {"samples": 3, "seed": 5, "temperature": 0.7, "top_p": 0.9},
        CaptionOptions(samples=3, seed=5, temperature=0.7, top_p=0.9),
    ),
    ({"explain": True, "beams": 2}, CaptionOptions(beams=2, attention=True, runners_up=4)),
]


def close(got: Any, wanted: Any) -> bool:
    """The same structure, numbers equal to five digits: batches of another size add up in another order."""
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(close(got[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(close, got, wanted))
    return math.isclose(got, wanted, rel_tol=1e-4, abs_tol=2e-5) if isinstance(wanted, float) else got == wanted


@pytest.mark.parametrize(("asked", "options"), OPTIONS, ids=["plain", "beams", "must", "samples", "explain"])
def test_form_json_and_the_library_agree(
    client: httpx.Client, captioner: Captioner, picture: Callable[..., bytes], asked: dict[str, Any], options: Any
) -> None:
    image = picture(3)
    wanted = json.loads(json.dumps(caption_record(captioner.caption(image, options))))
    for answer in (post_form(client, image, **asked), post_json(client, image, **asked)):
        assert answer.status_code == 200, answer.text
        record = answer.json()
        extra = {name: record.pop(name) for name in ("image", "model", "seconds")}
        assert close(record, wanted)
        assert extra["image"] == {"width": 60, "height": 40}
        assert extra["model"] == "model"
        assert set(extra["seconds"]) == {"queue", "model"}


def test_a_picture_as_the_whole_body(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    image = picture(3)
    wanted = post_form(client, image, beams=2, must=["dog|dogs", "cat"]).json()
    for kind in ("image/png", "image/jpeg", "application/octet-stream"):
        query = {"beams": 2, "must": ["dog|dogs", "cat"]}
        answer = client.post("/v1/captions", content=image, params=query, headers={"Content-Type": kind})
        assert answer.status_code == 200, answer.text
        assert answer.json()["caption"] == wanted["caption"]
    check_problem(client.post("/v1/captions?beam=2", files={"image": image}), "bad-option", "no such option")


def test_several_pictures_in_one_request(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    images = [picture(0), b"not a picture", picture(1)]
    alone = [post_form(client, images[i], beams=2).json()["caption"] for i in (0, 2)]
    files = [("image", ("photo", image)) for image in images]
    texts = [base64.b64encode(image).decode() for image in images]
    for answer in (
        client.post("/v1/captions/batch", files=files, data={"beams": 2}),
        client.post("/v1/captions/batch", json={"images": texts, "beams": 2}),
    ):
        assert answer.status_code == 200, answer.text
        first, broken, last = answer.json()["results"]
        assert [first["answer"]["caption"], last["answer"]["caption"]] == alone
        assert (first["problem"], last["problem"], broken["answer"]) == (None, None, None)
        assert (broken["problem"]["type"], broken["problem"]["status"]) == ("urn:xlan:problem:not-a-picture", 415)


def test_what_is_wrong_with_all_pictures_is_wrong_with_the_request(
    client: httpx.Client, picture: Callable[..., bytes]
) -> None:
    def post(count: int, **options: Any) -> httpx.Response:
        files = [("image", ("photo", picture(i))) for i in range(count)]
        return client.post("/v1/captions/batch", files=files, data=options)

    check_problem(post(2, must="zebra"), "unusable-options", "does not know the word 'zebra'")
    check_problem(post(2, must="dog cat on grass", max_length=2), "unusable-options")
    check_problem(post(17), "bad-request", "at most 16 pictures in one request, got 17")


def test_requests_that_would_cost_too_much_are_refused(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    words = ["a", "dog", "cat", "on", "grass", "the"]
    costly = {"beams": 10, "max_length": 50, "must": words}
    check_problem(post_form(client, picture(0), **costly), "unusable-options", "could take 32,000 steps .* 20,000")
    costly["must"] = words[:5]  # 16,000 steps: allowed, in the queue for costly ones
    assert post_form(client, picture(0), **costly).status_code == 200
    files = [("image", ("photo", picture(i))) for i in range(2)]
    check_problem(client.post("/v1/captions/batch", files=files, data=costly), "unusable-options", "32,000 steps")


def test_attention_adds_up_and_boxes_fit(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    record = post_form(client, picture(1), explain="true").json()
    assert len(record["boxes"]) == 5
    for word in record["words"]:
        assert len(word["spatial"]) == 5
        assert math.isclose(sum(word["spatial"]), 1, abs_tol=1e-5)
        assert len(word["channel"]) == 64
        assert len(word["runners_up"]) == 4
        assert word["text"] not in [other["text"] for other in word["runners_up"]]


def test_without_explain_answers_stay_small(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    record = post_form(client, picture(1)).json()
    assert record["boxes"] is None
    assert all(word["spatial"] is None and word["channel"] is None for word in record["words"])
    assert all(word["runners_up"] == [] for word in record["words"])


def test_many_at_once_get_what_each_gets_alone(
    client: httpx.Client, captioner: Captioner, picture: Callable[..., bytes]
) -> None:
    images = [picture(i) for i in range(12)]
    asked = [OPTIONS[i % 3][0] for i in range(12)]
    wanted = [captioner.caption(image, OPTIONS[i % 3][1]).text for i, image in enumerate(images)]
    before = metric(client, "xlan_batch_size_count")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda i: post_form(client, images[i], **asked[i]), range(12)))
    assert [answer.json()["caption"] for answer in answers] == wanted
    assert metric(client, "xlan_batch_size_count") - before < 12  # some came together


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


@pytest.mark.parametrize(
    ("options", "kind", "detail"),
    [
        ({"beams": 0}, "bad-option", "beams: input should be greater than or equal to 1"),
        ({"beams": 11}, "bad-option", "beams: .*less than or equal to 10"),
        ({"beams": "many"}, "bad-option", "beams: "),
        ({"samples": -1}, "bad-option", "samples"),
        ({"samples": 2, "temperature": 0}, "bad-option", "temperature"),
        ({"samples": 2, "top_p": 1.5}, "bad-option", "top_p"),
        ({"max_length": 51}, "bad-option", "max_length"),
        ({"explain": "perhaps"}, "bad-option", "explain"),
        ({"must": [""]}, "bad-option", r"must\.0"),
        ({"beam": 3}, "bad-option", "'beam': no such option; there are beams, samples"),
        ({"samples": 2, "beams": 3}, "unusable-options", "beams searches, but samples draws"),
        ({"seed": 3}, "unusable-options", "seed has an effect only together with samples"),
        ({"must": ["zebra"]}, "unusable-options", "the model does not know the word 'zebra'"),
        ({"must": ["dog cat on grass"], "max_length": 2}, "unusable-options", "."),
    ],
)
def test_bad_options(
    client: httpx.Client, picture: Callable[..., bytes], options: dict[str, Any], kind: str, detail: str
) -> None:
    check_problem(post_form(client, picture(0), **options), kind, detail)
    check_problem(post_json(client, picture(0), **options), kind, detail)


def test_numbers_in_json_are_numbers(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    check_problem(post_json(client, picture(0), beams="3"), "bad-option", "beams: input should be a valid integer")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "not valid JSON: .* at character 1"),
        (b"[1]", "expected a JSON object"),
        (b"{}", "image: expected the picture as base64 text"),
        (b'{"image": 3}', "image: expected the picture as base64 text"),
        (b'{"image": "not base64!"}', "image: not valid base64"),
        (b'{"image": "\xc3\xa9"}', "image: not valid base64"),
        (b"\xff\xfe\x00", "not (UTF-8|valid)"),
        (b"[" * 4_000, "nested too deeply|not valid"),
        (b"[" * 100_000, "too many values"),
        (b'{"image": "", "seed": ' + b"9" * 5000 + b"}", "number"),
        (b'{"image": "", "temperature": NaN}', "number"),
    ],
)
def test_bad_json(client: httpx.Client, body: bytes, detail: str) -> None:
    answer = client.post("/v1/captions", content=body, headers={"Content-Type": "application/json"})
    check_problem(answer, "bad-request", detail)


def form(*parts: bytes, end: bytes = b"--x--\r\n") -> bytes:
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + end


def field(name: str, value: bytes) -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "multipart"),
        (b"nonsense", "multipart: the body is not valid"),
        (form(field("beams", b"3")), "image: expected a field of this name"),
        (form(field('file"; filename="a.jpg', b"x" * 5000)), "'file': this field holds a file; call the field 'image'"),
        (form(field("image", b"a"), end=b""), "ends before its last boundary"),
        (form(field("image", b"a"), field("image", b"b")), "got several; send them to /v1/captions/batch"),
        (form(b"Content-Type: text/plain\r\n\r\nabc"), "a field has no name"),
        (form(field("image", b"a"), field("beams", b"3"), field("beams", b"4")), "'beams': given more than once"),
        (form(field("image", b"a"), field("must", b"\xff")), "'must': not UTF-8 text"),
        (form(field("image", b"a"), field("must", b"x" * 5000)), "'must': longer than 4096 bytes"),
        (form(*[field(f"f{i}", b"") for i in range(70)]), "expected at most 64 fields"),
        (form(field("image", b"a"), b"X: " + b"y" * 20_000 + b"\r\n\r\n"), "multipart"),
    ],
)
def test_bad_forms(client: httpx.Client, body: bytes, detail: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    check_problem(client.post("/v1/captions", content=body, headers=headers), "bad-request", detail)


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/mixed"])
def test_other_content_types(client: httpx.Client, picture: Callable[..., bytes], kind: str) -> None:
    answer = client.post("/v1/captions", content=picture(0), headers={"Content-Type": kind})
    check_problem(answer, "content-type", "expected Content-Type multipart/form-data, application/json, or image/")


def test_a_form_without_boundary(client: httpx.Client) -> None:
    answer = client.post("/v1/captions", content=b"x", headers={"Content-Type": "multipart/form-data"})
    check_problem(answer, "bad-request", "names no boundary")


def test_health_and_model(client: httpx.Client) -> None:
    assert client.get("/v1/health").json() == {"status": "ok"}
    model = client.get("/v1/model").json()
    assert (model["name"], model["vocabulary"], model["vision"]["input_size"]) == ("model", 11, 64)
    limits = {"max_bytes": 1_000_000, "max_pixels": 4_000_000, "max_images": 16, "max_cost": 20_000}
    assert model["limits"] == {**limits, "queue": 64, "timeout": 30.0}
    assert model["parameters"] > 10_000
    assert model["card"].startswith("# A captioning model")


def test_metrics_count_what_happened(client: httpx.Client, picture: Callable[..., bytes]) -> None:
    before = metric(client, "xlan_pictures_total")
    post_form(client, picture(0))
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert metric(client, "xlan_pictures_total") == before + 1
    assert 'xlan_requests_total{method="POST",route="/v1/captions",status="200"}' in answer.text
    client.get("/an/address/that/a/client/made/up")
    assert "made/up" not in client.get("/metrics").text


def test_unknown_addresses_and_methods(client: httpx.Client) -> None:
    check_problem(client.get("/v1/nothing"), "not-found")
    check_problem(client.get("/static/../app.py"), "not-found")
    check_problem(client.get("/static/..%2fapp.py"), "not-found")
    check_problem(client.get("/v1/health/"), "not-found")
    answer = client.delete("/v1/captions")
    check_problem(answer, "method")
    assert answer.headers["allow"] == "POST"


def test_pages_ask_nobody_else_and_carry_the_policy(client: httpx.Client) -> None:
    for path in ("/", "/docs", "/static/app.js", "/static/app.css", "/openapi.json", "/v1/health", "/nothing"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers
        if "html" in answer.headers["content-type"]:
            assert not re.search(r"""(src|href)=["']?(https?:)?//""", answer.text)
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", answer.text)


def test_the_docs_page_names_every_address_and_option(client: httpx.Client) -> None:
    page, document = client.get("/docs").text, client.get("/openapi.json").json()
    assert set(document["paths"]) == {"/v1/captions", "/v1/captions/batch", "/v1/model", "/v1/health", "/metrics"}
    for path in document["paths"]:
        assert path in page
    body = document["paths"]["/v1/captions"]["post"]["requestBody"]["content"]
    for name in body["application/json"]["schema"]["properties"]:
        assert f"<code>{name}</code>" in page


def test_the_docs_page_shows_ranges_an_answer_and_commands(client: httpx.Client, server: Any) -> None:
    page = html.unescape(client.get("/docs").text)
    assert "(integer, 1 to 10)" in page
    assert "(number, 0.05 to 10)" in page
    assert json.dumps(EXAMPLE_ANSWER, indent=1) in page
    assert f"curl -F image=@photo.jpg -F beams=5 {server.url}/v1/captions" in page


def test_head_gives_headers_alone(client: httpx.Client) -> None:
    answer = client.head("/v1/health")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == "15"


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"Host": "evil.example:8000"}, "other-host"),
        ({"Host": "127.0.0.1.evil.example"}, "other-host"),
        ({"Host": ""}, "other-host"),
        ({"Origin": "https://evil.example"}, "other-site"),
        ({"Origin": "null"}, "other-site"),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, "other-site"),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "other-site"),  # a form sent from elsewhere
    ],
)
def test_other_sites_are_kept_out(
    client: httpx.Client, picture: Callable[..., bytes], headers: dict[str, str], kind: str
) -> None:
    answer = client.post("/v1/captions", files={"image": picture(0)}, headers=headers)
    check_problem(answer, kind)


def test_own_pages_and_links_from_elsewhere_are_let_in(client: httpx.Client, server: Any) -> None:
    for headers in (
        {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
        {"Origin": f"http://127.0.0.1:{server.port}"},
        {"Host": f"localhost:{server.port}"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ):
        assert client.get("/", headers=headers).status_code == 200


def test_preflights_of_other_sites_are_not_answered(client: httpx.Client) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = client.options("/v1/captions", headers=headers)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_log_tells_what_was_asked_and_nothing_of_pictures(server: Any, client: httpx.Client) -> None:
    client.get("/v1/health?secret=1")
    post_form(client, b"\x89PNG secret picture")
    log = server.log.read_text()
    assert "127.0.0.1 GET /v1/health 200" in log
    assert "secret" not in log
    assert "Traceback" not in log
