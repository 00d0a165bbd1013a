from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics import meteor_data
from xlan.metrics.meteor import Meteor
from xlan.metrics.meteor_data import find_resources

FIXTURES = Path(__file__).parent.parent / "fixtures" / "metrics"
WORDS = "a the man men woman riding rides horse horses on of street road car automobile two couple it 's u.s. t-shirt ,"


@pytest.fixture(scope="module")
def meteor() -> Meteor:
    pytest.importorskip("snowballstemmer", reason="METEOR needs the extra `metrics`")
    try:
        find_resources()
    except MissingExtraError as error:
        pytest.skip(str(error))
    return Meteor()


@pytest.fixture(scope="module")
def official() -> dict[str, object]:
    with gzip.open(FIXTURES / "fakecap1000_official.json.gz", "rt", encoding="utf-8") as file:
        data: dict[str, object] = json.load(file)
    return data


def test_every_image_and_the_corpus_equal_the_official_program(meteor: Meteor, official: dict) -> None:
    images = official["images"]
    references = {image["image_id"]: image["refs"] for image in images}
    corpus, scores = meteor.score(references, {image["image_id"]: image["test"] for image in images})
    assert corpus == pytest.approx(official["corpus"]["METEOR"], abs=1e-12)
    assert scores == pytest.approx([image["METEOR"] for image in images], abs=1e-12)


@pytest.mark.parametrize(
    ("caption", "reference", "expected"),
    [
        ("a man riding a horse", "a man riding a horse", 1.0),
        ("a man riding a horse", "a man riding a big horse", 0.4062840465791614),  # two chunks
        ("a man riding a horse", "a man rides a big horse", 0.3619621505887075),  # a stem
        ("a car", "a automobile", 0.8500000000000001),  # a synonym in one whole chunk
        ("the man is a cyclist on the street", "a biker on a road", 0.1679291270540142),  # a paraphrase
        ("car", "automobile", 0.0),  # synonym and paraphrase at once, alone: the program takes neither
        ("rode", "rides", 0.8),  # an irregular form
        ("a man", "a man x", 0.29170666383042776),
        ("", "a man", 0.0),
        ("a", "", 0.0),
        ("", "", 0.0),
    ],
)
def test_one_pair(meteor: Meteor, caption: str, reference: str, expected: float) -> None:
    assert meteor.score({1: [reference]}, {1: caption})[1] == [pytest.approx(expected, abs=1e-12)]


def test_the_chunk_of_a_perfect_caption_is_left_out_of_the_corpus_sums(meteor: Meteor) -> None:
    corpus, scores = meteor.score({1: ["a man"], 2: ["a man x y"]}, {1: "a man", 2: "a man z w"})
    assert scores == pytest.approx([1.0, 0.19106786480893023], abs=1e-12)
    assert corpus == pytest.approx(0.3115914457410746, abs=1e-12)


def test_scores_come_in_the_order_of_the_captions(meteor: Meteor) -> None:
    references = {1: ["a man"], 2: ["a horse"]}
    assert meteor.score(references, {2: "zebra", 1: "a man"})[1] == [0.0, 1.0]


def test_the_order_of_images_changes_nothing(meteor: Meteor, official: dict) -> None:
    images = official["images"][:200]
    references = {image["image_id"]: image["refs"] for image in images}
    captions = {image["image_id"]: image["test"] for image in images}
    corpus, scores = meteor.score(references, captions)
    shuffled = list(captions)
    random.Random(0).shuffle(shuffled)
    corpus_again, again = meteor.score(references, {image: captions[image] for image in shuffled})
    assert corpus_again == corpus
    assert dict(zip(shuffled, again, strict=True)) == dict(zip(captions, scores, strict=True))


def test_the_order_of_references_changes_no_score(meteor: Meteor, official: dict) -> None:
    images = official["images"][:200]
    captions = {image["image_id"]: image["test"] for image in images}
    scores = meteor.score({image["image_id"]: image["refs"] for image in images}, captions)[1]
    assert meteor.score({image["image_id"]: image["refs"][::-1] for image in images}, captions)[1] == scores


