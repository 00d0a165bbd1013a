"""What is known about a caption's words, besides that the model said them.

For each content word: how likely the captioner found it, whether its other captions of the picture use it too, what the
vision network thinks of it by itself, and how familiar the picture looks. None of it needs another pass of a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlan.text.content import content_words, fold, is_content
from xlan.types import Regions
from xlan.vision.familiar import Familiar
from xlan.vision.words import WordHead

Floats = npt.NDArray[np.float64]

WORD_FEATURES = (
    "constant",
    "log_probability",
    "log_probability_low",
    "caption_log_probability",
    "in_other_captions",
    "seen_known",
    "seen",
    "seen_low",
    "seen_high",
    "log_familiarity",
)
CAPTION_FEATURES = ("constant", "mean_logit", "lowest_logit", "caption_log_probability", "log_familiarity")


@dataclass(frozen=True)
class Spoken:
    """One caption as it was decoded.

    Attributes:
        words: its words.
        log_probs: natural log-probability of each at its place.
    """

    words: tuple[str, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True)
class Evidence:
    """What is known about one caption.

    Attributes:
        places: which of its words are content words.
        words: `[K, len(WORD_FEATURES)]`, a row for each of them.
        caption: what is known about the whole: mean log-probability of its words, log of familiarity.
    """

    places: tuple[int, ...]
    words: Floats
    caption: tuple[float, float]


class Witness:
    """Gathers evidence with what a model directory has: a word head, examples of training pictures, or neither."""

    def __init__(self, head: WordHead | None = None, familiar: Familiar | None = None) -> None:
        self.head, self.familiar = head, familiar
        self._outputs: dict[str, list[int]] = {}
        for number, word in enumerate(() if head is None else head.words):
            self._outputs.setdefault(fold(word), []).append(number)

    def evidence(self, spoken: Spoken, others: Sequence[Spoken], regions: Regions) -> Evidence:
        """About one caption of a picture with these regions; `others` are the model's further captions of it."""
        places = tuple(place for place, word in enumerate(spoken.words) if is_content(word))
        familiarity = 1.0 if self.familiar is None else self.familiar.familiarity(regions.features)
        log_familiarity = float(np.log(max(familiarity, 1e-3)))
        mean = float(np.clip(np.mean(spoken.log_probs[: len(spoken.words)] or [-8.0]), -8.0, 0.0))
        elsewhere = [set(content_words(other.words)) for other in others]
        seen = self._seen([fold(spoken.words[place]) for place in places], regions)
        rows = []
        for place in places:
            word = fold(spoken.words[place])
            log_prob = float(np.clip(spoken.log_probs[place], -8.0, 0.0))
            agreeing = sum(word in words for words in elsewhere) / len(elsewhere) if elsewhere else 0.5
            logit = float(np.clip(seen.get(word, 0.0), -9.0, 5.0))
            rows.append(
                [
                    1.0,
                    log_prob,
                    min(0.0, log_prob + 1.0),
                    mean,
                    agreeing,
                    float(word in seen),
                    logit,
                    min(0.0, logit + 3.0) if word in seen else 0.0,
                    max(0.0, logit) if word in seen else 0.0,
                    log_familiarity,
                ]
            )
        table = np.asarray(rows, dtype=np.float64).reshape(len(places), len(WORD_FEATURES))
        return Evidence(places, table, (mean, log_familiarity))

    def _seen(self, words: Sequence[str], regions: Regions) -> dict[str, float]:
        """The vision network's log-odds of those words that it can name; singular and plural: the likelier one."""
        named = sorted({word for word in words if word in self._outputs})
        if self.head is None or not named:
            return {}
        outputs = [output for word in named for output in self._outputs[word]]
        logits = dict(zip(outputs, self.head.logits(regions, outputs).tolist(), strict=True))
        return {word: max(logits[output] for output in self._outputs[word]) for word in named}
