"""The document-frequency table of the CIDEr-D reward: in how many training images each n-gram of word ids occurs.

It is a tree in sorted arrays. An n-gram is the pair (its first n−1 words, its last word); the pairs of each order are
kept as ascending integers, and the place of a pair in that list is the n-gram's name in the next order. The file holds
these arrays and nothing else (safetensors), with the choices they depend on beside them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.errors import DataError, MetricError
from xlan.metrics.ngrams import ORDERS, Ints, different, iterate_orders

TABLE_FORMAT = "1"
MAX_TABLE_BYTES = 8 << 30
MAX_LOG_DOCUMENTS = math.log(1 << 62)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DocumentFrequencies:
    """In how many of the documents (images) each n-gram occurs.

    Attributes:
        pairs: for order 2, 3, 4: `[G]` int64, ascending, (name of the first n−1 words) · `vocabulary_size` + last word.
        counts: for order 1 to 4: `[G]` float64, documents with the n-gram; order 1 has an entry for every word id.
        vocabulary_size: word ids are below this.
        log_documents: natural logarithm of the number of documents.
        end_id: the id that ends a sentence.
        includes_end: whether the end counts as a word. Without it, nothing rewards a sentence for being complete, and
            models trained on the reward learn to stop after "a" or "of".
        vocabulary: fingerprint of the vocabulary that gave the ids; empty when it was not recorded.
    """

    pairs: tuple[Ints, ...]
    counts: tuple[Floats, ...]
    vocabulary_size: int
    log_documents: float
    end_id: int
    includes_end: bool
    vocabulary: str = ""

    @classmethod
    def build(
        cls,
        references: Iterable[Sequence[Sequence[int]]],
        *,
        vocabulary_size: int,
        end_id: int,
        includes_end: bool,
        vocabulary: str = "",
    ) -> DocumentFrequencies:
        """Count a training split.

        Args:
            references: for each image, the ids of its captions; anything after the first `end_id` is left out.
            vocabulary_size: ids are below this.
            end_id: the id that ends a sentence; it need not be in the captions.
            includes_end: whether to count the end as a word of every caption.
            vocabulary: fingerprint of the vocabulary that gave the ids, to be checked where the table is used.
        """
        captions, image = [], []
        documents = 0
        for several in references:
            captions += [reference_words(ids, end_id=end_id, includes_end=includes_end) for ids in several]
            image += [documents] * len(several)
            documents += 1
        if not captions:
            raise MetricError("a document-frequency table needs at least one reference caption, got none")
        flat, lengths = flatten(captions, vocabulary_size)
        images = np.array(image, dtype=np.int64)
        pairs, counts = [], []
        for found in iterate_orders(flat, lengths, vocabulary_size):
            seen = different(images[found.caption] * found.size + found.gram) % found.size
            counts.append(np.bincount(seen, minlength=found.size).astype(np.float64))
            if found.pairs is not None:
                pairs.append(found.pairs)
                counts[-1] = counts[-1][: found.pairs.size]
        log_documents = math.log(documents)
        return cls(tuple(pairs), tuple(counts), vocabulary_size, log_documents, end_id, includes_end, vocabulary)

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[tuple[int, ...], float],
        *,
        log_documents: float,
        vocabulary_size: int,
        end_id: int,
        includes_end: bool,
    ) -> DocumentFrequencies:
        """A table from a dictionary n-gram → count, as other programs keep it; n-grams longer than 4 are left out."""
        _check_tree_fits(vocabulary_size)
        grams = [gram for gram in counts if 1 <= len(gram) <= ORDERS]
        flat, lengths = flatten(grams, vocabulary_size)
        ends = np.cumsum(lengths)
        value = np.array([counts[gram] for gram in grams], dtype=np.float64)
        node, last = flat[ends - lengths], lengths - 1
        first = np.zeros(vocabulary_size)
        first[node[last == 0]] = value[last == 0]
        all_pairs: list[Ints] = []
        all_counts: list[Floats] = [first]
        for order in range(1, ORDERS):
            going = lengths > order
            pair = node[going] * vocabulary_size + flat[(ends - lengths)[going] + order]
            pairs, inverse = np.unique(pair, return_inverse=True)
            node = node.copy()
            node[going] = inverse
            here = np.zeros(pairs.size)
            here[node[last == order]] = value[last == order]
            all_pairs.append(pairs)
            all_counts.append(here)
        return cls(tuple(all_pairs), tuple(all_counts), vocabulary_size, log_documents, end_id, includes_end)

    @property
    def documents(self) -> int:
        """Number of documents counted."""
        return round(math.exp(self.log_documents))

    def describe(self) -> str:
        """One line for logs: size, and whether the end of the sentence counts."""
        grams = sum(int(np.count_nonzero(counts)) for counts in self.counts)
        end = f"end of sentence (id {self.end_id}) {'counts' if self.includes_end else 'does not count'} as a word"
        return f"{grams:,} n-grams from {self.documents:,} images; {end}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as safetensors, atomically."""
        from safetensors.numpy import save_file

        from xlan.weights import tensor_file

        arrays: dict[str, npt.NDArray[np.generic]] = {"log_documents": np.array([self.log_documents])}
        for order in range(1, ORDERS + 1):
            arrays[f"counts_{order}"] = np.ascontiguousarray(self.counts[order - 1])
            if order > 1:
                arrays[f"pairs_{order}"] = np.ascontiguousarray(self.pairs[order - 2])
        metadata = {
            "kind": "document frequencies",
            "format": TABLE_FORMAT,
            "vocabulary_size": str(self.vocabulary_size),
            "end_id": str(self.end_id),
            "includes_end": "yes" if self.includes_end else "no",
            "vocabulary": self.vocabulary,
        }
        with tensor_file(path) as temporary:
            save_file(arrays, temporary, metadata=metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DocumentFrequencies:
        """Read a table written by `save`.

        Raises:
            DataError: the file is missing, damaged or something else.
        """
        metadata, arrays = _read(Path(path))
        expected = {"log_documents", *(f"counts_{n}" for n in range(1, 5)), *(f"pairs_{n}" for n in range(2, 5))}
        if metadata.get("kind") != "document frequencies" or metadata.get("format") != TABLE_FORMAT:
            raise DataError(f"{path}: not a document-frequency table; make one with: xlan metrics build-df")
        if set(arrays) != expected:
            raise DataError(f"{path}: expected the arrays {sorted(expected)}, got {sorted(arrays)}")
        pairs = tuple(arrays[f"pairs_{order}"] for order in range(2, ORDERS + 1))
        counts = tuple(arrays[f"counts_{order}"] for order in range(1, ORDERS + 1))
        try:
            size, end_id = int(metadata["vocabulary_size"]), int(metadata["end_id"])
            includes_end = {"yes": True, "no": False}[metadata["includes_end"]]
        except (KeyError, ValueError):
            raise DataError(f"{path}: its metadata (vocabulary_size, end_id, includes_end) is damaged") from None
        _check_arrays(path, pairs, counts, size)
        said = arrays["log_documents"]
        if said.shape != (1,) or said.dtype != np.float64 or not 0 <= said[0] <= MAX_LOG_DOCUMENTS:
            raise DataError(f"{path}: log_documents is damaged: expected one float64 from 0 to {MAX_LOG_DOCUMENTS:.0f}")
        vocabulary = metadata.get("vocabulary", "")
        return cls(pairs, counts, size, float(said[0]), end_id, includes_end, vocabulary)


def _read(source: Path) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    try:
        if source.stat().st_size > MAX_TABLE_BYTES:
            raise DataError(
                f"{source}: larger than {MAX_TABLE_BYTES >> 30} GiB, this is not a document-frequency table"
            )
        with safe_open(source, framework="np") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{source}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise DataError(f"{source}: cannot be read as a document-frequency table: {error}") from None


def _check_arrays(
    path: str | os.PathLike[str],
    pairs: tuple[npt.NDArray[Any], ...],
    counts: tuple[npt.NDArray[Any], ...],
    vocabulary_size: int,
) -> None:
    sizes = [vocabulary_size, *(array.size for array in pairs)]
    for order, array in enumerate(counts):
        if array.dtype != np.float64 or array.shape != (sizes[order],):
            raise DataError(
                f"{path}: counts_{order + 1} should be {sizes[order]} float64, got {array.dtype} {array.shape}"
            )
        if not (np.isfinite(array) & (array >= 0)).all():
            raise DataError(f"{path}: counts_{order + 1} must hold finite numbers of 0 or more")
    for order, array in enumerate(pairs):
        if array.dtype != np.int64 or array.ndim != 1 or (np.diff(array) <= 0).any():
            raise DataError(f"{path}: pairs_{order + 2} should be ascending int64")
        if array.size and not 0 <= array[0] <= array[-1] < sizes[order] * vocabulary_size:
            raise DataError(f"{path}: pairs_{order + 2} refers to entries outside the table")


def _check_tree_fits(vocabulary_size: int) -> None:
    if not 1 <= vocabulary_size <= 1 << 24:
        raise MetricError(f"expected a vocabulary of 1 to {1 << 24:,} words, got {vocabulary_size:,}")


def reference_words(ids: Sequence[int], *, end_id: int, includes_end: bool) -> list[int]:
    """The words of a reference: up to its end, which is added or left out as the table wants it."""
    words = hypothesis_words(ids, end_id=end_id, includes_end=False)
    return [*words, end_id] if includes_end else words


def hypothesis_words(ids: Sequence[int], *, end_id: int, includes_end: bool) -> list[int]:
    """The words of a sampled sequence: up to its end; a sequence that never ended gets none added."""
    words = list(ids)
    if end_id in words:
        words = words[: words.index(end_id) + includes_end]
    return words


def flatten(captions: Sequence[Sequence[int]], vocabulary_size: int) -> tuple[Ints, Ints]:
    """All ids in one array `[W]`, and the length `[C]` of each caption; every id must be in the vocabulary."""
    _check_tree_fits(vocabulary_size)
    lengths = np.array([len(caption) for caption in captions], dtype=np.int64)
    flat = np.fromiter((i for caption in captions for i in caption), dtype=np.int64, count=int(lengths.sum()))
    if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < vocabulary_size:
        wrong = int(flat[(flat < 0) | (flat >= vocabulary_size)][0])
        raise MetricError(f"word id {wrong} is outside the vocabulary (0 to {vocabulary_size - 1})")
    return flat, lengths
