"""How to look for the words: the options of a caption, with their limits and which exclude each other.

This is the one place that knows them. The command line and the server only translate names.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from xlan.errors import DecodingError
from xlan.types import Rule


@dataclass(frozen=True)
class Limit:
    """From `low` to `high`, both included."""

    low: float
    high: float


# Wide enough for every use we know; beyond them a search takes minutes and gigabytes for no better caption.
LIMITS = {
    "beams": Limit(1, 10),
    "samples": Limit(0, 10),
    "temperature": Limit(0.05, 10),
    "top_p": Limit(0.01, 1),
    "seed": Limit(0, (1 << 53) - 1),  # programs that hold every number as a double keep whole numbers up to here
    "max_length": Limit(1, 50),
    "runners_up": Limit(0, 10_000),
}
MAX_MUST = 10
MAX_MUST_LENGTH = 100
# How many other words an explanation names for each word.
EXPLAINED_RUNNERS_UP = 4
_DRAWING_ONLY = ("temperature", "top_p", "seed")
_WHOLE = ("beams", "samples", "seed", "max_length", "runners_up")


@dataclass(frozen=True)
class CaptionOptions:
    """How to look for the words. Values outside `LIMITS`, or of the wrong type, are refused.

    Attributes:
        beams: width of the beam search.
        samples: draw this many captions instead of searching; 0 searches.
        temperature: of the draw; below 1 is safer, above 1 more varied.
        top_p: draw from the likeliest words that have this probability together; None for all.
        seed: of the draw; what is drawn for a picture depends on the seed and the picture, not on its neighbours.
        must: words that have to appear; `dog|dogs` means either. One string is one word or phrase.
        rule: what happens to finished beams (see `xlan.decoding.beam`).
        max_length: most words, the end included.
        attention: also return where the model looked for each word.
        runners_up: also return this many other words for each word of the first caption.
    """

    beams: int = 3
    samples: int = 0
    temperature: float = 1.0
    top_p: float | None = None
    seed: int = 0
    must: tuple[str, ...] = ()
    rule: Rule = "released"
    max_length: int = 20
    attention: bool = False
    runners_up: int = 0

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if not (name == "top_p" and value is None):
                object.__setattr__(self, name, _number(name, value, limit))
        object.__setattr__(self, "must", _phrases(self.must))
        if self.rule not in get_args(Rule):
            raise DecodingError(f"rule: expected {' or '.join(get_args(Rule))}, got {self.rule!r}")
        if not isinstance(self.attention, bool):
            raise DecodingError(f"attention: expected True or False, got {self.attention!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any], called: Mapping[str, str] | None = None) -> CaptionOptions:
        """Options from those a user gave, None meaning not given; refuses some that contradict each other.

        Args:
            given: by the names of the attributes.
            called: what the user calls them, where that differs (`{"samples": "--sample"}`).

        Raises:
            DecodingError: an option is unknown, out of its limits, or has no effect beside the others.
        """
        names = called or {}
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise DecodingError(f"{name!r}: no such option; the options are {', '.join(known)}")
        chosen = {name: value for name, value in given.items() if value is not None}
        drawing = names.get("samples", "samples")
        if chosen.get("samples") and "beams" in chosen:
            searching = names.get("beams", "beams")
            raise DecodingError(f"{searching} searches, but {drawing} draws; leave one out")
        if not chosen.get("samples"):
            for name in _DRAWING_ONLY:
                if name in chosen:
                    raise DecodingError(f"{names.get(name, name)} has an effect only together with {drawing}")
        try:
            return cls(**chosen)
        except DecodingError as error:
            name, _, rest = str(error).partition(": ")
            raise DecodingError(f"{names.get(name, name)}: {rest}") from None

    @classmethod
    def combine(cls, options: CaptionOptions | None, given: Mapping[str, Any]) -> CaptionOptions:
        """Options as an object, by name, or an object with some of them changed by name.

        Raises:
            DecodingError: as `of`; or `options` is something else.
        """
        if options is None:
            return cls.of(given)
        if not isinstance(options, cls):
            raise DecodingError(f"options: expected CaptionOptions, got {type(options).__name__}")
        cls.of(dict.fromkeys(given))  # refuses unknown names
        return replace(options, **given)


def check_batch_size(batch_size: int) -> None:
    """Refuse what is not a number of pictures."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise DecodingError(f"batch_size: expected a whole number of at least 1, got {batch_size!r}")


def _number(name: str, value: Any, limit: Limit) -> int | float:
    whole = name in _WHOLE
    good = isinstance(value, numbers.Integral if whole else numbers.Real) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or not limit.low <= value <= limit.high:
        kind = "a whole number" if whole else "a number"
        shown = repr(value) if len(repr(value)) <= 40 else repr(value)[:40] + "…"
        raise DecodingError(f"{name}: expected {kind} from {limit.low:.16g} to {limit.high:.16g}, got {shown}")
    return int(value) if whole else float(value)


def _phrases(must: Any) -> tuple[str, ...]:
    phrases = (must,) if isinstance(must, str) else must
    if not isinstance(phrases, tuple | list) or not all(isinstance(phrase, str) for phrase in phrases):
        raise DecodingError(f"must: expected words, as a list of strings, got {must!r}")
    if len(phrases) > MAX_MUST:
        raise DecodingError(f"must: expected at most {MAX_MUST} words or phrases, got {len(phrases)}")
    for phrase in phrases:
        if len(phrase) > MAX_MUST_LENGTH:
            raise DecodingError(f"must: expected at most {MAX_MUST_LENGTH} characters each, got {len(phrase)}")
    return tuple(phrases)


DEFAULT_OPTIONS = CaptionOptions()
