"""What scores do not show: how long captions are, how many words they know, how often they stop short or repeat.

All counts are over the tokenised captions that the metrics see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from xlan.metrics.ptb import tokenize
from xlan.text.endings import BAD_ENDINGS

REPEATED_ORDERS = (2, 3, 4)


@dataclass(frozen=True)
class CaptionFacts:
    """Facts of one caption.

    Attributes:
        length: words.
        bad_ending: it stops on a word that cannot end a sentence.
        repeats_word: a word stands twice in a row.
        repeated: the orders n (2, 3, 4) of which some n-gram occurs more than once.
        novel: no training caption says the same; None when there is nothing to compare with.
    """

    length: int
    bad_ending: bool
    repeats_word: bool
    repeated: tuple[int, ...]
    novel: bool | None


@dataclass(frozen=True)
class Statistics:
    """Facts of a set of captions; shares are from 0 to 1.

    Attributes:
        captions: how many.
        empty: how many have no word.
        mean_length: words in a caption, on average.
        shortest: words in the shortest caption.
        longest: words in the longest caption.
        vocabulary: different words.
        distinct: share of different captions.
        novel: share that no training caption says; None when there is nothing to compare with.
        bad_endings: share that stops on a word that cannot end a sentence.
        repeated_word: share with a word twice in a row.
        repeated_2: share with a bigram more than once.
        repeated_3: share with a trigram more than once.
        repeated_4: share with a 4-gram more than once.
    """

    captions: int
    empty: int
    mean_length: float
    shortest: int
    longest: int
    vocabulary: int
    distinct: float
    novel: float | None
    bad_endings: float
    repeated_word: float
    repeated_2: float
    repeated_3: float
    repeated_4: float

    def as_dict(self) -> dict[str, Any]:
        """The attributes by name."""
        return asdict(self)


def known_captions(captions: Iterable[str]) -> frozenset[str]:
    """Raw training captions in the form that novelty is decided on."""
    return frozenset(tokenize(caption) for caption in captions)


def caption_facts(caption: str, known: Collection[str] | None = None) -> CaptionFacts:
    """Facts of one tokenised caption; `known` are the tokenised training captions."""
    words = caption.split()
    return CaptionFacts(
        length=len(words),
        bad_ending=bool(words) and words[-1] in BAD_ENDINGS,
        repeats_word=any(a == b for a, b in pairwise(words)),
        repeated=tuple(order for order in REPEATED_ORDERS if _repeats(words, order)),
        novel=None if known is None else caption not in known,
    )


def statistics(captions: Iterable[str], known: Collection[str] | None = None) -> Statistics:
    """Facts of a set of tokenised captions, at least one; `known` are the tokenised training captions."""
    texts = list(captions)
    facts = [caption_facts(text, known) for text in texts]
    count = len(texts)
    lengths = [fact.length for fact in facts]
    repeated = {order: sum(order in fact.repeated for fact in facts) / count for order in REPEATED_ORDERS}
    return Statistics(
        captions=count,
        empty=lengths.count(0),
        mean_length=sum(lengths) / count,
        shortest=min(lengths),
        longest=max(lengths),
        vocabulary=len({word for text in texts for word in text.split()}),
        distinct=len(set(texts)) / count,
        novel=None if known is None else sum(fact.novel is True for fact in facts) / count,
        bad_endings=sum(fact.bad_ending for fact in facts) / count,
        repeated_word=sum(fact.repeats_word for fact in facts) / count,
        repeated_2=repeated[2],
        repeated_3=repeated[3],
        repeated_4=repeated[4],
    )


def _repeats(words: list[str], order: int) -> bool:
    grams = [tuple(words[i : i + order]) for i in range(len(words) - order + 1)]
    return len(set(grams)) < len(grams)
