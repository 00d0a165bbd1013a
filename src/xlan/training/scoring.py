"""Where training meets the metrics: the reward, the validation scores, and the endings no caption should have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xlan.metrics.ciderd import CiderD
from xlan.metrics.docfreq import DocumentFrequencies
from xlan.text.vocab import Vocabulary


def cider_reward(references: Mapping[str, Sequence[Sequence[int]]], vocabulary: Vocabulary) -> CiderD:
    """CIDEr-D against the training captions, with document frequencies of the same captions.

    The end of a caption counts as a word, as in the released training: a reward that does not see the end teaches
    models to stop after "a" or "of".

    Args:
        references: for each image id its captions as ids.
        vocabulary: gives the number of ids and the end.
    """
    table = DocumentFrequencies.build(
        references.values(), vocabulary_size=len(vocabulary), end_id=vocabulary.special.eos, includes_end=True
    )
    return CiderD(table, references)
