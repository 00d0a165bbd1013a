"""Evidence → chances that can be trusted: a logistic model, then a monotone correction, both fitted on validation.

A word's confidence is the chance that people use it for that picture too; a caption's is the expected share of its
content words that they do. `confidence.json` in a model directory holds the fitted numbers.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.confidence.evidence import CAPTION_FEATURES, WORD_FEATURES, Evidence
from xlan.errors import DataError, ModelError
from xlan.files import read_json, write_text

FORMAT = 1
MAX_BYTES = 1 << 20
FEWEST = 200  # captions to fit on
BY_SCORE = 0.7  # how much the order of captions is by score, the rest by the share of right words
_STEPS = 30  # of the monotone correction
_RIDGE = 1.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A logistic model of some features and the monotone correction of its output.

    Attributes:
        weights: one per feature.
        raw: outputs of the logistic model, rising.
        true: what they stand for, never falling; in between, straight lines.
    """

    weights: tuple[float, ...]
    raw: tuple[float, ...]
    true: tuple[float, ...]

    def logits(self, features: Floats) -> Floats:
        """`[K, F]` → `[K]` log-odds before the correction."""
        return np.asarray(features @ np.asarray(self.weights), dtype=np.float64)

    def __call__(self, features: Floats) -> Floats:
        """`[K, F]` → `[K]` chances."""
        return np.interp(_sigmoid(self.logits(features)), self.raw, self.true)


@dataclass(frozen=True)
class Calibration:
    """The fitted numbers of a model.

    Attributes:
        word: for content words.
        caption: for whole captions.
        fitted_on: how many captions they come from.
    """

    word: Curve
    caption: Curve
    fitted_on: int

    def words(self, evidence: Evidence) -> Floats:
        """`[K]`: for each content word, the chance that people use it for this picture too."""
        return self.word(evidence.words)

    def share(self, evidence: Evidence) -> float:
        """The expected share of the caption's content words that people use too."""
        return float(self.caption(_caption_features(self.word, evidence)[None])[0])

    @classmethod
    def fit(
        cls, evidence: Sequence[Evidence], used: Sequence[Sequence[bool]], scores: Sequence[float] | None = None
    ) -> Calibration:
        """From captions and, for each content word of each, whether people used it for that picture.

        Args:
            evidence: about each caption.
            used: for each of its content words, whether people used it.
            scores: another score of each caption, such as CIDEr. The share of right words is a coarse measure: one dull
                right word and a whole right sentence have the same. With scores, captions are put in order by an
                estimate of both, of which the rank by score makes up `BY_SCORE`; the confidence is still the share of
                right words that is true of captions at that place of the order.

        Raises:
            DataError: too few captions, or answers that are not one per content word.
        """
        if len(evidence) != len(used) or any(len(e.places) != len(u) for e, u in zip(evidence, used, strict=False)):
            raise DataError("expected one answer for every content word of every caption")
        if scores is not None and len(scores) != len(evidence):
            raise DataError(f"expected one score for every caption, {len(evidence)}, got {len(scores)}")
        chosen = [i for i, known in enumerate(evidence) if known.places]
        if len(chosen) < FEWEST:
            raise DataError(f"expected at least {FEWEST} captions with content words to fit on, got {len(chosen)}")
        words = _fit(
            np.concatenate([evidence[i].words for i in chosen]),
            np.concatenate([np.asarray(used[i], dtype=np.float64) for i in chosen]),
        )
        share = np.asarray([np.mean(used[i]) for i in chosen], dtype=np.float64)
        good = share
        if scores is not None:
            good = (1 - BY_SCORE) * share + BY_SCORE * ranks([scores[i] for i in chosen]) / len(chosen)
        captions = _fit(np.stack([_caption_features(words, evidence[i]) for i in chosen]), share, order_by=good)
        return cls(words, captions, len(chosen))

    def to_bytes(self) -> bytes:
        """The content of `confidence.json`."""
        features = {"word": WORD_FEATURES, "caption": CAPTION_FEATURES}
        return json.dumps({"format": FORMAT, "features": features, **asdict(self)}).encode() + b"\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `confidence.json`, atomically."""
        write_text(path, self.to_bytes().decode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read what `save` wrote.

        Raises:
            ModelError: of another format, or values that cannot be used.
        """
        source = Path(path)
        value = read_json(source, max_bytes=MAX_BYTES)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            got = value.get("format") if isinstance(value, dict) else type(value).__name__
            raise ModelError(f"{source}: expected a calibration of format {FORMAT}, got {got!r}; fit it again")
        known = {"word": list(WORD_FEATURES), "caption": list(CAPTION_FEATURES)}
        if value.get("features") != known:
            raise ModelError(f"{source}: was fitted on other evidence than this version uses; fit it again")
        count = value.get("fitted_on")
        if type(count) is not int or count < 0:
            raise ModelError(f"{source}: 'fitted_on' must be a number of captions, got {count!r}")
        curves = [_curve(source, name, value.get(name), len(known[name])) for name in ("word", "caption")]
        return cls(curves[0], curves[1], count)


def _curve(source: Path, name: str, value: Any, features: int) -> Curve:
    lists = [value.get(key) if isinstance(value, dict) else None for key in ("weights", "raw", "true")]
    for numbers in lists:
        if not isinstance(numbers, list) or not numbers or len(numbers) > 1000:
            raise ModelError(f"{source}: {name!r} needs lists of numbers 'weights', 'raw' and 'true'")
        if not all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
            raise ModelError(f"{source}: {name!r} has a value that is not a usable number")
    weights, raw, true = (tuple(float(n) for n in numbers) for numbers in lists if numbers is not None)
    rising = all(a < b for a, b in itertools.pairwise(raw))
    never_falling = all(a <= b for a, b in itertools.pairwise(true))
    if len(weights) != features or len(raw) != len(true) or not rising or not never_falling:
        raise ModelError(f"{source}: {name!r} needs {features} weights and a curve that never falls")
    if not 0 <= true[0] <= true[-1] <= 1:
        raise ModelError(f"{source}: {name!r} has chances outside 0 to 1")
    return Curve(weights, raw, true)


def _caption_features(word: Curve, evidence: Evidence) -> Floats:
    """`[len(CAPTION_FEATURES)]`; a caption without content words counts as one doubtful word."""
    chances = np.clip(word(evidence.words), 0.01, 0.99) if evidence.places else np.full(1, 0.1)
    logits = np.log(chances / (1 - chances))
    return np.array([1.0, logits.mean(), logits.min(), *evidence.caption], dtype=np.float64)


def _fit(features: Floats, target: Floats, *, order_by: Floats | None = None) -> Curve:
    """A logistic model of `order_by`, or of the target itself, and the correction that makes it the target's."""
    weights = _logistic(features, target if order_by is None else order_by)
    raw, true = _monotone(_sigmoid(features @ weights), target)
    return Curve(tuple(weights.tolist()), tuple(raw.tolist()), tuple(true.tolist()))


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))), dtype=np.float64)


