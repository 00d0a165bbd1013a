"""The model as requests see it: a body in, an answer out, many at a time.

Pictures of one batch are looked at together, whatever their options; those with equal options also share the search for
words. Several cores share a batch by its pictures: threads inside torch's products would have to wait for each other
thousands of times per caption.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from xlan import __version__
from xlan.caption_json import caption_record
from xlan.errors import DecodingError, ImageError, ModelError
from xlan.options import CaptionOptions
from xlan.pipeline import Captioner
from xlan.serving.batching import Answer, Batcher, QueueFullError, TimeIsUpError
from xlan.serving.metrics import Metrics
from xlan.serving.problems import Problem
from xlan.serving.settings import ServeSettings
from xlan.serving.uploads import Body, BodyMemory, parse_upload, read_body
from xlan.types import Caption
from xlan.vision.image import FORMATS
from xlan.vision.regions import PreparedImage

_PICTURE = "image"  # what errors call a picture that came without a name
# Fewer pictures than this are not worth a thread: what a batch saves would be lost again.
_LEAST_SHARE = 4


@dataclass(frozen=True)
class Order:
    """A picture that is ready for the model, and how to caption it."""

    picture: PreparedImage
    options: CaptionOptions


@dataclass(frozen=True)
class Captioned:
    """What the model said of an order."""

    caption: Caption
    order: Order


def caption_orders(captioner: Captioner, orders: Sequence[Order]) -> list[Captioned | Exception]:
    """Captions in order; where options cannot be fulfilled, the error in its place."""
    extractor = captioner.extractor
    if extractor is None:
        raise ModelError("the model does not caption pictures")
    regions = extractor.extract([order.picture for order in orders])
    groups: dict[CaptionOptions, list[int]] = {}
    for i, order in enumerate(orders):
        groups.setdefault(order.options, []).append(i)
    found: dict[int, Captioned | Exception] = {}
    for options, members in groups.items():
        try:
            captions = captioner.caption_regions([regions[i] for i in members], options)
        except DecodingError as error:  # it depends on the options alone
            found.update(dict.fromkeys(members, error))
        else:
            found.update((i, Captioned(caption, orders[i])) for i, caption in zip(members, captions, strict=True))
    return [found[i] for i in range(len(orders))]


def shares(orders: Sequence[Order], lanes: int) -> list[Sequence[Order]]:
    """A batch as up to `lanes` parts of nearly equal size, in order, none smaller than is worth it."""
    count = max(1, min(lanes, len(orders) // _LEAST_SHARE))
    edges = [i * len(orders) // count for i in range(count + 1)]
    return [orders[start:end] for start, end in itertools.pairwise(edges)]


class Service:
    """Answers caption requests.

    Args:
        captioner: the model; it must caption pictures.
        settings: limits and sizes.
    """

    def __init__(self, captioner: Captioner, settings: ServeSettings) -> None:
        captioner.check(CaptionOptions())
        self._captioner = captioner
        self._settings = settings
        self._memory = BodyMemory(settings.body_memory)
        self.stopping = False
        self.in_progress = 0
        self._batch_seconds = 0.0
        self._lanes = ThreadPoolExecutor(settings.lanes, thread_name_prefix="xlan-lane")
        self.batcher: Batcher[Order, Captioned] = Batcher(
            self._work,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            capacity=settings.queue,
            preparers=settings.openers,
            on_batch=self._count_batch,
        )
        self.metrics = Metrics(
            model=settings.model_name,
            version=__version__,
            waiting=lambda: self.batcher.waiting,
            working=lambda: self.in_progress,
        )

    async def caption(self, request: Request) -> bytes:
        """The answer to a caption request, as JSON.

        Raises:
            Problem: why there is none.
            ClientDisconnect: nobody wants it any more.
        """
        settings, body = self._settings, Body(self._memory)
        with self._accepted():
            if self.batcher.full:  # known before the body is read, which may be long
                raise self._busy()
            try:
                await read_body(
                    request,
                    body,
                    limit=settings.max_body,
                    stall=settings.stall_timeout,
                    total=settings.body_timeout,
                )
                content_type = request.headers.get("content-type", "")
                return await _unless_gone(asyncio.ensure_future(self._answer(body, content_type)), request)
            except ClientDisconnect:
                self.metrics.dropped.labels("client left").inc()
                raise
            finally:
                body.let_go()

    def close(self) -> None:
        """End the threads; nothing may be in progress any more."""
        self.batcher.close()
        self._lanes.shutdown()

    def describe(self) -> dict[str, Any]:
        """The model and the limits, as JSON values."""
        captioner, settings = self._captioner, self._settings
        return {
            "name": settings.model_name,
            "card": settings.card,
            "architecture": captioner.engine.description["architecture"],
            "parameters": captioner.engine.description["parameters"],
            "vocabulary": len(captioner.vocabulary),
            "vision": dict(captioner.extractor.description) if captioner.extractor else {},
            "formats": list(FORMATS),
            "limits": {
                "max_bytes": settings.limits.max_bytes,
                "max_pixels": settings.limits.max_pixels,
                "queue": settings.queue,
                "timeout": settings.timeout,
            },
        }

    def _work(self, orders: Sequence[Order]) -> list[Captioned | Exception]:
        """In the batcher's thread: a batch, by all lanes at once."""
        first, *others = shares(orders, self._settings.lanes)
        helped = [self._lanes.submit(caption_orders, self._captioner, share) for share in others]
        found = caption_orders(self._captioner, first)
        return found + [result for one in helped for result in one.result()]

    @contextlib.contextmanager
    def _accepted(self) -> Iterator[None]:
        """A request that got in here is answered, even when the server is told to stop meanwhile."""
        if self.stopping:
            raise Problem("stopping", "the server is stopping; try again later", {"Retry-After": "10"})
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    async def _answer(self, body: Body, content_type: str) -> bytes:
        try:
            answer = await self.batcher.submit(
                lambda: self._prepare(body, content_type), timeout=self._settings.timeout
            )
        except QueueFullError:
            raise self._busy() from None
        except TimeIsUpError:
            self.metrics.dropped.labels("time").inc()
            raise Problem("time", f"there was no caption within {self._settings.timeout:g} seconds") from None
        except DecodingError as error:
            raise Problem("unusable-options", str(error)) from None
        self.metrics.pictures.inc()
        self.metrics.queue_seconds.observe(answer.queued)
        if answer.result.order.options.attention:  # ten thousand numbers; the others should not wait for them
            return await asyncio.to_thread(self._encode, answer)
        return self._encode(answer)

    def _prepare(self, body: Body, content_type: str) -> Order:
        """In a thread: everything about one request that needs no other."""
        upload = parse_upload(body.data, content_type, self._settings.limits)
        body.let_go()  # those who wait in the queue keep a small picture and no body
        self._captioner.check(upload.options)
        try:
            picture = self._captioner.prepare(upload.image, limits=self._settings.limits, name=_PICTURE)
        except ImageError as error:
            raise Problem("unusable-picture", str(error)) from None
        return Order(picture, upload.options)

    def _encode(self, answer: Answer[Captioned]) -> bytes:
        picture = answer.result.order.picture
        record = {
            **caption_record(answer.result.caption),
            "image": {"width": picture.width, "height": picture.height},
            "model": self._settings.model_name,
            "seconds": {"queue": round(answer.queued, 4), "model": round(answer.worked, 4)},
        }
        return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")

    def _busy(self) -> Problem:
        """Come back when those who wait now will have been served, as far as the last batch tells."""
        seconds = math.ceil(self.batcher.waiting / self._settings.max_batch * self._batch_seconds)
        return Problem("busy", "too many requests are waiting", {"Retry-After": str(min(60, max(1, seconds)))})

    def _count_batch(self, size: int, seconds: float) -> None:
        self._batch_seconds = seconds
        self.metrics.batch_size.observe(size)
        self.metrics.model_seconds.observe(seconds)


async def _unless_gone(answering: asyncio.Future[bytes], request: Request) -> bytes:
    """The answer, given up as soon as the client leaves."""
    leaving = asyncio.ensure_future(_gone(request))
    try:
        both: set[asyncio.Future[Any]] = {answering, leaving}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
