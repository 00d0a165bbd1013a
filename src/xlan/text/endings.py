"""Words on which a sentence does not end: decoding forbids them, statistics count them, training watches them."""

from __future__ import annotations

from xlan.text.vocab import Vocabulary

# A model that learnt to stop early ends on these often.
BAD_ENDINGS = frozenset({
    "a", "an", "the", "his", "their", "its", "of", "with", "in", "on", "at", "to", "for", "from", "by", "into",
    "onto", "upon", "near", "before", "after", "and", "or", "but", "as", "while", "is", "are", "am", "was", "were",
    "be", "being",
})  # fmt: skip


def bad_ending_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Ids of the words of `BAD_ENDINGS` that the vocabulary has."""
    return frozenset(vocabulary.id_of(word) for word in BAD_ENDINGS if word in vocabulary)