def _logistic(features: Floats, target: Floats) -> Floats:
    """Weights of a logistic regression (targets may be fractions), by Newton's method with a little shrinkage."""
    weights = np.zeros(features.shape[1])
    shrink = np.full(features.shape[1], _RIDGE)
    shrink[0] = 1e-6  # the constant is free
    for _ in range(50):
        chance = _sigmoid(features @ weights)
        gradient = features.T @ (chance - target) + shrink * weights
        curvature = (features * (chance * (1 - chance))[:, None]).T @ features + np.diag(shrink)
        step = np.linalg.solve(curvature, gradient)
        weights -= step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def _monotone(raw: Floats, target: Floats) -> tuple[Floats, Floats]:
    """A curve from the means of equally filled steps, neighbours that fall being joined (pool adjacent violators)."""
    order = np.argsort(raw, kind="stable")
    blocks: list[tuple[float, float, int]] = []  # sum of raw, sum of target, count
    for part in np.array_split(order, min(_STEPS, len(order))):
        blocks.append((float(raw[part].sum()), float(target[part].sum()), len(part)))
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][2] >= blocks[-1][1] / blocks[-1][2]:
            last, before = blocks.pop(), blocks.pop()
            blocks.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    points = [(raws / count, truths / count) for raws, truths, count in blocks]
    # Ends: nothing is certain, and what lies beyond the outermost steps continues towards 0 and 1.
    ends = [(0.0, points[0][1] * 0.1), *points, (1.0, 1 - (1 - points[-1][1]) * 0.5)]
    xs, ys = zip(*((x, y) for i, (x, y) in enumerate(ends) if i == 0 or x > ends[i - 1][0]), strict=True)
    return np.asarray(xs), np.maximum.accumulate(np.asarray(ys))


def ranks(values: Sequence[float]) -> Floats:
    """Place of each value in the order of all, from 1; equal values share theirs."""
    array = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)


@dataclass(frozen=True)
class Reliability:
    """What was said and what came true, in bins of equal count.

    Attributes:
        said: mean confidence of each bin.
        true: mean outcome of each bin.
        count: how many in each bin.
        error: expected calibration error: the mean distance of the two.
    """

    said: tuple[float, ...]
    true: tuple[float, ...]
    count: tuple[int, ...]
    error: float


def reliability(said: Sequence[float], true: Sequence[float], *, bins: int = 10) -> Reliability:
    """Compare confidences with outcomes (0 to 1)."""
    if len(said) != len(true) or len(said) < bins:
        raise DataError(f"expected at least {bins} pairs of confidence and outcome, got {len(said)} and {len(true)}")
    s, t = np.asarray(said, dtype=np.float64), np.asarray(true, dtype=np.float64)
    parts = np.array_split(np.argsort(s, kind="stable"), bins)
    means = [(float(s[part].mean()), float(t[part].mean()), len(part)) for part in parts]
    error = sum(count * abs(a - b) for a, b, count in means) / len(s)
    return Reliability(tuple(m[0] for m in means), tuple(m[1] for m in means), tuple(m[2] for m in means), error)
