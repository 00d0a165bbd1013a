from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from xlan.errors import DataError, MetricError
from xlan.metrics.cider_reference import document_frequencies
from xlan.metrics.docfreq import DocumentFrequencies

METADATA = {
    "kind": "document frequencies",
    "format": "1",
    "vocabulary_size": "9",
    "end_id": "8",
    "includes_end": "yes",
}
CORPUS = st.lists(st.lists(st.lists(st.integers(1, 5), max_size=8), min_size=1, max_size=3), min_size=1, max_size=4)


def same(a: DocumentFrequencies, b: DocumentFrequencies) -> bool:
    arrays = zip((*a.pairs, *a.counts), (*b.pairs, *b.counts), strict=True)
    rest = [(t.vocabulary_size, t.log_documents, t.end_id, t.includes_end) for t in (a, b)]
    return all(np.array_equal(x, y) for x, y in arrays) and rest[0] == rest[1]


@given(CORPUS, st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_built_table_equals_one_from_plain_counts(corpus: list[list[list[int]]], end: bool) -> None:
    built = DocumentFrequencies.build(corpus, vocabulary_size=6, end_id=0, includes_end=end)
    counts = document_frequencies([[[*ids, 0] if end else ids for ids in several] for several in corpus])
    counted = DocumentFrequencies.from_counts(
        counts,  # type: ignore[arg-type]
        log_documents=float(np.log(len(corpus))),
        vocabulary_size=6,
        end_id=0,
        includes_end=end,
    )
    assert same(built, counted)


def table() -> DocumentFrequencies:
    return DocumentFrequencies.build([[[1, 2, 3]], [[2, 3, 4, 5]]], vocabulary_size=9, end_id=8, includes_end=True)


def test_a_saved_table_is_read_back(tmp_path: Path) -> None:
    table().save(tmp_path / "df.safetensors")
    assert same(DocumentFrequencies.load(tmp_path / "df.safetensors"), table())


def test_the_choice_about_the_end_is_recorded_and_said(tmp_path: Path) -> None:
    assert "end of sentence (id 8) counts as a word" in table().describe()
    without = DocumentFrequencies.build([[[1]]], vocabulary_size=9, end_id=8, includes_end=False)
    without.save(tmp_path / "df.safetensors")
    assert not DocumentFrequencies.load(tmp_path / "df.safetensors").includes_end
    assert "does not count" in without.describe()
    assert table().documents == 2


def test_captions_are_read_up_to_their_end() -> None:
    a = DocumentFrequencies.build([[[1, 2, 0, 5, 5]]], vocabulary_size=9, end_id=0, includes_end=True)
    b = DocumentFrequencies.build([[[1, 2]]], vocabulary_size=9, end_id=0, includes_end=True)
    assert same(a, b)


def test_nothing_to_count_is_refused() -> None:
    with pytest.raises(MetricError, match="at least one reference caption"):
        DocumentFrequencies.build([], vocabulary_size=9, end_id=0, includes_end=True)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(MetricError, match="word id 9 is outside the vocabulary"):
        DocumentFrequencies.build([[[9]]], vocabulary_size=9, end_id=0, includes_end=True)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.safetensors: no such file"):
        DocumentFrequencies.load(tmp_path / "none.safetensors")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"\x80\x04junk" * 100)
    with pytest.raises(DataError, match="cannot be read as a document-frequency table"):
        DocumentFrequencies.load(tmp_path / "junk")


def test_other_safetensors_files_are_refused(tmp_path: Path) -> None:
    save_file({"a": np.zeros(2)}, tmp_path / "other")
    with pytest.raises(DataError, match="not a document-frequency table; make one with: xlan metrics build-df"):
        DocumentFrequencies.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pairs_2", np.array([5, 3, 9, 2], dtype=np.int64), "pairs_2 should be ascending"),
        ("counts_1", np.zeros(3), "counts_1 should be 9 float64"),
        ("counts_1", np.full(9, np.nan), "counts_1 must hold finite numbers of 0 or more"),
        ("counts_1", np.full(9, -1.0), "counts_1 must hold finite numbers of 0 or more"),
        ("log_documents", np.array([np.nan]), "log_documents is damaged"),
        ("log_documents", np.array([1e308]), "log_documents is damaged"),
        ("log_documents", np.array([-1.0]), "log_documents is damaged"),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(
    tmp_path: Path, name: str, value: np.ndarray, message: str
) -> None:
    table().save(tmp_path / "df")
    arrays = load_file(tmp_path / "df")
    if name == "pairs_2":
        value = value[: arrays["pairs_2"].size]
        value = np.resize(value, arrays["pairs_2"].size)
    save_file({**arrays, name: value}, tmp_path / "df", metadata=METADATA)
    with pytest.raises(DataError, match=message):
        DocumentFrequencies.load(tmp_path / "df")


def test_pairs_pointing_outside_are_refused(tmp_path: Path) -> None:
    table().save(tmp_path / "df")
    arrays = load_file(tmp_path / "df")
    arrays["pairs_3"][-1] = 1 << 60
    save_file(arrays, tmp_path / "df", metadata=METADATA)
    with pytest.raises(DataError, match="pairs_3 refers to entries outside the table"):
        DocumentFrequencies.load(tmp_path / "df")
