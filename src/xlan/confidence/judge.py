"""Captions → the same captions with confidences that can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xlan.confidence.calibration import Calibration
from xlan.confidence.evidence import Evidence, Sight, Witness
from xlan.types import Caption, Word


class Judge:
    """Says how much captions can be trusted.

    Args:
        witness: gathers what is known about a caption.
        calibration: turns it into chances; without one, the confidence of a caption (the mean probability of its words)
            is only lowered for pictures unlike those of training, which says less.
    """

    def __init__(self, witness: Witness | None = None, calibration: Calibration | None = None) -> None:
        self.witness = witness if witness is not None else Witness()
        self.calibration = calibration

    def judge(self, caption: Caption, sight: Sight) -> Caption:
        """The caption and its `others` with their confidences, and those of their content words.

        Args:
            caption: of a picture.
            sight: what the vision network sees in it (`Witness.look`).
        """
        everything = (caption, *caption.others)
        judged = [
            self._one(one, [other.words for j, other in enumerate(everything) if j != i], sight)
            for i, one in enumerate(everything)
        ]
        return replace(judged[0], others=tuple(judged[1:]))

    def evidence(self, caption: Caption, sight: Sight) -> Evidence:
        """What is known about a caption, given its `others`."""
        return self.witness.evidence(caption.words, [other.words for other in caption.others], sight)

    def _one(self, caption: Caption, others: Sequence[Sequence[Word]], sight: Sight) -> Caption:
        if self.calibration is None:
            return replace(caption, confidence=sight.familiarity * caption.confidence)
        known = self.witness.evidence(caption.words, others, sight)
        chances = dict(zip(known.places, self.calibration.words(known).tolist(), strict=True))
        words = tuple(replace(word, confidence=chances.get(place)) for place, word in enumerate(caption.words))
        return replace(caption, words=words, confidence=self.calibration.share(known))
