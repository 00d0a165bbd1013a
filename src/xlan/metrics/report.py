"""Captions + references → scores, each a number or the reason why there is none.

Every metric is in one table here. A metric that cannot run (something is not installed, Java fails, …) is "not
computed" with one line saying why: it is never 0, and nothing else takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xlan.errors import MetricError, XlanError
from xlan.metrics.bleu import bleu_parts
from xlan.metrics.cider import cider
from xlan.metrics.coco import ImageId, some
from xlan.metrics.ngrams import CorpusNgrams, check_pairs
from xlan.metrics.ptb import tokenize
from xlan.metrics.rouge import rouge_l
from xlan.metrics.stats import CaptionFacts, Statistics, caption_facts, statistics

# What a user asks for → the scores it gives, in the order they are printed.
METRICS: Mapping[str, tuple[str, ...]] = {
    "bleu": ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"),
    "meteor": ("METEOR",),
    "rouge": ("ROUGE-L",),
    "cider": ("CIDEr",),
    "spice": ("SPICE",),
    "spice-spacy": ("SPICE-spaCy",),
}
DEFAULT_METRICS = ("bleu", "meteor", "rouge", "cider", "spice")

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Resample = Callable[[Ints], Floats]
Progress = Callable[[str, int, int], None]


class Scorer(Protocol):
    """What the metrics of other modules offer."""

    def score(
        self, references: Mapping[ImageId, Sequence[str]], hypotheses: Mapping[ImageId, str]
    ) -> tuple[float, list[float]]:
        """Corpus score, and the score of each image in the order of `hypotheses`."""


class ImageTextScorer(Protocol):
    """A score of captions against their pictures, without references; CLIPScore is one.

    None comes with xlan, since such scores need the weights of a large network. Give yours to `evaluate`, or to the
    command line as `--scorer module:name`.
    """

    @property
    def name(self) -> str:
        """What the score is printed as; it should say which weights it depends on."""

    def score(self, pictures: Mapping[ImageId, Path], captions: Mapping[ImageId, str]) -> Sequence[float]:
        """The score of each raw caption, in the order of `captions`; the score of the corpus is their mean."""


@dataclass(frozen=True)
class Score:
    """One metric's outcome.

    Attributes:
        name: as it is printed ("BLEU-4").
        value: corpus score, or None when it was not computed.
        images: `[I]` score of each image, or None when it was not computed.
        reason: why it was not computed, and what to do; empty when it was.
        label: what the number depends on beyond the captions (a parser's name and version), or empty.
        resample: `[I, S]` how often each of S samples holds each image → `[S]` corpus scores of the samples; None where
            the corpus score is the mean of the images' scores.
    """

    name: str
    value: float | None
    images: Floats | None = None
    reason: str = ""
    label: str = ""
    resample: Resample | None = None


@dataclass(frozen=True)
class Report:
    """Scores of a set of captions.

    Attributes:
        images: image ids, in the order of the per-image scores.
        captions: the tokenised captions, in the same order.
        scores: metric name → outcome, in printing order.
        statistics: facts of the captions.
        facts: facts of each caption, in the same order.
        warnings: what a reader of the numbers should know, a line each.
    """

    images: list[ImageId]
    captions: list[str]
    scores: Mapping[str, Score]
    statistics: Statistics
    facts: list[CaptionFacts]
    warnings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, float | str | None]:
        """Score by name at full precision, None for what was not computed; SPICE-spaCy also names its parser."""
        scores: dict[str, float | str | None] = {name: score.value for name, score in self.scores.items()}
        if "SPICE-spaCy" in scores and self.scores["SPICE-spaCy"].label:
            scores["SPICE-spaCy parser"] = self.scores["SPICE-spaCy"].label
        return scores

    def per_image(self) -> Iterable[dict[str, Any]]:
        """One record for each image: id, caption, scores (those that were computed) and facts."""
        for i, image in enumerate(self.images):
            computed = {s.name: float(s.images[i]) for s in self.scores.values() if s.images is not None}
            facts = self.facts[i]
            yield {
                "image_id": image,
                "caption": self.captions[i],
                **computed,
                "length": facts.length,
                "bad_ending": facts.bad_ending,
                "repeats_word": facts.repeats_word,
                "repeated_ngrams": list(facts.repeated),
                **({} if facts.novel is None else {"novel": facts.novel}),
            }


def evaluate(
    results: Mapping[ImageId, str],
    references: Mapping[ImageId, Sequence[str]],
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    require: Collection[str] = (),
    corenlp: Path | None = None,
    spacy_model: str | None = None,
    known: Collection[str] | None = None,
    scorers: Sequence[ImageTextScorer] = (),
    pictures: Mapping[ImageId, Path] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Score raw captions against raw references.

    Args:
        results: one caption for each image.
        references: reference captions of at least the same images.
        metrics: keys of `METRICS`.
        require: keys of `METRICS` that must be computed: the first that cannot be raises its reason.
        corenlp: folder with the CoreNLP jars, for SPICE.
        spacy_model: parser model of SPICE-spaCy; its own default when None.
        known: tokenised training captions (`stats.known_captions`), to tell novel captions.
        scorers: scores against pictures, computed after the others.
        pictures: the picture file of each image, for `scorers`.
        progress: called with (step, done, total) as the work proceeds.

    Raises:
        MetricError: nothing to score, an unknown metric, a required one that cannot run, a picture that is missing, or
            a scorer that fails.
    """
    wanted = _check_names([*metrics, *require])
    check_pairs(references, results)
    tell = progress or _ignore
    total = len(wanted) + len(scorers) + 1
    tell("tokenizing", 0, total)
    texts = _Texts(results, {image: list(references[image]) for image in results})
    computed: dict[str, Callable[[], Iterable[Score]]] = {
        "bleu": texts.bleu,
        "cider": texts.cider,
        "rouge": texts.rouge,
        "meteor": lambda: _try("METEOR", lambda: _meteor(texts), required="meteor" in require),
        "spice": lambda: _try("SPICE", lambda: texts.score("SPICE", _spice(corenlp)), required="spice" in require),
        "spice-spacy": lambda: _try(
            "SPICE-spaCy",
            lambda: texts.score("SPICE-spaCy", _spice_spacy(spacy_model)),
            required="spice-spacy" in require,
        ),
    }
    scores: dict[str, Score] = {}
    for done, name in enumerate(wanted, start=1):
        tell(METRICS[name][0].removesuffix("-1"), done, total)
        scores |= {score.name: score for score in computed[name]()}
    for done, scorer in enumerate(scorers, start=len(wanted) + 1):
        tell(scorer.name, done, total)
        if scorer.name in scores:
            raise MetricError(f"two scores are called {scorer.name!r}; give the scorer another name")
        scores[scorer.name] = _score_pictures(scorer, results, pictures or {})
    tell("done", total, total)
    captions = list(texts.tokenised.values())
    return Report(
        images=list(texts.tokenised),
        captions=captions,
        scores=scores,
        statistics=statistics(captions, known),
        facts=[caption_facts(caption, known) for caption in captions],
        warnings=_warnings(texts.tokenised, wanted),
    )


def _ignore(step: str, done: int, total: int) -> None:
    pass


class _Texts:
    """The captions and references of one evaluation, raw and tokenised, and the metrics over them."""

    def __init__(self, results: Mapping[ImageId, str], references: Mapping[ImageId, list[str]]) -> None:
        self.results, self.references = results, references
        self.tokenised = {image: tokenize(caption) for image, caption in results.items()}
        self.tokenised_references = {
            image: [tokenize(text) for text in several] for image, several in references.items()
        }

    @cached_property
    def ngrams(self) -> CorpusNgrams:
        return CorpusNgrams.from_texts(self.tokenised_references, self.tokenised)

    def bleu(self) -> Iterable[Score]:
        parts = bleu_parts(self.ngrams)
        scores = parts.scores()
        for i, name in enumerate(METRICS["bleu"]):
            yield Score(name, float(scores.corpus[i]), scores.images[i], resample=partial(parts.order, i + 1))

    def cider(self) -> Iterable[Score]:
        yield Score("CIDEr", *cider(self.ngrams))

    def rouge(self) -> Iterable[Score]:
        yield Score("ROUGE-L", *rouge_l(self.tokenised_references, self.tokenised))

    def score(self, name: str, scorer: Scorer) -> Score:
        """Score with a metric of another module, which tokenises by itself."""
        value, images = scorer.score(self.references, self.results)
        label = str(getattr(scorer, "label", ""))
        return Score(name, float(value), np.asarray(images, dtype=np.float64), label=label)


def _try(name: str, measure: Callable[[], Score], *, required: bool) -> Iterable[Score]:
    """A score whose metric may be unable to run."""
    try:
        yield measure()
    except (XlanError, ImportError) as error:
        if required:
            raise MetricError(f"{name} is required but cannot be computed: {error}") from error
        yield Score(name, None, reason=str(error))


def _score_pictures(scorer: ImageTextScorer, results: Mapping[ImageId, str], pictures: Mapping[ImageId, Path]) -> Score:
    missing = [image for image in results if image not in pictures]
    if missing:
        raise MetricError(f"{scorer.name} needs the picture of every image; there is none for image {some(missing)}")
    try:
        images = np.asarray(scorer.score({image: pictures[image] for image in results}, results), dtype=np.float64)
    except Exception as error:  # user code may raise anything
        raise MetricError(f"{scorer.name} failed: {type(error).__name__}: {error}") from error
    if images.shape != (len(results),) or not np.isfinite(images).all():
        raise MetricError(
            f"{scorer.name}: expected a finite number for each of {len(results):,} captions, got {images.size:,}"
            + ("" if np.isfinite(images).all() else ", some of them not finite")
        )
    return Score(scorer.name, float(images.mean()), images)


def _check_names(names: Sequence[str]) -> list[str]:
    """The metrics asked for, each once, in printing order."""
    for name in names:
        if name not in METRICS:
            raise MetricError(f"there is no metric {name!r}; choose from: {', '.join(METRICS)}")
    if not names:
        raise MetricError(f"no metric was requested; choose from: {', '.join(METRICS)}")
    return [name for name in METRICS if name in names]


def _meteor(texts: _Texts) -> Score:
    from xlan.metrics.meteor import Meteor

    parts = Meteor().parts(texts.tokenised_references, texts.tokenised)
    return Score("METEOR", float(parts.corpus()[0]), parts.images, resample=parts.corpus)


def _spice(corenlp: Path | None) -> Scorer:
    from xlan.metrics.spice import Spice

    return Spice(corenlp=corenlp)


def _spice_spacy(model: str | None) -> Scorer:
    from xlan.metrics.spice_spacy import SpiceSpacy

    return SpiceSpacy() if model is None else SpiceSpacy(model=model)


def _warnings(tokenised: Mapping[ImageId, str], wanted: Sequence[str]) -> list[str]:
    empty = [image for image, caption in tokenised.items() if not caption]
    lines = []
    if empty:
        lines.append(f"{len(empty):,} of {len(tokenised):,} captions are empty and are scored as empty: {some(empty)}")
    if len(tokenised) == 1 and "cider" in wanted:
        lines.append("CIDEr weighs words by how many images use them, so the CIDEr of a single image is always 0")
    return lines
