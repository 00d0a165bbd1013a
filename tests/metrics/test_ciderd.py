from __future__ import annotations

import gzip
import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics.cider_reference import cider_d, document_frequencies
from xlan.metrics.ciderd import CiderD
from xlan.metrics.docfreq import DocumentFrequencies

FIXTURES = Path(__file__).parent.parent / "fixtures"
ENGINES = ["numpy", pytest.param("numba", marks=pytest.mark.filterwarnings("default"))]


def table_of(counts: dict[str, float], log_documents: float, vocabulary_size: int) -> DocumentFrequencies:
    return DocumentFrequencies.from_counts(
        {tuple(map(int, gram.split())): count for gram, count in counts.items()},
        log_documents=log_documents,
        vocabulary_size=vocabulary_size,
        end_id=0,
        includes_end=True,
    )


@pytest.fixture(scope="module")
def official() -> dict[str, Any]:
    with gzip.open(FIXTURES / "metrics" / "ciderd_official.json.gz", "rt") as file:
        return json.load(file)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "numba":
        pytest.importorskip("numba")
    return request.param


def test_rewards_equal_those_of_the_official_scorer(official: dict[str, Any], engine: Any) -> None:
    table = table_of(official["df"], official["ref_len"], 9488)
    scorer = CiderD(table, official["refs"], engine=engine)
    rewards = scorer([str(image) for image, _ in official["hyps"]], [ids for _, ids in official["hyps"]])
    assert rewards.dtype == np.float64
    assert np.abs(rewards - official["ciderD"]).max() < 1e-9


def test_rewards_equal_those_of_the_released_training(engine: Any) -> None:
    released = json.loads((FIXTURES / "reference" / "cider.json").read_text())
    counted = table_of(released["document_frequency"], released["ref_len"], 51)
    built = DocumentFrequencies.build(released["corpus_gts"], vocabulary_size=51, end_id=0, includes_end=True)
    for table in (counted, built):
        rewards = CiderD(table, released["corpus_gts"], engine=engine)(released["ids"], released["hyps"])
        assert np.abs(rewards - released["scores"]).max() < 1e-9


IDS = st.lists(st.integers(0, 6), max_size=14)
REFERENCES = st.lists(st.lists(IDS, min_size=1, max_size=3), min_size=1, max_size=4)


@given(REFERENCES, REFERENCES, st.lists(st.tuples(st.integers(0, 3), IDS), min_size=1, max_size=6), st.booleans())
@settings(max_examples=50, deadline=None)
def test_both_engines_equal_the_obvious_version(
    corpus: list[list[list[int]]], references: list[list[list[int]]], hyps: list[tuple[int, list[int]]], end: bool
) -> None:
    """The table is of other captions than the references, so that some n-grams are not in it."""

    def words(ids: list[int], *, add: bool) -> list[int]:
        cut = ids[: ids.index(0)] if 0 in ids else ids
        return [*cut, 0] if end and (add or 0 in ids) else cut

    table = DocumentFrequencies.build(corpus, vocabulary_size=7, end_id=0, includes_end=end)
    frequencies = document_frequencies([[words(ids, add=True) for ids in several] for several in corpus])
    images = [image % len(references) for image, _ in hyps]
    expected = [
        cider_d(
            words(ids, add=False),
            [words(reference, add=True) for reference in references[image]],
            frequencies=frequencies,
            log_documents=float(np.log(len(corpus))),
        )
        for image, (_, ids) in zip(images, hyps, strict=True)
    ]
    for engine in ("numpy", "numba"):
        rewards = CiderD(table, references, engine=engine)(images, [ids for _, ids in hyps])  # type: ignore[arg-type]
        assert rewards == pytest.approx(np.array(expected), abs=1e-9)


def small(engine: Any = "numpy") -> CiderD:
    references = {"x": [[1, 2, 3], [1, 2]], "y": [[4, 5]], "z": [[1, 5]]}
    table = DocumentFrequencies.build(references.values(), vocabulary_size=8, end_id=0, includes_end=True)
    return CiderD(table, references, engine=engine)


