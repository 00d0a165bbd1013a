"""The model behind the API: a request's body in, its answer out, many at a time.

Pictures of one batch go through vision together, whatever their options; those with equal options also share the search
for words. Several cores share a batch by its pictures: threads inside matrix products would wait for each other
thousands of times per caption.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
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
from xlan.serving.batching import Answer, Batcher, Later, QueueFullError
from xlan.serving.metrics import Metrics
from xlan.serving.problems import Problem
from xlan.serving.settings import ServeSettings
from xlan.serving.uploads import MAX_IMAGES, Body, BodyMemory, Upload, check_image, parse_upload, read_body
from xlan.types import Caption
from xlan.vision.image import FORMATS, claimed_size
from xlan.vision.naming import unnamed
from xlan.vision.regions import PreparedImage

_PICTURE = "image"  # what errors call a picture that came without a name
# Fewer pictures than this are not worth a thread: the gain of a batch would be lost again.
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
    regions = extractor.extract(
        [order.picture if order.options.attention else unnamed(order.picture) for order in orders]
    )
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
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="xlan-parse")
        self._lanes = ThreadPoolExecutor(settings.lanes, thread_name_prefix="xlan-lane")
        self.batcher: Batcher[Order, Captioned] = Batcher(
            self._work,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            capacity=settings.queue,
            heavy_capacity=settings.heavy_queue,
            preparers=settings.openers,
            on_batch=self._count_batch,
        )
        self.metrics = Metrics(
            model=settings.model_name,
            version=__version__,
            waiting=lambda: self.batcher.waiting,
            working=lambda: self.in_progress,
        )

    async def caption(self, request: Request, *, several: bool = False) -> bytes:
        """The answer to a caption request, as JSON; `several` for one that may hold several pictures.

        Raises:
            Problem: why there is none.
            ClientDisconnect: the client has left.
        """
        settings, body = self._settings, Body(self._memory)
        with self.accepted():
            if not self.batcher.room():  # refused before the body is read, which may be long
                raise self._busy(heavy=False)
            try:
                await read_body(
                    request,
                    body,
                    limit=settings.max_body,
                    stall=settings.stall_timeout,
                    total=settings.body_timeout,
                )
                return await _unless_gone(asyncio.ensure_future(self._answer(request, body, several)), request)
            except ClientDisconnect:
                self.metrics.dropped.labels("client left").inc()
                raise
            finally:
                body.release()

    def close(self) -> None:
        """End the threads; nothing may be in progress by then."""
        self._parser.shutdown()
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
                "max_images": MAX_IMAGES,
                "max_cost": settings.max_cost,
                "queue": settings.queue,
                "timeout": settings.timeout,
            },
        }

    def _work(self, orders: Sequence[Order]) -> list[Captioned | Exception]:
        """In a thread of the batcher: a batch, by all lanes at once."""
        first, *others = shares(orders, self._settings.lanes)
        helped = [self._lanes.submit(caption_orders, self._captioner, share) for share in others]
        found = caption_orders(self._captioner, first)
        return found + [result for one in helped for result in one.result()]

    @contextlib.contextmanager
    def accepted(self) -> Iterator[None]:
        """A request that is accepted is answered, even when the server is asked to stop meanwhile."""
        if self.stopping:
            raise Problem("stopping", "the server is stopping; try again later", {"Retry-After": "10"})
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    async def _answer(self, request: Request, body: Body, several: bool) -> bytes:
        """The answer to a body that has arrived, within the time for a request."""
        query, content_type = request.url.query, request.headers.get("content-type", "")
        heavy = False
        try:
            async with asyncio.timeout(self._settings.timeout):
                loop = asyncio.get_running_loop()
                upload, heavy = await loop.run_in_executor(
                    self._parser, self._parse, body, content_type, query, several
                )
                if len(upload.images) > self.batcher.room(heavy=heavy):
                    raise QueueFullError
                calls = (self._caption_one(upload, i, body, heavy) for i in range(len(upload.images)))
                if not several:
                    encode = functools.partial(self._encode, await next(calls))
                else:
                    encode = functools.partial(self._encode_all, await asyncio.gather(*calls, return_exceptions=True))
                if several or upload.options.attention:  # thousands of numbers; the others should not wait for them
                    return await asyncio.to_thread(encode)
                return encode()
        except QueueFullError:
            raise self._busy(heavy=heavy) from None
        except TimeoutError:
            self.metrics.dropped.labels("time").inc()
            raise Problem("time", f"there was no caption within {self._settings.timeout:g} seconds") from None
        except DecodingError as error:
            raise Problem("unusable-options", str(error)) from None

    def _parse(self, body: Body, content_type: str, query: str, several: bool) -> tuple[Upload, bool]:
        """In a thread: what is asked, and whether it is costly."""
        upload = parse_upload(body.data, content_type, query, several=several)
        body.replace(sum(map(len, upload.images)))
        cost = self._captioner.cost(upload.options)
        if cost * len(upload.images) > self._settings.max_cost:
            raise Problem(
                "unusable-options",
                f"this could take {cost * len(upload.images):,} steps of the model, more than the limit of "
                f"{self._settings.max_cost:,}; use fewer beams, required words or pictures, or a lower max_length",
            )
        return upload, cost > self._settings.heavy_cost

    async def _caption_one(self, upload: Upload, i: int, body: Body, heavy: bool) -> Answer[Captioned]:
        answer = await self.batcher.submit(lambda: self._prepare(upload, i, body), heavy=heavy)
        self.metrics.pictures.inc()
        self.metrics.queue_seconds.observe(answer.queued)
        return answer

    def _prepare(self, upload: Upload, i: int, body: Body) -> Order | Later[Order]:
        """In a thread: open one picture, or leave a large one for later."""
        limits, image = self._settings.limits, upload.images[i]
        upload.images[i] = b""
        try:
            check_image(image, limits)
            width, height = claimed_size(image, limits=limits, name=_PICTURE)
        except (ImageError, Problem) as error:
            body.release(len(image))
            raise error if isinstance(error, Problem) else Problem("unusable-picture", str(error)) from None
        if width * height > self._settings.large_pixels:
            return Later(lambda: self._open(image, upload.options, body))
        return self._open(image, upload.options, body)

    def _open(self, image: bytes, options: CaptionOptions, body: Body) -> Order:
        """In a thread: what then waits for the model is a small picture and no file."""
        try:
            picture = self._captioner.prepare(image, limits=self._settings.limits, name=_PICTURE)
        except ImageError as error:
            raise Problem("unusable-picture", str(error)) from None
        finally:
            body.release(len(image))
        return Order(picture, options)

    def _encode(self, answer: Answer[Captioned]) -> bytes:
        return _json(self._record(answer))

    def _encode_all(self, found: Sequence[Answer[Captioned] | BaseException]) -> bytes:
        """Several pictures: each has an answer or a problem. What is wrong with the request itself is raised."""
        results: list[dict[str, Any]] = []
        for one in found:
            if isinstance(one, Problem):
                results.append({"answer": None, "problem": one.content()})
            elif isinstance(one, BaseException):
                raise one
            else:
                results.append({"answer": self._record(one), "problem": None})
        return _json({"results": results})

    def _record(self, answer: Answer[Captioned]) -> dict[str, Any]:
        picture = answer.result.order.picture
        return {
            **caption_record(answer.result.caption),
            "image": {"width": picture.width, "height": picture.height},
            "model": self._settings.model_name,
            "seconds": {"queue": round(answer.queued, 4), "model": round(answer.worked, 4)},
        }

    def _busy(self, *, heavy: bool) -> Problem:
        """Ask the client to come back when those who wait now are served."""
        seconds = min(60, max(1, math.ceil(self.batcher.seconds_to_wait(heavy=heavy))))
        detail = "too many requests with costly options are waiting" if heavy else "too many requests are waiting"
        return Problem("busy", detail, {"Retry-After": str(seconds)})

    def _count_batch(self, size: int, seconds: float) -> None:
        self.metrics.batch_size.observe(size)
        self.metrics.model_seconds.observe(seconds)


def _json(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


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
