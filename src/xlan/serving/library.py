"""A folder of photos behind the API: searched by sentence, shown as small pictures.

Only photos of the index are shown, by keys that tell nothing of their paths, and always encoded anew: no byte of a file
leaves the server as it is. Searches take turns in one thread, which shares a search among the lanes of the model; small
pictures are made by two. What waits too long, or in too long a queue, is refused. A further thread keeps the index up
to date, see `keeping`; a search ends with the photos that it began with.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.datastructures import QueryParams

from xlan.errors import ImageError, SearchError
from xlan.pages.layout import small_jpeg
from xlan.search import Answer, PhotoSearch
from xlan.search.words import QueryError
from xlan.serving.keeping import LibraryKeeper
from xlan.serving.problems import Problem
from xlan.serving.service import Service
from xlan.serving.settings import ServeSettings
from xlan.vision.image import open_image

MAX_FOUND = 100
DEFAULT_FOUND = 20
_SIDE = 480  # pixels of a small picture
_OPTIONS = ("q", "count")

_log = logging.getLogger("xlan.serving")
T = TypeVar("T")


class _Line:
    """Threads with a queue that has an end."""

    def __init__(self, name: str, threads: int, settings: ServeSettings) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._settings = settings
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, computed by a thread.

        Raises:
            Problem: too many are waiting, or it takes too long.
        """
        if self._waiting >= self._settings.queue:
            raise Problem("busy", "too many requests are waiting", {"Retry-After": "2"})
        loop = asyncio.get_running_loop()
        self._waiting += 1
        begun: Future[T] = self._threads.submit(work)
        begun.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave))  # also when nobody waits any more
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await asyncio.wrap_future(begun)
        except TimeoutError:
            raise Problem("time", f"there was no answer within {self._settings.timeout:g} seconds") from None

    def _leave(self) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)


class LibraryService:
    """Answers searches.

    Args:
        photos: the folder, with its index.
        service: the one that captions; searches count among its requests.
        settings: limits and sizes.
    """

    def __init__(self, photos: PhotoSearch, service: Service, settings: ServeSettings) -> None:
        self._photos, self._service, self._settings = photos, service, settings
        self._searching = _Line("xlan-search", 1, settings)
        self._drawing = _Line("xlan-photo", 2, settings)
        self._keeper = LibraryKeeper(photos, rescan=settings.rescan, busy=lambda: service.in_progress > 0)

    def start(self) -> None:
        """Begin to follow the folder and the index."""
        self._keeper.start()

    async def search(self, given: QueryParams) -> bytes:
        """The answer to a search, as JSON.

        Raises:
            Problem: why there is none.
        """
        sentence, count = _options(given)
        with self._service.accepted():
            try:
                answer = await self._searching.run(lambda: self._photos.search(sentence, count=count))
            except QueryError as error:
                raise Problem("unusable-options", str(error).replace("query: ", "q: ", 1)) from None
            except SearchError as error:
                _log.error("library: %s", error)
                raise Problem("failure", "the index of the library is damaged; see the log of the server") from None
            return json.dumps(_record(answer), ensure_ascii=True, separators=(",", ":")).encode("ascii")

    async def photo(self, key: str) -> bytes:
        """A photo as a small JPEG.

        Raises:
            Problem: there is no such photo, or it cannot be read any more.
        """

        def draw() -> bytes:
            path = self._photos.photo(key)
            if path is None:
                raise Problem("not-found", "the library has no such photo; it may have been removed")
            return small_jpeg(open_image(path, limits=self._settings.limits, min_side=_SIDE, name="photo"), side=_SIDE)

        with self._service.accepted():
            try:
                return await self._drawing.run(draw)
            except ImageError:
                raise Problem("not-found", "this photo was removed or cannot be read") from None

    def close(self) -> None:
        """End the threads; nothing may be in progress any more."""
        self._keeper.close()
        self._searching.close()
        self._drawing.close()


def _options(given: QueryParams) -> tuple[str, int]:
    for name, _ in given.multi_items():
        if name not in _OPTIONS:
            raise Problem("bad-option", f"{name[:60]!r}: no such option; there are {', '.join(_OPTIONS)}")
        if len(given.getlist(name)) > 1:
            raise Problem("bad-request", f"{name!r}: given more than once")
    count = given.get("count", str(DEFAULT_FOUND))
    if not (count.isascii() and count.isdecimal() and len(count) <= 3 and 1 <= int(count) <= MAX_FOUND):
        raise Problem("bad-option", f"count: expected a whole number from 1 to {MAX_FOUND}, got {count[:20]!r}")
    if "q" not in given:
        raise Problem("bad-option", "q: expected a sentence, as in ?q=a+dog+on+the+beach")
    return given["q"], int(count)


def _record(answer: Answer) -> dict[str, Any]:
    return {
        "query": answer.query.text,
        "unknown": [{"word": one.word, "nearest": list(one.nearest)} for one in answer.query.unknown],
        "photos": answer.photos,
        "seconds": round(answer.seconds, 4),
        "found": [
            {
                "photo": one.key,
                "name": one.name.encode("utf-8", "replace").decode(),
                "score": round(one.score, 4),
                "caption": one.caption,
                "words": [{"word": word, "score": round(value, 4)} for word, value in one.words],
            }
            for one in answer.found
        ],
    }