def test_batches_do_not_show_in_the_scores(meteor: Meteor, official: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    images = official["images"][:60]
    references = {image["image_id"]: image["refs"] for image in images}
    captions = {image["image_id"]: image["test"] for image in images}
    whole = meteor.score(references, captions)
    monkeypatch.setattr("xlan.metrics.meteor._IMAGES_AT_ONCE", 7)
    assert meteor.score(references, captions) == whole


def test_progress_counts_images(meteor: Meteor) -> None:
    seen: list[int] = []
    meteor.score({1: ["a"], 2: ["b"]}, {1: "a", 2: "b"}, progress=seen.append)
    assert seen == [1, 2]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=3), st.text(max_size=60))
def test_any_text_scores_between_0_and_1(meteor: Meteor, references: list[str], caption: str) -> None:
    corpus, scores = meteor.score({0: references}, {0: caption})
    assert 0 <= scores[0] <= 1
    assert 0 <= corpus <= 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=12))
def test_a_caption_equal_to_a_reference_scores_1(meteor: Meteor, words: list[str]) -> None:
    line = " ".join(words)
    assert meteor.score({0: ["something else", line]}, {0: line}) == (1.0, [1.0])


def test_ten_thousand_words_take_seconds(meteor: Meteor) -> None:
    chosen = random.Random(0).choices(WORDS.split(), k=10_000)
    line = " ".join(chosen)
    start = time.monotonic()
    corpus, _ = meteor.score({0: ["a man riding a horse", " ".join(chosen[::-1])]}, {0: line})
    assert 0 < corpus <= 1
    assert time.monotonic() - start < 60


def test_no_captions_are_refused(meteor: Meteor) -> None:
    with pytest.raises(MetricError, match="at least one caption, got none"):
        meteor.score({}, {})


@pytest.mark.parametrize("references", [{}, {7: []}])
def test_an_image_without_reference_is_named(meteor: Meteor, references: dict) -> None:
    with pytest.raises(MetricError, match="image 7 has no reference"):
        meteor.score(references, {7: "a man"})


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meteor_data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'METEOR needs .* pip install "xlan\[metrics\]"'):
        Meteor()


def test_a_missing_stemmer_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    with pytest.raises(MissingExtraError, match="METEOR needs"):
        Meteor()


class Program:
    """The official program, driven through its pipes."""

    def __init__(self, java: str, jar: Path) -> None:
        command = [java, "-Xmx2G", "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"]
        self.process = subprocess.Popen(
            command,
            cwd=jar.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=os.environ | {"JAVA_TOOL_OPTIONS": "-Dfile.encoding=UTF-8"},
        )

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    java = shutil.which("java")
    if java is None:
        pytest.skip("comparing with the official program needs Java")
    program = Program(java, find_resources().jar)
    yield program
    for pipe in (program.process.stdin, program.process.stdout):
        assert pipe is not None
        pipe.close()
    program.process.kill()
    program.process.wait()


@pytest.mark.slow
def test_the_official_program_agrees_on_made_up_captions(meteor: Meteor, program: Program) -> None:
    rng = random.Random(1)
    words = f"{WORDS} is are in front group next to beach sand person sitting sits chair near no. dr. 5 1,000".split()
    for _ in range(400):
        lines = [" ".join(rng.choices(words, k=rng.randint(1, 14))) for _ in range(4)]
        stats = program.ask(" ||| ".join(["SCORE", *lines]))
        expected = float(program.ask(f"EVAL ||| {stats}"))
        corpus = float(program.process.stdout.readline())  # type: ignore[union-attr]
        got_corpus, scores = meteor.score({0: lines[:3]}, {0: lines[3]})
        assert scores == [pytest.approx(expected, abs=1e-12)], lines
        assert got_corpus == pytest.approx(corpus, abs=1e-12), lines
