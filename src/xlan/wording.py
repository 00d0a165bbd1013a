"""Between words and ids: what a user asked for → a request to an engine, and what an engine found → a `Caption`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from xlan.engines.interface import Decoded, Floats, Ints, SearchRequest, Worth
from xlan.errors import DecodingError
from xlan.looking import where_most
from xlan.options import CaptionOptions
from xlan.required import RequiredWords
from xlan.text.content import fold, repeatable_ids
from xlan.text.endings import bad_ending_ids
from xlan.text.vocab import Vocabulary
from xlan.types import Caption, Look, Regions, Word


def request_of(options: CaptionOptions, vocabulary: Vocabulary) -> SearchRequest:
    """What to ask an engine for.

    Raises:
        DecodingError: a required word is not in the vocabulary.
    """
    special = vocabulary.special
    return SearchRequest(
        beams=options.beams,
        samples=options.samples,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        rule=options.rule,
        max_length=options.max_length,
        required=tuple(_phrases(wanted, vocabulary) for wanted in options.must),
        bad_endings=bad_ending_ids(vocabulary),
        forbidden=frozenset({special.pad, special.bos} - {special.eos}),
        attention=options.attention,
        runners_up=options.runners_up,
        never_named=frozenset({special.pad, special.bos, special.eos, special.unk}),
        may_repeat=repeatable_ids(vocabulary),
    )


def worth_of(naming: Mapping[str, float], vocabulary: Vocabulary) -> Worth | None:
    """What words are worth by folded form (`Sight.worth`), as an engine wants it; None where nothing is known."""
    if not naming:
        return None
    forms, which = _forms(vocabulary)
    return Worth(np.array([naming.get(form, 0.0) for form in forms], np.float32)[which], which)


@lru_cache(maxsize=4)
def _forms(vocabulary: Vocabulary) -> tuple[list[str], Ints]:
    """The folded forms of a vocabulary's words, and which of them each id has."""
    forms = {form: i for i, form in enumerate(dict.fromkeys(map(fold, vocabulary.words)))}
    return list(forms), np.array([forms[fold(word)] for word in vocabulary.words], np.int64)


def cost_of(options: CaptionOptions, vocabulary: Vocabulary) -> int:
    """How many steps of the model, for one sentence each, captioning one picture may take.

    That is: sentences followed at a time × longest sentence. A search with required words follows `beams` sentences
    for every combination of what has been said of them, so that each further word doubles its cost.

    Raises:
        DecodingError: a required word is not in the vocabulary, or there are too many.
    """
    required = request_of(options, vocabulary).required
    states = RequiredWords(required).states if required else 1
    return options.max_length * (options.samples or options.beams * states)


def _phrases(wanted: str, vocabulary: Vocabulary) -> tuple[tuple[int, ...], ...]:
    """Ids of `dog|dogs`, each alternative being a word or a phrase."""
    alternatives = [part.lower().split() for part in wanted.split("|")]
    unknown = vocabulary.words[vocabulary.special.unk]
    for word in (word for part in alternatives for word in part):
        if word not in vocabulary or word == unknown:
            raise DecodingError(f"must: the model does not know the word {word!r}")
    if not all(alternatives):
        raise DecodingError(f"must: expected a word, or words separated by |, got {wanted!r}")
    return tuple(tuple(vocabulary.encode(part)) for part in alternatives)


def caption_of(found: Sequence[Decoded], regions: Regions, vocabulary: Vocabulary) -> Caption:
    """What an engine found for one image, in words: the first is the caption, the rest its `others`."""
    first, *others = [_caption(one, vocabulary) for one in found]
    if found[0].spatial is None:
        return replace(first, others=tuple(others))
    words = tuple(replace(word, look=_look(word, regions)) for word in first.words)
    return replace(first, words=words, others=tuple(others), boxes=regions.boxes, things=regions.things)


def _look(word: Word, regions: Regions) -> Look | None:
    if word.spatial is None:
        return None
    return where_most(word.spatial, regions.boxes, regions.things, regions.thing_of)


def _caption(found: Decoded, vocabulary: Vocabulary) -> Caption:
    words = tuple(
        Word(
            vocabulary.words[i],
            math.exp(found.log_probs[place]),
            _row(found.spatial, place),
            _row(found.channel, place),
            tuple((vocabulary.words[j], math.exp(p)) for j, p in found.runners_up[place]) if found.runners_up else (),
        )
        for place, i in enumerate(found.words)
    )
    mean = math.exp(found.total / max(1, len(found.ids)))
    return Caption(" ".join(word.text for word in words), found.total, mean, words)


def _row(rows: Floats | None, place: int) -> Floats | None:
    return None if rows is None else rows[place]
