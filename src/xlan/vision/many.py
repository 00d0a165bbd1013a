"""Many pictures → regions: opened ahead by a few threads, extracted in batches, memory flat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from xlan.ahead import map_ahead
from xlan.errors import ImageError
from xlan.types import Regions
from xlan.vision.regions import PreparedImage, RegionExtractor

T = TypeVar("T")


def extract_many(
    extractor: RegionExtractor,
    pictures: Iterable[T],
    prepare: Callable[[T], PreparedImage],
    *,
    name: Callable[[T], str],
    batch: int,
    threads: int,
) -> Iterator[list[tuple[T, Regions | ImageError]]]:
    """The regions of each picture, or what is wrong with it, in order; one that fails does not stop the others.

    Args:
        extractor: makes the regions.
        pictures: whatever `prepare` takes.
        prepare: opens one; runs in several threads.
        name: what errors of the extractor call a picture.
        batch: pictures per call of the extractor, and per list.
        threads: threads that open pictures.
    """

    def work(picture: T) -> tuple[T, PreparedImage | ImageError]:
        try:
            return picture, prepare(picture)
        except ImageError as error:
            return picture, error

    def regions(ready: Sequence[tuple[T, PreparedImage | ImageError]]) -> list[tuple[T, Regions | ImageError]]:
        good = [(name(picture), image) for picture, image in ready if not isinstance(image, ImageError)]
        found = iter(_regions_or_errors(extractor, good))
        return [(picture, image if isinstance(image, ImageError) else next(found)) for picture, image in ready]

    ready: list[tuple[T, PreparedImage | ImageError]] = []
    for item in map_ahead(work, pictures, threads=threads, ahead=2 * batch):
        ready.append(item)
        if len(ready) == batch:
            yield regions(ready)
            ready = []
    if ready:
        yield regions(ready)


def _regions_or_errors(
    extractor: RegionExtractor, images: Sequence[tuple[str, PreparedImage]]
) -> list[Regions | ImageError]:
    """Regions of each image; where a batch fails, of each one alone, so that only the bad one is lost."""
    try:
        return list(extractor.extract([image for _, image in images])) if images else []
    except ImageError as error:
        if len(images) == 1:
            return [ImageError(f"{images[0][0]}: {error}")]
        return [found for one in images for found in _regions_or_errors(extractor, [one])]
