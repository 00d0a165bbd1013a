"""BLEU, ROUGE-L and CIDEr against numbers of the official scorer."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import MetricError
from xlan.metrics.bleu import bleu
from xlan.metrics.cider import cider
from xlan.metrics.cider_reference import cider_d, document_frequencies
from xlan.metrics.ngrams import CorpusNgrams
from xlan.metrics.ptb import tokenize
from xlan.metrics.rouge import rouge_l

FIXTURES = Path(__file__).parent.parent / "fixtures" / "metrics"
Scores = dict[str, tuple[float, np.ndarray]]


def load(name: str) -> Any:
    with gzip.open(FIXTURES / name, "rt", encoding="utf-8") as file:
        return json.load(file)


def score(references: dict[Any, list[str]], hypotheses: dict[Any, str]) -> Scores:
    ngrams = CorpusNgrams.from_texts(references, hypotheses)
    found = bleu(ngrams)
    return {
        **{f"BLEU-{n + 1}": (float(found.corpus[n]), found.images[n]) for n in range(4)},
        "ROUGE-L": rouge_l(references, hypotheses),
        "CIDEr": cider(ngrams),
    }


@pytest.fixture(scope="module")
def fakecap() -> tuple[dict[str, Any], Scores]:
    official = load("fakecap1000_official.json.gz")
    references = {image["image_id"]: image["refs"] for image in official["images"]}
    hypotheses = {image["image_id"]: image["test"] for image in official["images"]}
    return official, score(references, hypotheses)


@pytest.fixture(scope="module")
def karpathy() -> tuple[dict[str, Any], Scores]:
    official = load("karpathy200_official.json.gz")
    references: dict[int, list[str]] = {}
    for entry in official["references"]["annotations"]:
        references.setdefault(entry["image_id"], []).append(tokenize(entry["caption"]))
    hypotheses = {entry["image_id"]: tokenize(entry["caption"]) for entry in official["results"]}
    return official, score(references, hypotheses)


NAMES = {"BLEU-1": "Bleu_1", "BLEU-2": "Bleu_2", "BLEU-3": "Bleu_3", "BLEU-4": "Bleu_4", "ROUGE-L": "ROUGE_L"}


@pytest.mark.parametrize("name", ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"])
def test_every_image_of_1000_made_up_captions(fakecap: tuple[dict[str, Any], Scores], name: str) -> None:
    official, ours = fakecap
    theirs = NAMES.get(name, name)
    assert ours[name][0] == pytest.approx(official["corpus"][theirs], abs=1e-9)
    expected = np.array([image[theirs] for image in official["images"]])
    assert np.abs(ours[name][1] - expected).max() < 1e-9


@pytest.mark.parametrize("name", ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"])
def test_raw_captions_through_the_tokenizer(karpathy: tuple[dict[str, Any], Scores], name: str) -> None:
    official, ours = karpathy
    assert ours[name][0] == pytest.approx(official["corpus"][name], abs=1e-9)
    assert np.abs(ours[name][1] - np.array(official["images"][name])).max() < 1e-9


@pytest.mark.slow
def test_the_5000_images_of_the_test_split() -> None:
    if not os.environ.get("XLAN_SHARED_DIR"):
        pytest.skip("set XLAN_SHARED_DIR to a folder with vectors/metrics/karpathy_test_references.json")
    folder = Path(os.environ["XLAN_SHARED_DIR"]) / "vectors" / "metrics"
    references: dict[int, list[str]] = {}
    for entry in json.loads((folder / "karpathy_test_references.json").read_text())["annotations"]:
        references.setdefault(entry["image_id"], []).append(tokenize(entry["caption"]))
    results = json.loads((folder / "karpathy_test_captions_a.json").read_text())
    ours = score(references, {entry["image_id"]: tokenize(entry["caption"]) for entry in results})
    expected = {
        "BLEU-1": 77.9352490204687,
        "BLEU-2": 62.54460544059197,
        "BLEU-3": 48.8918101005435,
        "BLEU-4": 37.99365950836928,
        "ROUGE-L": 57.71640445707655,
        "CIDEr": 120.00257033982204,
    }
    for name, value in expected.items():
        assert ours[name][0] * 100 == pytest.approx(value, abs=1e-9), name


@pytest.mark.slow
def test_the_official_scorer_where_it_is_installed() -> None:
    """Short, repetitive and empty captions, with single and several references."""
    bleu_module = pytest.importorskip("pycocoevalcap.bleu.bleu", reason="the official scorer is not installed")
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    random = np.random.default_rng(0)
    words = ["a", "b", "c", "d", "e", "25\u00a01/2"]

    def caption() -> str:
        return " ".join(random.choice(words, size=random.choice([0, 1, 2, 3, 5, 9])))

    for images in (2, 5, 20) * 20:
        references = {i: [caption() for _ in range(random.integers(1, 6))] for i in range(images)}
        hypotheses = {i: caption() for i in range(images)}
        theirs = {i: [text] for i, text in hypotheses.items()}
        official = {
            "ROUGE-L": Rouge().compute_score(references, theirs),
            "CIDEr": Cider().compute_score(references, theirs),
        }
        corpus, per_image = bleu_module.Bleu(4).compute_score(references, theirs, verbose=0)
        official |= {f"BLEU-{n + 1}": (corpus[n], per_image[n]) for n in range(4)}
        ours = score(references, hypotheses)
        for name, (value, scores) in official.items():
            assert ours[name][0] == pytest.approx(value, abs=1e-9), name
            assert np.abs(ours[name][1] - np.array(scores)).max() < 1e-9, name


WORDS = st.sampled_from(["a", "dog", "cat", "on", "the", "mat", "red", ".", "é"])
CAPTION = st.lists(WORDS, max_size=12).map(" ".join)
CORPUS = st.lists(st.tuples(CAPTION, st.lists(CAPTION, min_size=1, max_size=4)), min_size=1, max_size=6)
Corpus = list[tuple[str, list[str]]]


def as_maps(corpus: Corpus) -> tuple[dict[int, list[str]], dict[int, str]]:
    return {i: refs for i, (_, refs) in enumerate(corpus)}, {i: text for i, (text, _) in enumerate(corpus)}


@given(CORPUS)
@settings(max_examples=50, deadline=None)
def test_cider_equals_the_obvious_version(corpus: Corpus) -> None:
    references, hypotheses = as_maps(corpus)
    _, ours = cider(CorpusNgrams.from_texts(references, hypotheses))
    split = {i: [text.split() for text in texts] for i, texts in references.items()}
    frequencies = document_frequencies(split.values())
    for i, text in hypotheses.items():
        plain = cider_d(text.split(), split[i], frequencies=frequencies, log_documents=float(np.log(len(corpus))))
        assert ours[i] == pytest.approx(plain, abs=1e-9)


@given(CORPUS, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_order_of_images_and_references_does_not_matter(corpus: Corpus, random: Any) -> None:
    references, hypotheses = as_maps(corpus)
    shuffled = list(hypotheses)
    random.shuffle(shuffled)
    others = {i: random.sample(references[i], len(references[i])) for i in shuffled}
    before, after = score(references, hypotheses), score(others, {i: hypotheses[i] for i in shuffled})
    for name, (value, images) in before.items():
        assert after[name][0] == pytest.approx(value, abs=1e-12)
        assert np.allclose(after[name][1], images[shuffled], atol=1e-12, rtol=0)


TEXT = st.text(max_size=40)


@given(st.lists(st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=3)), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_scores_of_any_text_stay_in_range(corpus: Corpus) -> None:
    references = {i: [tokenize(text) for text in refs] for i, (_, refs) in enumerate(corpus)}
    hypotheses = {i: tokenize(text) for i, (text, _) in enumerate(corpus)}
    for name, (value, images) in score(references, hypotheses).items():
        most = 10.0 if name == "CIDEr" else 1.0
        assert 0 <= value <= most + 1e-9
        assert ((images >= 0) & (images <= most + 1e-9)).all()


def test_a_caption_equal_to_its_only_reference_scores_full_marks() -> None:
    texts = ["a dog runs over the grass", "two red buses wait at the stop"]
    found = score({i: [text] for i, text in enumerate(texts)}, dict(enumerate(texts)))
    assert found["BLEU-4"][0] == pytest.approx(1, abs=1e-8)
    assert found["ROUGE-L"][0] == pytest.approx(1)
    assert found["CIDEr"][0] == pytest.approx(10)


def test_empty_captions_score_like_the_official_code() -> None:
    found = score({0: ["a dog", "a cat"], 1: ["a bird"]}, {0: "", 1: "a bird"})
    assert found["BLEU-1"][1][0] == pytest.approx(0, abs=1e-6)
    assert found["ROUGE-L"][1][0] == 0
    assert found["CIDEr"][1][0] == 0


def test_a_caption_of_ten_thousand_words() -> None:
    long = " ".join(f"w{i % 97}" for i in range(10_000))
    found = score({0: ["a dog", long], 1: ["a cat"]}, {0: long, 1: "a cat"})
    assert found["ROUGE-L"][1][0] == pytest.approx(1)
    assert found["BLEU-4"][1][0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("references", "hypotheses", "message"),
    [({}, {}, "nothing to score"), ({1: ["a"]}, {2: "a"}, "image 2 has a caption to score but no reference")],
)
def test_what_cannot_be_scored_is_refused(references: Any, hypotheses: Any, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        rouge_l(references, hypotheses)
    with pytest.raises(MetricError, match=message):
        CorpusNgrams.from_texts(references, hypotheses)


def test_rouge_finds_the_longest_common_subsequence() -> None:
    def plain(a: Sequence[str], b: Sequence[str]) -> int:
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
        return table[-1][-1]

    random = np.random.default_rng(0)
    for _ in range(200):
        a, b = (random.choice(["a", "b", "c", "d"], size=random.integers(1, 80)).tolist() for _ in range(2))
        common = plain(a, b)
        precision, recall = common / len(a), common / len(b)
        expected = 2.44 * precision * recall / (recall + 1.44 * precision) if common else 0.0
        assert rouge_l({0: [" ".join(b)]}, {0: " ".join(a)})[0] == pytest.approx(expected)
