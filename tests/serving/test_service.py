"""The model behind requests: sharing, failing, and saying nothing about it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from xlan.errors import ConfigError, DecodingError, ModelError
from xlan.options import CaptionOptions
from xlan.pipeline import Captioner
from xlan.serving.app import create_app
from xlan.serving.batching import Batcher
from xlan.serving.service import Captioned, Order, caption_orders, shares
from xlan.serving.settings import ServeSettings
from xlan.types import Caption, Regions
from xlan.vision.regions import PreparedImage


@pytest.fixture(scope="module")
def captioner(model_directory: Path) -> Captioner:
    return Captioner.from_pretrained(model_directory)


def orders_of(captioner: Captioner, picture: Callable[..., bytes], *options: CaptionOptions) -> list[Order]:
    return [Order(captioner.prepare(picture(i)), option) for i, option in enumerate(options)]


def test_pictures_with_other_options_share_the_looking(
    captioner: Captioner, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    searched: list[int] = []
    assert captioner.extractor is not None
    extract, search = captioner.extractor.extract, captioner.caption_regions

    def counted_extract(images: Sequence[PreparedImage]) -> list[Regions]:
        looked.append(len(images))
        return extract(images)

    def counted_search(regions: Sequence[Regions], options: CaptionOptions) -> list[Caption]:
        searched.append(len(regions))
        return search(regions, options)

    monkeypatch.setattr(captioner.extractor, "extract", counted_extract)
    monkeypatch.setattr(captioner, "caption_regions", counted_search)
    two, three = CaptionOptions(beams=2), CaptionOptions(beams=3)
    found = caption_orders(captioner, orders_of(captioner, picture, two, three, two, two))
    assert (looked, sorted(searched)) == ([4], [1, 3])
    for i, one in enumerate(found):
        assert isinstance(one, Captioned)
        alone = captioner.caption(picture(i), three if i == 1 else two)
        assert one.caption.text == alone.text
        assert one.caption.score == pytest.approx(alone.score, abs=1e-4)


def test_options_that_cannot_be_fulfilled_hurt_nobody_else(captioner: Captioner, picture: Callable[..., bytes]) -> None:
    impossible = CaptionOptions(must=("dog cat on grass",), max_length=2)
    good, bad = caption_orders(captioner, orders_of(captioner, picture, CaptionOptions(), impossible))
    assert isinstance(good, Captioned)
    assert isinstance(bad, DecodingError)


def test_costly_options_go_to_a_line_of_their_own(
    captioner: Captioner, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: dict[str, bool] = {}
    submit = Batcher.submit

    async def noted(batcher: Any, prepare: Any, *, heavy: bool = False) -> Any:
        answer = await submit(batcher, prepare, heavy=heavy)
        options = answer.result.order.options
        lines[f"{options.beams}×{options.max_length}, {len(options.must)} words"] = heavy
        return answer

    monkeypatch.setattr(Batcher, "submit", noted)
    ordinary, words = {"beams": "10", "max_length": "50"}, ["dog", "cat", "grass"]
    for options in ({}, ordinary, {"must": words}, {**ordinary, "must": words[:1]}):
        assert ask(captioner, picture(0), data=options)[0].status_code == 200
    wanted = {"3×20, 0 words": False, "10×50, 0 words": False, "3×20, 3 words": False, "10×50, 1 words": True}
    assert lines == wanted


@pytest.mark.parametrize(
    ("options", "cost"),
    [
        (CaptionOptions(), 3 * 20),
        (CaptionOptions(beams=10, max_length=50), 10 * 50),
        (CaptionOptions(samples=4), 4 * 20),
        (CaptionOptions(samples=4, must=("dog", "cat")), 4 * 20),
        (CaptionOptions(must=("dog", "cat", "grass")), 3 * 2**3 * 20),
        (CaptionOptions(must=("dog|cat|grass",)), 3 * 2 * 20),
        (CaptionOptions(must=("dog on grass",)), 3 * 4 * 20),  # nothing, dog, dog on, all of it
    ],
)
def test_what_options_cost(captioner: Captioner, options: CaptionOptions, cost: int) -> None:
    assert captioner.cost(options) == cost


@pytest.mark.parametrize(
    ("count", "lanes", "sizes"),
    [(1, 4, [1]), (7, 2, [7]), (8, 2, [4, 4]), (16, 2, [8, 8]), (17, 4, [4, 4, 4, 5]), (16, 8, [4] * 4), (5, 1, [5])],
)
def test_shares_of_a_batch(count: int, lanes: int, sizes: list[int]) -> None:
    blank = PreparedImage(np.zeros((1, 1, 3), dtype=np.uint8), 1, 1)
    orders = [Order(blank, CaptionOptions(seed=i)) for i in range(count)]
    parts = shares(orders, lanes)
    assert [len(part) for part in parts] == sizes
    assert [order for part in parts for order in part] == orders


def ask(captioner: Captioner, image: bytes, count: int = 1, data: Any = None) -> list[httpx.Response]:
    """Requests to an application in this process."""
    app = create_app(captioner, ServeSettings(max_wait=0.2, lanes=2))

    async def whole() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            calls = [client.post("/v1/captions", files={"image": image}, data=data) for _ in range(count)]
            return await asyncio.gather(*calls)

    try:
        return asyncio.run(whole())
    finally:
        app.state.service.close()


def test_a_failure_is_a_number_for_the_client_and_a_traceback_in_the_log(
    captioner: Captioner,
    picture: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("weights in /secret/place are gone")

    monkeypatch.setattr(captioner, "caption_regions", fail)
    (answer,) = ask(captioner, picture(0))
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (500, "urn:xlan:problem:failure")
    assert "secret" not in answer.text
    assert "RuntimeError" not in answer.text
    number = problem["detail"].split()[-1]
    record = next(record for record in caplog.records if record.getMessage() == f"failure {number}")
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def test_a_picture_that_breaks_the_model_does_not_hurt_its_batch(
    captioner: Captioner, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = captioner.caption_regions
    calls: list[int] = []

    def fail_once(regions: Sequence[Regions], options: CaptionOptions) -> list[Caption]:
        calls.append(len(regions))
        if len(regions) > 1:
            raise RuntimeError("one of these is poison")
        return search(regions, options)

    monkeypatch.setattr(captioner, "caption_regions", fail_once)
    answers = ask(captioner, picture(0), count=9)
    assert [answer.status_code for answer in answers] == [200] * 9
    assert max(calls) > 1


def test_a_model_that_captions_no_pictures_is_refused_at_once(captioner: Captioner) -> None:
    blind = Captioner(captioner.engine, captioner.vocabulary)
    with pytest.raises(ModelError, match="captions region features, not pictures"):
        create_app(blind)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"queue": 0}, "queue: expected at least 1, got 0"),
        ({"timeout": 0.0}, "timeout: expected seconds above 0"),
        ({"max_wait": -1.0}, "max_wait: expected 0 or more seconds"),
        ({"token": "sésame"}, "token: expected ASCII characters only"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServeSettings(**wrong)


def test_a_token_is_not_shown_with_the_settings() -> None:
    assert "sesame" not in repr(ServeSettings(token="sesame-open-sesame"))


def test_large_pictures_are_opened_in_a_thread_of_their_own(
    captioner: Captioner, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    prepare = captioner.prepare

    def watched(*arguments: Any, **options: Any) -> PreparedImage:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return prepare(*arguments, **options)

    monkeypatch.setattr(captioner, "prepare", watched)

    async def ask(large_pixels: int) -> int:
        app = create_app(captioner, ServeSettings(large_pixels=large_pixels))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post("/v1/captions", content=picture(0), headers={"Content-Type": "image/png"})
        return answer.status_code

    assert [asyncio.run(ask(pixels)) for pixels in (1, 1 << 30)] == [200, 200]
    assert threads == ["xlan-large", "xlan-open"]
