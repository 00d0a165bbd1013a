"""Where training meets the metrics: the reward and the validation scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xlan.errors import DataError
from xlan.metrics.ciderd import CiderD
from xlan.metrics.docfreq import DocumentFrequencies
from xlan.metrics.report import evaluate
from xlan.text.vocab import Vocabulary
from xlan.training.folder import vocabulary_hash

_KEYS = {"BLEU": "bleu", "METEOR": "meteor", "ROUGE-L": "rouge", "CIDEr": "cider"}


@dataclass(frozen=True)
class Scores:
    """Scores of a split.

    Attributes:
        values: by name, on the official scale (CIDEr 1.2 is what papers print as 120).
        notes: metrics that could not be computed, a line each.
    """

    values: dict[str, float]
    notes: tuple[str, ...] = ()

    @property
    def selecting(self) -> float:
        """The score that selects the best checkpoint: CIDEr."""
        return self.values["CIDEr"]


def cider_reward(
    references: Mapping[str, Sequence[Sequence[int]]], vocabulary: Vocabulary, *, document_frequency: str | None = None
) -> CiderD:
    """CIDEr-D against the training captions.

    The end of a caption counts as a word, as in the released training: a reward that does not see the end teaches
    models to stop after "a" or "of".

    Args:
        references: for each image id its captions as ids.
        vocabulary: gives the number of ids and the end.
        document_frequency: a table that `xlan metrics build-df` wrote; the training captions are counted when None.

    Raises:
        DataError: the table is damaged, or was counted with another vocabulary.
    """
    if document_frequency is not None:
        return CiderD(_load_table(document_frequency, vocabulary), references)
    table = DocumentFrequencies.build(
        references.values(), vocabulary_size=len(vocabulary), end_id=vocabulary.special.eos, includes_end=True
    )
    return CiderD(table, references)


def _load_table(path: str, vocabulary: Vocabulary) -> DocumentFrequencies:
    table = DocumentFrequencies.load(path)
    here = vocabulary_hash(vocabulary)
    if table.vocabulary_size != len(vocabulary) or table.vocabulary not in ("", here):
        raise DataError(
            f"{path}: counted with another vocabulary ({table.vocabulary_size:,} words, this run has "
            f"{len(vocabulary):,}); count again with this run's vocab.json: xlan metrics build-df"
        )
    return table


def score_captions(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]], *, metrics: Sequence[str]
) -> Scores:
    """Score captions by image id; `metrics` are names among BLEU, METEOR, ROUGE-L and CIDEr."""
    results: dict[int | str, str] = dict(captions.items())
    known: dict[int | str, Sequence[str]] = dict(references.items())
    report = evaluate(results, known, metrics=[_KEYS[name] for name in metrics])
    values = {name: score.value for name, score in report.scores.items() if score.value is not None}
    values["mean length"] = report.statistics.mean_length
    values["bad endings"] = report.statistics.bad_endings
    notes = tuple(f"{score.name} not computed: {score.reason}" for score in report.scores.values() if score.reason)
    return Scores(values, notes)
