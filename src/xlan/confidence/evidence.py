"""What is known about a caption's words, besides that the model said them.

For each content word: how likely the captioner found it, whether its other captions of the picture use it too, what the
vision network thinks of it by itself, and how familiar the picture looks. For the caption as a whole also: how much of
what the vision network sees it names. None of it needs another pass of a network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xlan.errors import ModelError
from xlan.text.content import content_words, fold, is_content
from xlan.types import Regions, Word
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
CAPTION_FEATURES = (
    "constant",
    "mean_logit",
    "lowest_logit",
    "caption_log_probability",
    "log_familiarity",
    "coverage",
    "rare_coverage",
    "doubt",
    "clearness",
)
NAMING = 30.0  # what naming everything that the vision network expects adds to a caption's log-probability
LEAST_DOUBT = 0.01  # no probability is nearer to 1 than this
CLEARLY_SEEN = 15  # words that the vision network finds likeliest, by which a picture is clear or not


class WholeCaption(NamedTuple):
    """What is known about a caption as a whole, besides its words one by one.

    Attributes:
        log_probability: mean log-probability of its words.
        log_familiarity: how much the picture looks like those of training.
        coverage: the share that it names of the words the vision network expects.
        rare_coverage: the same with rare words counting more, as they do in CIDEr.
        doubt: mean over its content words of the log of what is missing from a probability of 1. A model after
            self-critical training is nearly sure of all its words; how nearly still tells.
        clearness: how sure the vision network is of the words that it finds likeliest, 0 to 1.
    """

    log_probability: float
    log_familiarity: float
    coverage: float
    rare_coverage: float
    doubt: float
    clearness: float


@dataclass(frozen=True)
class Evidence:
    """What is known about one caption.

    Attributes:
        places: which of its words are content words.
        words: `[K, len(WORD_FEATURES)]`, a row for each of them.
        caption: what is known about the whole.
    """

    places: tuple[int, ...]
    words: Floats
    caption: WholeCaption


@dataclass(frozen=True)
class Sight:
    """What the vision network sees in one picture.

    Attributes:
        familiarity: how much it looks like those of training, 0 to 1.
        seen: the log-odds of each word that the network can name; singular and plural are one, the likelier counts.
        expected: the sum of the chances of the content words among them.
        shares: the share of each of these in that sum, when rare words count more.
        clearness: of the likeliest content words, the mean chance, weighted by chance.
    """

    familiarity: float
    seen: Mapping[str, float]
    expected: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    clearness: float = 0.0

    @property
    def worth(self) -> dict[str, float]:
        """What naming each word adds to the log-probability of a caption when captions are put in order.

        A captioner after self-critical training finds many sentences nearly as likely as its first. Those that name
        more of what the vision network expects, rare words above all, are better.
        """
        return {form: NAMING * share for form, share in self.shares.items()}


class Witness:
    """Gathers evidence with what a model directory has: a word head, examples of training pictures, or neither."""

    def __init__(self, head: WordHead | None = None, familiar: Familiar | None = None) -> None:
        self.head, self.familiar = head, familiar
        forms = [fold(word) for word in (() if head is None else head.words)]
        self._forms = sorted({*forms})
        self._order = np.argsort(forms, kind="stable")  # outputs of one form side by side
        self._starts = np.searchsorted(np.asarray(forms)[self._order], self._forms)
        self._is_content = np.array([is_content(form) for form in self._forms], dtype=bool)
        self._content_forms = [form for form in self._forms if is_content(form)]
        first = {form: place for place, form in reversed([*enumerate(forms)])}  # words are in order, commonest first
        self._rarity = np.log(2.0 + np.array([first[form] for form in self._content_forms]))

    def check(self, width: int) -> None:
        """Refuse parts that were made for features of another width.

        Raises:
            ModelError: the width of a part differs.
        """
        parts = {"familiar pictures have": self.familiar and self.familiar.examples.shape[1]}
        parts["the word head wants"] = self.head and self.head.weight.shape[1]
        for what, got in parts.items():
            if got is not None and got != width:
                raise ModelError(f"{what} features {got} wide, the model expects {width}")

    def evidence(self, words: Sequence[Word], others: Sequence[Sequence[Word]], sight: Sight) -> Evidence:
        """About one caption of a picture; `others` are the model's further captions of it."""
        places = tuple(place for place, word in enumerate(words) if is_content(word.text))
        log_familiarity = float(np.log(max(sight.familiarity, 1e-3)))
        log_probs = [float(np.log(max(word.probability, math.exp(-8.0)))) for word in words]
        mean = float(np.mean(log_probs or [-8.0]))
        elsewhere = [set(content_words(word.text for word in other)) for other in others]
        seen = sight.seen
        rows = []
        for place in places:
            word, log_prob = fold(words[place].text), log_probs[place]
            agreeing = sum(word in other for other in elsewhere) / len(elsewhere) if elsewhere else 0.5
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
        named = sorted({fold(words[place].text) for place in places} & sight.shares.keys())
        chances = [float(_chance(seen[word])) for word in named]
        missing = [math.log(max(0.0, 1 - words[place].probability) + LEAST_DOUBT) for place in places]
        whole = WholeCaption(
            mean,
            log_familiarity,
            coverage=sum(chances) / sight.expected if seen else 0.0,
            rare_coverage=sum(sight.shares[word] for word in named),
            doubt=float(np.mean(missing)) if places else 0.0,
            clearness=sight.clearness,
        )
        return Evidence(places, table, whole)

    def look(self, regions: Regions) -> Sight:
        """What the vision network sees in a picture, whatever is said about it."""
        if self.head is None or not self._forms:
            return Sight(self.familiarity(regions), {})
        logits = np.maximum.reduceat(self.head.logits(regions)[self._order], self._starts).astype(np.float64)
        seen = dict(zip(self._forms, logits.tolist(), strict=True))
        chances = _chance(logits[self._is_content])
        rare = chances * self._rarity
        likeliest = np.sort(chances)[-CLEARLY_SEEN:]
        return Sight(
            self.familiarity(regions),
            seen,
            expected=max(1e-9, float(chances.sum())),
            shares=dict(zip(self._content_forms, (rare / max(1e-9, float(rare.sum()))).tolist(), strict=True)),
            clearness=float(likeliest @ likeliest / max(1e-9, likeliest.sum())),
        )

    def familiarity(self, regions: Regions) -> float:
        """How much the picture looks like those of training, 0 to 1; 1 where that is not known."""
        return 1.0 if self.familiar is None else self.familiar.familiarity(regions.features)


def _chance(log_odds: npt.ArrayLike) -> Any:
    return 1 / (1 + np.exp(-np.clip(log_odds, -30, 30)))
