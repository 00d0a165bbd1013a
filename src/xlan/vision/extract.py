"""Many pictures → a feature store: decoded ahead by a few threads, extracted in batches, memory flat.

A picture that cannot be used is reported and skipped. An interrupted run resumes, because the store knows which ids it
already has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from xlan.errors import ImageError
from xlan.vision.image import DEFAULT_LIMITS, ImageLimits, open_image
from xlan.vision.many import extract_many
from xlan.vision.regions import PreparedImage, RegionExtractor
from xlan.vision.store import FeatureStoreWriter, is_text


class Readable(Protocol):
    """A picture that can be read when it is needed, such as `xlan.vision.sources.Picture`."""

    @property
    def id(self) -> str:
        """The id its features get."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def read(self, limits: ImageLimits) -> bytes:
        """Its bytes, at most one more than the limit allows; raises `ImageError`."""


@dataclass
class ExtractReport:
    """What happened.

    Attributes:
        written: pictures whose features were added.
        present: pictures that were already in the store.
        bad: a line for every picture that was skipped, beginning with its name.
        seconds: time spent on `written` and `bad`.
    """

    written: int = 0
    present: int = 0
    bad: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def images_per_second(self) -> float:
        """Pictures handled per second, 0 when there was nothing to do."""
        handled = self.written + len(self.bad)
        return handled / self.seconds if handled and self.seconds > 0 else 0.0


def extract_to_store(
    extractor: RegionExtractor,
    pictures: Sequence[Readable],
    writer: FeatureStoreWriter,
    *,
    batch: int = 16,
    threads: int = 2,
    limits: ImageLimits = DEFAULT_LIMITS,
    on_progress: Callable[[ExtractReport], None] | None = None,
) -> ExtractReport:
    """Extract the pictures the store does not have yet, and add them.

    Args:
        extractor: makes the regions.
        pictures: what to extract; ids name the features in the store.
        writer: an open store; the caller closes it.
        batch: pictures per call of the extractor.
        threads: decoding threads.
        limits: what to refuse.
        on_progress: called after every batch.
    """
    report, began = ExtractReport(), time.monotonic()
    todo = [picture for picture in pictures if picture.id not in writer]
    report.present = len(pictures) - len(todo)
    for picture in todo:
        if not is_text(picture.id):
            report.bad.append(f"{picture.name}: its name is not Unicode text (an old encoding?); rename it")
    todo = [picture for picture in todo if is_text(picture.id)]

    def prepare(picture: Readable) -> PreparedImage:
        image = open_image(picture.read(limits), limits=limits, min_side=extractor.min_side, name=picture.name)
        return extractor.prepare(image)

    for part in extract_many(extractor, todo, prepare, name=lambda one: one.name, batch=batch, threads=threads):
        for picture, found in part:
            if isinstance(found, ImageError):
                report.bad.append(str(found))
            else:
                writer.add(picture.id, found)
                report.written += 1
        report.seconds = time.monotonic() - began
        if on_progress is not None:
            on_progress(report)
    report.seconds = time.monotonic() - began
    return report
