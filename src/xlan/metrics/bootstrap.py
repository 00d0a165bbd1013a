"""Is one model better than another, or is the difference chance? A paired bootstrap over images.

Images are resampled with replacement, the same sample for both models, and both are scored on it (Koehn, 2004).
BLEU and METEOR are computed from the summed counts of the drawn images; the other scores are averages over images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xlan.errors import MetricError
from xlan.metrics.coco import ImageId
from xlan.metrics.report import Report

Floats = npt.NDArray[np.float64]
_AT_ONCE = 64


@dataclass(frozen=True)
class Comparison:
    """Two sets of captions by one metric.

    Attributes:
        name: the metric.
        first: score of the first set, None when it was not computed.
        second: score of the second set, None when it was not computed.
        low: lower end of the interval of `second − first`.
        high: upper end of it.
        p_value: probability of a difference at least this large if both models are equally good, two-sided.
        reason: why there is nothing to compare, or empty.
    """

    name: str
    first: float | None
    second: float | None
    low: float = float("nan")
    high: float = float("nan")
    p_value: float = float("nan")
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """`second − first`, None when one of them was not computed."""
        return None if self.first is None or self.second is None else self.second - self.first


class ImageDifference(NamedTuple):
    """An image on which two captions score differently."""

    image: ImageId
    first_caption: str
    second_caption: str
    first: float
    second: float


def compare(
    first: Report, second: Report, *, samples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> list[Comparison]:
    """Compare two reports on the same images, metric by metric.

    Args:
        first: scores of the first set of captions.
        second: scores of the second set; differences are second − first.
        samples: how many times to draw.
        seed: of the draws; the same seed gives the same answer.
        confidence: coverage of the interval.

    Raises:
        MetricError: the reports are of different images, or a number is out of range.
    """
    return compare_groups([first], [second], samples=samples, seed=seed, confidence=confidence)


def compare_groups(
    first: Sequence[Report],
    second: Sequence[Report],
    *,
    samples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
) -> list[Comparison]:
    """Compare two models that were trained several times each: scores are means over the reports of a group.

    Raises:
        MetricError: a group is empty, the reports are of different images, or a number is out of range.
    """
    if not first or not second:
        raise MetricError("a comparison needs at least one set of captions on each side")
    if any(report.images != first[0].images for report in (*first, *second)):
        raise MetricError("both sets must caption the same images")
    if samples < 10 or not 0 < confidence < 1:
        raise MetricError(f"expected at least 10 samples and a confidence between 0 and 1, got {samples}, {confidence}")
    names = [name for name in first[0].scores if all(name in report.scores for report in (*first, *second))]
    drawn = _differences(first, second, names, samples, seed)
    return [_summarise(first, second, name, drawn.get(name), confidence) for name in names]


def largest_differences(first: Report, second: Report, *, metric: str, count: int) -> list[ImageDifference]:
    """The images on which the two sets differ most by a metric, most different first."""
    a, b = first.scores[metric].images, second.scores[metric].images
    if a is None or b is None:
        return []
    order = np.argsort(-np.abs(b - a), kind="stable")[:count]
    return [
        ImageDifference(first.images[i], first.captions[i], second.captions[i], float(a[i]), float(b[i]))
        for i in order
        if a[i] != b[i]
    ]


def _draws(images: int, samples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """How often each image is drawn in each sample, `[I, S]` for a few samples at a time."""
    random = np.random.default_rng(seed)
    for start in range(0, samples, _AT_ONCE):
        several = min(_AT_ONCE, samples - start)
        picked = random.integers(0, images, size=(several, images)) + np.arange(several)[:, None] * images
        yield np.bincount(picked.ravel(), minlength=several * images).reshape(several, images).T


def _differences(
    first: Sequence[Report], second: Sequence[Report], names: list[str], samples: int, seed: int
) -> dict[str, Floats]:
    """`second − first` of every sample, by metric."""
    images = len(first[0].images)
    sides = {name: (_Resampled(first, name), _Resampled(second, name)) for name in names}
    known = {name: (a, b) for name, (a, b) in sides.items() if a.known and b.known}
    found: dict[str, list[Floats]] = {name: [] for name in known}
    for weights in _draws(images, samples, seed):
        for name, (a, b) in known.items():
            found[name].append(b.scores(weights) - a.scores(weights))
    return {name: np.concatenate(rows) for name, rows in found.items()}


class _Resampled:
    """One score of a group of reports, on samples of the images: the mean over the reports."""

    def __init__(self, group: Sequence[Report], name: str) -> None:
        scores = [report.scores[name] for report in group]
        images = [score.images for score in scores if score.images is not None]
        self.known = len(images) == len(scores)
        self._sums = [score.resample for score in scores if score.resample is not None]
        self._images = np.mean(images, axis=0) if self.known and not self._sums else None

    def scores(self, weights: npt.NDArray[np.int64]) -> Floats:
        """`[S]` scores of the samples that hold the images `weights` `[I, S]` times."""
        if self._images is not None:
            return np.asarray(self._images @ weights / len(weights))
        return np.asarray(np.mean([score(weights) for score in self._sums], axis=0))


def _mean_score(group: Sequence[Report], name: str) -> float | None:
    values = [report.scores[name].value for report in group]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _summarise(
    first: Sequence[Report], second: Sequence[Report], name: str, drawn: Floats | None, confidence: float
) -> Comparison:
    a, b = _mean_score(first, name), _mean_score(second, name)
    if drawn is None:
        reasons = [report.scores[name].reason for report in (*first, *second)]
        return Comparison(name, a, b, reason=next(filter(None, reasons), ""))
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    # The observed difference counts as one draw, so that no finite number of draws gives a p-value of 0.
    sided = (min(int((drawn <= 0).sum()), int((drawn >= 0).sum())) + 1) / (drawn.size + 1)
    return Comparison(name, a, b, float(low), float(high), min(1.0, 2 * sided))
