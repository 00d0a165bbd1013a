"""CIDEr-D as a reward: scores batches of sampled id sequences against references that are prepared once.

The document frequencies come from a table, not from the batch, so a caption's reward does not depend on its neighbours.
Compiled code does the work where numba is installed; NumPy does it otherwise, with the same result.
`xlan.metrics.cider_reference` says in plain loops what is computed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics.cider import SCALE, SIGMA
from xlan.metrics.docfreq import DocumentFrequencies, flatten, hypothesis_words, reference_words
from xlan.metrics.ngrams import ORDERS, Ints, add_up, count, different, find, iterate_orders

Floats = npt.NDArray[np.float64]
Engine = Literal["auto", "numba", "numpy"]


class CiderD:
    """A CIDEr-D scorer for a fixed set of images. It can be pickled and forked; the arrays are only read.

    Args:
        table: document frequencies, and whether the end of a sentence counts as a word.
        references: the reference captions (ids) of each image, as a mapping or, with images numbered from 0, a list.
        engine: "numba", "numpy", or whichever is installed.
    """

    def __init__(
        self,
        table: DocumentFrequencies,
        references: Mapping[Any, Sequence[Sequence[int]]] | Sequence[Sequence[Sequence[int]]],
        *,
        engine: Engine = "auto",
    ) -> None:
        by_image = references if isinstance(references, Mapping) else dict(enumerate(references))
        if not by_image:
            raise MetricError("the reward needs reference captions, got no image")
        for image, several in by_image.items():
            if not several:
                raise MetricError(f"image {image!r} has no reference captions, so its captions have no reward")
        installed = importlib.util.find_spec("numba") is not None
        if engine == "numba" and not installed:
            raise MissingExtraError("the compiled CIDEr-D reward", "fast")
        self.engine: Engine = ("numba" if installed else "numpy") if engine == "auto" else engine
        self.table = table
        self._rows: dict[Hashable, int] = {image: row for row, image in enumerate(by_image)}
        self._cook(by_image.values())

    def __call__(self, images: Iterable[Hashable], captions: Sequence[Sequence[int]]) -> Floats:
        """Reward `[C]` of each caption.

        Args:
            images: the image of each caption, a key of `references` (or its position in the list).
            captions: C sampled sequences. What follows the first end id is left out; the end itself is a word where
                the table says so. A sequence that was cut off before its end is scored without one.
        """
        try:
            rows = np.array([self._rows[image] for image in images], dtype=np.int64)
        except KeyError as error:
            raise MetricError(f"image {error.args[0]!r} has no references in this reward") from None
        if rows.size != len(captions):
            raise MetricError(f"expected one image for each of {len(captions)} captions, got {rows.size} images")
        table = self.table
        words = [hypothesis_words(ids, end_id=table.end_id, includes_end=table.includes_end) for ids in captions]
        flat, lengths = flatten(words, table.vocabulary_size)
        if rows.size == 0:
            return np.zeros(0)
        return self._score_compiled(rows, flat, lengths) if self.engine == "numba" else self._score(rows, flat, lengths)

    def _cook(self, references: Iterable[Sequence[Sequence[int]]]) -> None:
        """Look up and weigh the n-grams of all references."""
        table = self.table
        several = [
            [reference_words(ids, end_id=table.end_id, includes_end=table.includes_end) for ids in captions]
            for captions in references
        ]
        flat, lengths = flatten([words for captions in several for words in captions], table.vocabulary_size)
        per_image = np.array([len(captions) for captions in several], dtype=np.int64)
        # References of image row i are [first_reference[i], first_reference[i + 1]).
        self._first_reference = np.concatenate([[0], np.cumsum(per_image)])
        self._bigrams = np.maximum(0, lengths - 1)
        image = np.repeat(np.arange(per_image.size), per_image)
        norms, entry_gram, entry_reference, entry_times, starts = [], [], [], [], []
        self._pairs, self._idf = list[Ints](), list[Floats]()
        position, renamed = 0, np.arange(table.vocabulary_size)
        local_names = np.arange(table.vocabulary_size)
        for order, found in enumerate(iterate_orders(flat, lengths, table.vocabulary_size)):
            counts = table.counts[order]
            if found.pairs is not None:
                counts, renamed, local_names = self._merge(order, found.pairs, renamed, local_names)
            # One more at the end: name −1, an n-gram that the table does not know.
            idf = np.append(table.log_documents - np.log(np.maximum(1.0, counts)), table.log_documents)
            self._idf.append(idf)
            cooked = count(found.caption, found.gram, found.size)
            gram = local_names[cooked.gram]
            norms.append(np.sqrt(add_up(cooked.caption, (cooked.times * idf[gram]) ** 2, lengths.size)))
            place = np.lexsort((cooked.caption, gram, image[cooked.caption]))
            starts.append(position + np.searchsorted(image[cooked.caption][place], np.arange(per_image.size + 1)))
            entry_gram.append(gram[place].astype(np.int32))
            entry_reference.append(cooked.caption[place].astype(np.int32))
            entry_times.append(cooked.times[place].astype(np.int32))
            position += place.size
        # Entries of order n and image row i are [starts[n, i], starts[n, i + 1]), ascending by n-gram.
        self._starts = np.stack(starts)
        self._gram, self._reference = np.concatenate(entry_gram), np.concatenate(entry_reference)
        self._times = np.concatenate(entry_times)
        self._norms = np.stack(norms)

    def _merge(self, order: int, pairs: Ints, renamed: Ints, local_names: Ints) -> tuple[Floats, Ints, Ints]:
        """Add the references' n-grams of one order to the table's, which may come from other captions.

        Args:
            order: 1 for bigrams, and so on.
            pairs: the references' n-grams, in their own names of the order before.
            renamed: name of each of the table's n-grams of the order before.
            local_names: name of each of the references' n-grams of the order before.

        Returns:
            Document counts of all n-grams, and `renamed` and `local_names` of this order.
        """
        size = self.table.vocabulary_size
        ours = local_names[pairs // size] * size + pairs % size
        theirs = renamed[self.table.pairs[order - 1] // size] * size + self.table.pairs[order - 1] % size
        merged = different(np.concatenate([theirs, ours]))
        self._pairs.append(merged)
        renamed, local_names = np.searchsorted(merged, theirs), np.searchsorted(merged, ours)
        counts = np.zeros(merged.size)
        counts[renamed] = self.table.counts[order]
        return counts, renamed, local_names

    def _score(self, rows: Ints, flat: Ints, lengths: Ints) -> Floats:
        """The batch with NumPy: each step handles all captions of one order."""
        first = self._first_reference[rows]
        several = self._first_reference[rows + 1] - first
        # One line for each (caption, reference of its image).
        line_start = np.concatenate([[0], np.cumsum(several)])
        line_caption = np.repeat(np.arange(rows.size), several)
        line_reference = np.arange(line_start[-1]) - line_start[line_caption] + first[line_caption]
        used, used_row = np.unique(rows, return_inverse=True)
        similarity = np.zeros(line_reference.size)
        names = np.arange(self.table.vocabulary_size)
        for order, found in enumerate(iterate_orders(flat, lengths, self.table.vocabulary_size)):
            if found.pairs is not None:
                names = self._look_up(order, names, found.pairs)
            ours = count(found.caption, found.gram, found.size)
            gram, idf = names[ours.gram], self._idf[order]
            weight = ours.times.astype(np.float64) * idf[gram]
            norm = np.sqrt(add_up(ours.caption, weight**2, rows.size))
            known = gram >= 0
            line, dot = self._matches(
                order, used, idf, used_row[ours.caption[known]], gram[known], ours.caption[known], weight[known],
                line_start - np.append(first, 0),
            )  # fmt: skip
            dots = add_up(line, dot, line_reference.size)
            norms = norm[line_caption] * self._norms[order][line_reference]
            similarity += np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
        difference = np.maximum(0, lengths - 1)[line_caption] - self._bigrams[line_reference]
        similarity *= np.exp(-(difference**2) / (2 * SIGMA**2))
        scores: Floats = add_up(line_caption, similarity, rows.size) * SCALE / ORDERS / several
        return scores

    def _look_up(self, order: int, names: Ints, pairs: Ints) -> Ints:
        """Names in the table of a batch's n-grams, −1 where the table has none."""
        size = self.table.vocabulary_size
        prefix = names[pairs // size]
        place, there = find(self._pairs[order - 1], prefix * size + pairs % size)
        return np.where(there & (prefix >= 0), place, -1)

    def _matches(
        self,
        order: int,
        used: Ints,
        idf: Floats,
        row: Ints,
        gram: Ints,
        caption: Ints,
        weight: Floats,
        line_offset: Ints,
    ) -> tuple[Ints, Floats]:
        """For every n-gram that a caption shares with a reference: their line, and the clipped product of weights."""
        begin, end = self._starts[order, used], self._starts[order, used + 1]
        entries = np.repeat(end - np.cumsum(end - begin), end - begin) + np.arange(int((end - begin).sum()))
        size = idf.size
        keys = np.repeat(np.arange(used.size), end - begin) * size + self._gram[entries]
        wanted = row * size + gram
        left, right = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
        hits = right - left
        source = np.repeat(np.arange(wanted.size), hits)
        entry = entries[np.repeat(left - np.concatenate([[0], np.cumsum(hits)[:-1]]), hits) + np.arange(hits.sum())]
        theirs = self._times[entry] * idf[self._gram[entry]]
        line = self._reference[entry] + line_offset[caption[source]]
        return line, np.minimum(weight[source], theirs) * theirs

    def _score_compiled(self, rows: Ints, flat: Ints, lengths: Ints) -> Floats:
        from xlan.metrics.ciderd_numba import score_batch

        scores = score_batch(
            rows, flat, lengths, self.table.vocabulary_size,
            *self._pairs, *self._idf, self._starts, self._gram, self._reference, self._times,
            self._norms, self._first_reference, self._bigrams, SIGMA,
        )  # fmt: skip
        return scores * (SCALE / ORDERS)
