"""A caption as plain numbers and text, ready for JSON: the HTTP answers and the pages hold the same record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xlan.types import Caption, Word

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def caption_record(caption: Caption, *, digits: int = 6) -> dict[str, Any]:
    """A caption as JSON can hold it, numbers rounded to `digits`.

    Returns:
        `caption`, `confidence`, `score`; `words`, each with `text`, `probability`, `confidence` (None for words that
        say nothing about the picture), `runners_up` (`text` and `probability` of each), `spatial` (`[N]` or None) and
        `channel` (`[C]` or None); `others`, each with `caption`, `confidence` and `score`; `boxes` (`[N][4]` or None).
    """
    return {
        "caption": caption.text,
        "confidence": round(float(caption.confidence), digits),
        "score": round(float(caption.score), digits),
        "words": [_word(word, digits) for word in caption.words],
        "others": [
            {
                "caption": other.text,
                "confidence": round(float(other.confidence), digits),
                "score": round(float(other.score), digits),
            }
            for other in caption.others
        ],
        "boxes": None if caption.boxes is None else [_numbers(box, digits) for box in caption.boxes],
    }


def _word(word: Word, digits: int) -> dict[str, Any]:
    return {
        "text": word.text,
        "probability": round(float(word.probability), digits),
        "confidence": None if word.confidence is None else round(float(word.confidence), digits),
        "runners_up": [
            {"text": text, "probability": round(float(probability), digits)} for text, probability in word.runners_up
        ],
        "spatial": None if word.spatial is None else _numbers(word.spatial, digits),
        "channel": None if word.channel is None else _numbers(word.channel, digits),
    }


def _numbers(values: npt.NDArray[np.float32], digits: int) -> list[float]:
    # Through Python's floats: rounding a float32 would give back the digits that were to go.
    return [round(value, digits) for value in values.tolist()]