def test_a_reward_does_not_depend_on_its_neighbours(engine: Any) -> None:
    scorer = small(engine)
    together = scorer(["x", "y", "x", "z"], [[1, 2, 0], [4, 5, 0], [7, 7, 7, 7], []])
    alone = [
        scorer([image], [ids])[0] for image, ids in zip("xyxz", [[1, 2, 0], [4, 5, 0], [7, 7, 7, 7], []], strict=True)
    ]
    assert together == pytest.approx(np.array(alone))


def test_what_follows_the_end_is_not_read(engine: Any) -> None:
    scorer = small(engine)
    assert scorer(["x"], [[1, 2, 0, 0, 0, 5]]) == pytest.approx(scorer(["x"], [[1, 2, 0]]))


def test_a_finished_caption_is_worth_more_than_the_same_one_cut_off(engine: Any) -> None:
    scorer = small(engine)
    assert scorer(["x"], [[1, 2, 3, 0]])[0] > scorer(["x"], [[1, 2, 3]])[0]


def test_without_the_end_as_a_word_both_are_worth_the_same(engine: Any) -> None:
    references = [[[1, 2, 3]], [[4, 5]]]
    table = DocumentFrequencies.build(references, vocabulary_size=8, end_id=0, includes_end=False)
    scorer = CiderD(table, references, engine=engine)
    assert scorer([0], [[1, 2, 3, 0]]) == pytest.approx(scorer([0], [[1, 2, 3]]))


def test_arrays_are_taken_as_captions(engine: Any) -> None:
    scorer = small(engine)
    batch = np.array([[1, 2, 0, 0], [1, 2, 3, 0]])
    assert scorer(["x", "x"], list(batch)) == pytest.approx(scorer(["x", "x"], batch.tolist()))


def test_an_empty_batch_has_no_rewards(engine: Any) -> None:
    assert small(engine)([], []).shape == (0,)


def test_rewards_of_a_pickled_scorer_are_the_same(engine: Any) -> None:
    scorer = small(engine)
    copy = pickle.loads(pickle.dumps(scorer))
    assert copy(["x"], [[1, 2, 0]]) == pytest.approx(scorer(["x"], [[1, 2, 0]]))


def _reward_in_child(scorer: CiderD, queue: Any) -> None:
    queue.put(scorer(["x", "y"], [[1, 2, 0], [4, 0]]).tolist())


@pytest.mark.slow
def test_a_worker_process_gives_the_same_rewards(engine: Any) -> None:
    scorer = small(engine)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_reward_in_child, args=(scorer, queue))
    process.start()
    got = queue.get(timeout=60)
    process.join(30)
    assert got == pytest.approx(scorer(["x", "y"], [[1, 2, 0], [4, 0]]).tolist())


def test_a_very_long_caption_is_scored(engine: Any) -> None:
    reward = small(engine)(["x"], [[1 + i % 7 for i in range(5_000)]])
    assert 0 <= reward[0] < 1


@pytest.mark.parametrize(
    ("images", "captions", "message"),
    [
        (["q"], [[1]], "image 'q' has no references in this reward"),
        (["x"], [[1], [2]], "one image for each of 2 captions, got 1"),
        (["x"], [[8]], r"word id 8 is outside the vocabulary \(0 to 7\)"),
        (["x"], [[-1]], "word id -1 is outside the vocabulary"),
    ],
)
def test_bad_batches_are_refused(images: list[str], captions: list[list[int]], message: str) -> None:
    with pytest.raises(MetricError, match=message):
        small()(images, captions)


def test_images_without_references_are_refused() -> None:
    table = small().table
    with pytest.raises(MetricError, match="image 3 has no reference captions"):
        CiderD(table, {3: []})
    with pytest.raises(MetricError, match="got no image"):
        CiderD(table, {})


def test_the_compiled_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "xlan\[fast\]"'):
        CiderD(small_table(), [[[1]]], engine="numba")
    assert CiderD(small_table(), [[[1]]]).engine == "numpy"


def small_table() -> DocumentFrequencies:
    return DocumentFrequencies.build([[[1]]], vocabulary_size=2, end_id=0, includes_end=True)
