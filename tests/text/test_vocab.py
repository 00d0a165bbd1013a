"""Vocabularies: which words, in which order, and what is said of bad files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import DataError
from xlan.text.vocab import SPECIAL_WORDS, Vocabulary
from xlan.types import SpecialIds

captions = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=6), min_size=1, max_size=20)


@settings(deadline=None, max_examples=100)
@given(captions=captions, threshold=st.integers(1, 4), data=st.data())
def test_built_from_counts_by_frequency_then_alphabet(
    captions: list[list[str]], threshold: int, data: st.DataObject
) -> None:
    counts = Counter(word for words in captions for word in words)
    kept = {word for word, count in counts.items() if count >= threshold}
    if not kept:
        with pytest.raises(DataError, match="no word occurs"):
            Vocabulary.build(captions, threshold=threshold)
        return
    vocab = Vocabulary.build(captions, threshold=threshold)
    assert vocab.words[:4] == SPECIAL_WORDS
    assert set(vocab.words[4:]) == kept
    keys = [(-counts[word], word) for word in vocab.words[4:]]
    assert keys == sorted(keys)
    assert Vocabulary.build(data.draw(st.permutations(captions)), threshold=threshold) == vocab


def test_the_default_threshold_is_the_papers() -> None:
    vocab = Vocabulary.build([["six"]] * 6 + [["five"]] * 5)
    assert vocab.words[4:] == ("six",)


def test_special_words_in_captions_are_not_words() -> None:
    assert Vocabulary.build([["<unk>", "dog"]], threshold=1).words == (*SPECIAL_WORDS, "dog")


def test_a_threshold_nothing_reaches_says_what_would() -> None:
    with pytest.raises(DataError, match=r"no word occurs 9 times or more \(the most frequent: 2\)"):
        Vocabulary.build([["a", "a"]], threshold=9)
    with pytest.raises(DataError, match="at least 1, got 0"):
        Vocabulary.build([["a"]], threshold=0)


@settings(deadline=None, max_examples=50)
@given(words=st.lists(st.text(min_size=1).filter(lambda w: w not in SPECIAL_WORDS), unique=True, max_size=10))
def test_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    words = [word for word in words if not any("\ud800" <= c <= "\udfff" for c in word)]
    path = tmp_path_factory.mktemp("vocab") / "vocab.json"
    vocab = Vocabulary.from_words(words)
    vocab.save(path)
    assert Vocabulary.load(path) == vocab


def test_encode_and_decode_are_inverse_for_known_words() -> None:
    vocab = Vocabulary.from_words(["a", "dog"])
    ids = vocab.encode(["a", "dog", "zebra"])
    assert ids == [4, 5, vocab.special.unk]
    assert vocab.decode([vocab.special.bos, *ids, vocab.special.eos, 4]) == "a dog <unk>"


def test_the_released_form_shares_one_id(tmp_path: Path) -> None:
    path = tmp_path / "coco_vocabulary.txt"
    path.write_text("a\ndog\nUNK\n", encoding="utf-8")
    vocab = Vocabulary.from_released(path)
    assert vocab.special == SpecialIds(pad=0, bos=0, eos=0, unk=3)
    assert vocab.encode(["a", "dog", "zebra"]) == [1, 2, 3]
    assert vocab.decode([1, 2, 0, 1]) == "a dog"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected a vocabulary of format 1, got 'list'"),
        ({"format": 2}, "expected a vocabulary of format 1, got 2"),
        ({"format": 1, "words": [1], "special": {}}, "'words' must be a list of strings"),
        ({"format": 1, "words": ["a"], "special": {"pad": 0}}, "an id for each of pad, bos, eos, unk"),
        ({"format": 1, "words": ["a"], "special": {"pad": 0, "bos": 0, "eos": 0, "unk": 7}}, "unk=7 is outside"),
        ({"format": 1, "words": ["a", "a"], "special": {"pad": 0, "bos": 0, "eos": 0, "unk": 0}}, "'a' appears more"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        Vocabulary.load(path)


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbfa\r\ncat\r\n")
    assert Vocabulary.from_released(tmp_path / "vocab.txt").words == (".", "a", "cat")


def test_released_lines_are_words(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("a\n\ndog\n")
    with pytest.raises(DataError, match="line 2 is empty"):
        Vocabulary.from_released(path)


def test_ids_outside_are_refused() -> None:
    with pytest.raises(DataError, match="id 99 is outside the vocabulary"):
        Vocabulary.from_words(["a"]).decode([99])


def test_a_caption_cannot_hold_the_marks_of_start_end_and_padding() -> None:
    vocabulary = Vocabulary.from_words(["a", "dog"])
    unknown = vocabulary.special.unk
    assert vocabulary.encode(["<bos>", "a", "<eos>", "dog", "<pad>"]) == [unknown, 4, unknown, 5, unknown]
    assert "<eos>" not in vocabulary
