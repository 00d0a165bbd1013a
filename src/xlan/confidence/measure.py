"""How well confidences hold on pictures whose captions are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xlan.confidence.calibration import Reliability, ranks, reliability
from xlan.confidence.evidence import Evidence
from xlan.errors import DataError
from xlan.text.content import content_words, fold, is_content
from xlan.text.tokenize import tokenize
from xlan.types import Caption


@dataclass(frozen=True)
class Answer:
    """A caption, what is known about it, and what people said.

    Attributes:
        caption: with the confidences of a `Judge`.
        evidence: about it.
        used: for each of its content words, whether people used it for the picture too.
    """

    caption: Caption
    evidence: Evidence
    used: tuple[bool, ...]

    @property
    def share(self) -> float:
        """The share of content words that people used too; 0 for a caption that has none."""
        return sum(self.used) / len(self.used) if self.used else 0.0


def used_by_people(caption: Caption, references: Sequence[str]) -> tuple[bool, ...]:
    """For each content word of a caption, whether one of the references has it, in singular or plural."""
    said = {word for reference in references for word in content_words(tokenize(reference))}
    return tuple(fold(word.text) in said for word in caption.words if is_content(word.text))


@dataclass(frozen=True)
class Measured:
    """How well confidences hold.

    Attributes:
        captions: confidence of captions against the share of their content words that people used.
        words: confidence of content words against whether people used them.
        rank: rank correlation of caption confidence with another score of each caption, such as CIDEr.
    """

    captions: Reliability
    words: Reliability
    rank: float


def measure(answers: Sequence[Answer], scores: Sequence[float]) -> Measured:
    """Compare what was said with what came true.

    Raises:
        DataError: the words have no confidence of their own, because the model is not calibrated.
    """
    said, true = [], []
    for answer in answers:
        chances = [word.confidence for word in answer.caption.words if is_content(word.text)]
        for chance, used in zip(chances, answer.used, strict=True):
            if chance is None:
                raise DataError("the model is not calibrated: fit it first (`xlan confidence fit`)")
            said.append(chance)
            true.append(float(used))
    confidences = [answer.caption.confidence for answer in answers]
    return Measured(
        captions=reliability(confidences, [answer.share for answer in answers]),
        words=reliability(said, true),
        rank=rank_correlation(confidences, scores),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks, equal values sharing theirs; 0 when one side does not vary."""
    if len(first) != len(second) or len(first) < 2:
        raise DataError(f"expected two lists of the same length, at least 2, got {len(first)} and {len(second)}")
    a, b = ranks(first), ranks(second)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
