"""Which words of a caption say what is in the picture, and when two captions mean the same word.

Vision networks are adapted to these words, and confidence counts them: a caption is as good as the share of its content
words that people use for the same picture too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from xlan.text.vocab import Vocabulary

# Words that say nothing about what is seen; left and right change their meaning when a picture is mirrored.
_STOP_TEXT = """
    a about all along also an and another any are around as at away be because been being between both but by
    can could do does doing down during each either else etc for from had has have he her here him his how i if
    image in into is it its itself just left like made more most much my near next no nor not of off on one only
    onto or other others our out over own past per photo photograph picture possibly right same seen she shot
    show showing shown shows side so some someone something sort such than that the their them themselves then
    there these they thing things this those through to too toward towards up us use used very view was way we
    well were what when where which while who whose will with within without you your
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())
# Plurals that no rule of spelling leads back.
IRREGULAR = {
    "men": "man",
    "women": "woman",
    "children": "child",
    "people": "person",
    "feet": "foot",
    "teeth": "tooth",
    "geese": "goose",
    "mice": "mouse",
    "knives": "knife",
    "leaves": "leaf",
    "shelves": "shelf",
    "loaves": "loaf",
    "calves": "calf",
    "halves": "half",
    "wolves": "wolf",
    "scarves": "scarf",
    "buses": "bus",
    "glasses": "glass",
    "dresses": "dress",
}


def is_content(word: str) -> bool:
    """Whether a word says something about the picture."""
    return word not in STOP_WORDS


def fold(word: str) -> str:
    """Singular and plural of a noun as one form: two captions that differ in it still name the same thing.

    >>> [fold(word) for word in ("dogs", "dog", "benches", "bus", "grass", "people", "puppies")]
    ['dog', 'dog', 'bench', 'bus', 'grass', 'person', 'puppy']
    """
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses", "zzes")):
        return word[:-2]
    return word[:-1]


@lru_cache(maxsize=16)
def repeatable_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Ids of the words that a sentence may well say twice, and the special ids."""
    special = vocabulary.special
    stop = (vocabulary.id_of(word) for word in STOP_WORDS if word in vocabulary)
    return frozenset((special.pad, special.bos, special.eos, special.unk, *stop))


def content_words(words: Iterable[str]) -> list[str]:
    """The content words of a caption, folded, in order; a word that is repeated is counted each time."""
    return [fold(word) for word in words if is_content(word)]
