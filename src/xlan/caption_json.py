"""A caption as plain numbers and text, ready for JSON: files, HTTP answers and pages hold the same record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xlan.types import Caption, Look, Thing, Word

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# Raised when a key changes its meaning or disappears; new keys may come without.
RECORD_VERSION = 1


def caption_record(caption: Caption, *, digits: int = 6, explained: bool = True) -> dict[str, Any]:
    """A caption as JSON can hold it.

    Args:
        caption: what a model said.
        digits: numbers are rounded to these.
        explained: with what only an explanation shows: `runners_up`, and the thousands of numbers of attention. What a
            word looked at is there without it too, if a detector named things.

    Returns:
        `version`, `caption`, `confidence`, `score`; `words`, each with `text`, `probability`, `confidence` (None for
        words that say nothing about the picture), `runners_up` (`text` and `probability` of each), `spatial` (`[N]` or
        None), `channel` (`[C]` or None) and `looked_at` (`box`, `share`, `region`, `thing`, `name`, `attribute`; or
        None); `others`, each with `caption`, `confidence` and `score`; `boxes` (`[N][4]` or None); `things`, each with
        `name`, `attribute`, `score` and `box`.
    """
    return {
        "version": RECORD_VERSION,
        "caption": caption.text,
        "confidence": round(float(caption.confidence), digits),
        "score": round(float(caption.score), digits),
        "words": [_word(word, caption.things, digits, explained) for word in caption.words],
        "others": [
            {
                "caption": other.text,
                "confidence": round(float(other.confidence), digits),
                "score": round(float(other.score), digits),
            }
            for other in caption.others
        ],
        "boxes": None if caption.boxes is None or not explained else [_numbers(box, digits) for box in caption.boxes],
        "things": [
            {
                "name": thing.name,
                "attribute": thing.attribute or None,
                "score": round(thing.score, digits),
                "box": [round(value, digits) for value in thing.box],
            }
            for thing in caption.things
        ],
    }


def _look(look: Look, things: Sequence[Thing], digits: int) -> dict[str, Any]:
    thing = None if look.thing is None else things[look.thing]
    return {
        "box": [round(value, digits) for value in look.box],
        "share": round(look.share, digits),
        "region": look.region,
        "thing": look.thing,
        "name": None if thing is None else thing.name,
        "attribute": None if thing is None else thing.attribute or None,
    }


def _word(word: Word, things: Sequence[Thing], digits: int, explained: bool) -> dict[str, Any]:
    return {
        "text": word.text,
        "probability": round(float(word.probability), digits),
        "confidence": None if word.confidence is None else round(float(word.confidence), digits),
        "runners_up": [
            {"text": text, "probability": round(float(probability), digits)} for text, probability in word.runners_up
        ]
        if explained
        else [],
        "spatial": None if word.spatial is None or not explained else _numbers(word.spatial, digits),
        "channel": None if word.channel is None or not explained else _numbers(word.channel, digits),
        "looked_at": None if word.look is None or not (explained or things) else _look(word.look, things, digits),
    }


def _numbers(values: npt.NDArray[np.float32], digits: int) -> list[float]:
    # Through Python's floats: rounding a float32 would give back the digits that were to go.
    return [round(value, digits) for value in values.tolist()]
