"""The detections of one picture, and the interface of every detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xlan.types import Regions, Thing
from xlan.vision.regions import PreparedImage, RegionExtractor

_SURE = 0.1  # attributes are many and similar, so even a correct one has a low score; below this it is a guess


@dataclass(frozen=True)
class Detections:
    """Regions of one picture with names.

    Attributes:
        regions: features, boxes (fractions of the picture) and scores.
        classes: `[N]` numbers of the objects' names; -1 for a region that is no detection but the whole image.
        names: `N` names of the objects.
        attributes: `N` names of attributes ("red", "standing"); None where the detector has none.
        attribute_scores: `[N]`; None where the detector has none.
    """

    regions: Regions
    classes: npt.NDArray[np.int64]
    names: tuple[str, ...]
    attributes: tuple[str, ...] | None = None
    attribute_scores: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.regions)

    def things(self) -> tuple[Thing, ...]:
        """The detected things; empty where the only region is the whole image."""
        scores = self.regions.scores
        return tuple(
            Thing(
                name,
                (box[0], box[1], box[2], box[3]),
                1.0 if scores is None else min(1.0, max(0.0, float(scores[i]))),
                self._attribute(i),
            )
            for i, (name, box) in enumerate(zip(self.names, self.regions.boxes.tolist(), strict=True))
            if self.classes[i] >= 0
        )

    def named(self) -> Regions:
        """The regions, each with its thing."""
        numbers = np.where(self.classes >= 0, np.cumsum(self.classes >= 0) - 1, -1)
        return replace(self.regions, things=self.things(), thing_of=numbers.astype(np.int64))

    def _attribute(self, i: int) -> str:
        if self.attributes is None or self.attribute_scores is None or self.attribute_scores[i] < _SURE:
            return ""
        return self.attributes[i]

    def records(self) -> list[dict[str, Any]]:
        """One JSON-ready object per region: name, score, box as fractions and, where known, attribute."""
        scores = self.regions.scores
        result: list[dict[str, Any]] = []
        for i, (name, box) in enumerate(zip(self.names, self.regions.boxes.tolist(), strict=True)):
            record: dict[str, Any] = {"name": name, "box": [round(value, 5) for value in box]}
            if scores is not None:
                record["score"] = round(float(scores[i]), 5)
            if self.attributes is not None and self.attribute_scores is not None:
                record["attribute"] = self.attributes[i]
                record["attribute_score"] = round(float(self.attribute_scores[i]), 5)
            result.append(record)
        return result


def selected(found: Detections, index: npt.NDArray[np.int64]) -> Detections:
    """Some of the detections, in the order of `index`."""
    regions = found.regions
    chosen = Regions(
        regions.features[index],
        regions.boxes[index],
        None if regions.scores is None else regions.scores[index],
        width=regions.width,
        height=regions.height,
    )
    numbers = index.tolist()
    return Detections(
        chosen,
        found.classes[index],
        tuple(found.names[i] for i in numbers),
        None if found.attributes is None else tuple(found.attributes[i] for i in numbers),
        None if found.attribute_scores is None else found.attribute_scores[index],
    )


class Detector(RegionExtractor, Protocol):
    """An extractor whose regions have names."""

    def detect(self, images: Sequence[PreparedImage]) -> list[Detections]:
        """Named regions of each image, in order."""


def name_of(names: Sequence[str], number: int, what: str) -> str:
    """The name with a number; `object 17` where no names are known."""
    return names[number] if number < len(names) else f"{what} {number}"
