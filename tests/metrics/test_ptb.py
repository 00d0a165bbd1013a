from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.metrics.ptb import PUNCTUATION, scan, tokenize

FIXTURES = Path(__file__).parent.parent / "fixtures" / "metrics"


@pytest.fixture(scope="module")
def hard() -> list[list[str]]:
    with gzip.open(FIXTURES / "ptb_hard.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def test_real_captions_come_out_as_from_the_official_program(hard: list[list[str]]) -> None:
    wrong = [c for c, following, tokens in hard if " ".join(scan(c, following=following)) != tokens]
    assert not wrong


def test_words_alone_differ_from_the_official_ones_only_at_a_final_abbreviation(hard: list[list[str]]) -> None:
    def official(tokens: str) -> str:
        return " ".join(token for token in tokens.split(" ") if token not in PUNCTUATION)

    wrong = [caption for caption, _, tokens in hard if tokenize(caption) != official(tokens)]
    assert len(wrong) <= 2
    assert all(caption.endswith((" T.", " V.")) for caption in wrong)


@pytest.mark.slow
def test_all_hard_captions() -> None:
    if not os.environ.get("XLAN_SHARED_DIR"):
        pytest.skip("set XLAN_SHARED_DIR to a folder with vectors/metrics/ptb_hard_real.jsonl.gz")
    path = Path(os.environ["XLAN_SHARED_DIR"]) / "vectors" / "metrics" / "ptb_hard_real.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    wrong = [c for c, following, tokens in rows if " ".join(scan(c, following=following)) != tokens]
    assert not wrong


@pytest.mark.slow
def test_the_official_program_where_it_is_installed() -> None:
    package = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer", reason="the official scorer is not installed")
    if shutil.which("java") is None:
        pytest.skip("the official tokenizer needs Java")
    with gzip.open(FIXTURES / "karpathy200_official.json.gz", "rt", encoding="utf-8") as file:
        captions = [entry["caption"] for entry in json.load(file)["references"]["annotations"]]
    captions.append("The end")
    official = package.PTBTokenizer().tokenize({i: [{"caption": text}] for i, text in enumerate(captions)})
    for i, (caption, following) in enumerate(pairwise(captions)):
        assert tokenize(caption, following=following) == official[i][0]


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("A man's dog doesn't bark.", "a man 's dog does n't bark ."),
        ('A sign (red) says "Stop".', "a sign -lrb- red -rrb- says `` stop '' ."),
        ("I cannot; they're gonna.", "i can not ; they 're gon na ."),
        ("At 12:55pm on 9/1/04, 1,000 people", "at 12:55 pm on 9/1/04 , 1,000 people"),
        ("Corner of N. Astor and E. Division St. ", "corner of n. astor and e. division st."),
        ("It reads K. A man walks", "it reads k . a man walks"),
        ("Signs on Morgan Rd. The end", "signs on morgan rd. . the end"),
        ("1960's-era t.v. ... wow!!!", "1960 's - era t.v. ... wow !!!"),
        ("A half-eaten his/her u.s.-made pie", "a half-eaten his/her u.s.-made pie"),
        ("West 25 1/2 street", "west 25\u00a01/2 street"),
        ("rock 'n' roll in the '80s o'clock ma'am", "rock 'n' roll in the '80s o'clock ma'am"),
        ("“Curly” ‘quotes’ — and it’s €5", "`` curly '' ` quotes ' -- and it 's $ 5"),
        ("R&B &amp; <b>bold</b> www.foo.com/bar a@b.com #tag @me :-)", None),
    ],
)
def test_rules(caption: str, tokens: str | None) -> None:
    if tokens is None:
        tokens = "r&b & <b> bold </b> www.foo.com/bar a@b.com #tag @me :--rrb-"
    assert " ".join(scan(caption)) == tokens


def test_punctuation_is_removed_and_brackets_stay() -> None:
    assert tokenize('A "dog" (big), sits - there...') == "a dog -lrb- big -rrb- sits there"


def test_a_spaced_ellipsis_is_one_token_even_after_a_word() -> None:
    assert scan("not visible. . .") == ["not", "visible", "..."]


def test_characters_that_mean_nothing_are_dropped() -> None:
    assert scan("a \U0001f600 dog\ud800\x00") == ["a", "dog"]


def test_the_second_reading_of_a_caption_equals_the_first() -> None:
    caption = "Zyx'wvut 'qrs tuv-wxy, zyxwv."
    assert scan(caption) == scan(caption)


@given(st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text_survives(text: str) -> None:
    tokens = scan(text)
    assert all(tokens)
    assert not any(character in token for token in tokens for character in " \n\t")
    assert tokenize(text) == tokenize(text)


_PIECES = st.sampled_from(
    [
        "a",
        "Rd",
        "St.",
        "t.v.",
        "5",
        "1/2",
        "12:30",
        "'",
        "'s",
        "n't",
        '"',
        "(",
        ")",
        "-",
        "--",
        ".",
        "...",
        ",",
        "!",
        "?",
        "&amp;",
        "<b>",
        "http://x.y",
        ":)",
        "cannot",
        "gonna",
        "O'",
        "é",
        "½",
        " ",
        "  ",
        "\n",
        "\xa0",
    ]
)


@given(st.lists(_PIECES, max_size=30).map("".join))
@settings(max_examples=150, deadline=None)
def test_caching_does_not_change_the_answer(text: str) -> None:
    from xlan.metrics import ptb

    warm = scan(text)
    saved = dict(ptb._cache)
    ptb._cache.clear()
    try:
        assert scan(text) == warm
    finally:
        ptb._cache.update(saved)


@pytest.mark.parametrize("piece", ["word ", "a,", "a.", "a-", "'", "1", "x", "<a", "a/", "(", ". ", "n't", "&", "@a"])
def test_long_captions_take_linear_time(piece: str) -> None:
    text = piece * (20_000 // len(piece))
    start = time.perf_counter()
    scan(text)
    assert time.perf_counter() - start < 20
