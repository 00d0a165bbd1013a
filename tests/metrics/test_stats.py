from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.metrics.stats import caption_facts, known_captions, statistics


def test_facts_of_one_caption() -> None:
    facts = caption_facts("a dog on a dog on the the", {"a dog"})
    assert facts.length == 8
    assert facts.bad_ending
    assert facts.repeats_word
    assert facts.repeated == (2, 3)
    assert facts.novel is True


def test_facts_of_a_set() -> None:
    found = statistics(["a man riding a", "a dog", "a dog", ""], known_captions(["A dog!"]))
    assert (found.captions, found.empty, found.shortest, found.longest) == (4, 1, 0, 4)
    assert found.mean_length == 2
    assert found.vocabulary == 4
    assert found.distinct == 0.75
    assert found.bad_endings == 0.25
    assert found.novel == 0.5


def test_without_training_captions_nothing_is_called_novel() -> None:
    assert statistics(["a dog"]).novel is None
    assert caption_facts("a dog").novel is None


@pytest.mark.parametrize("ending", ["a", "the", "of", "with", "and"])
def test_endings_that_cut_a_sentence(ending: str) -> None:
    assert caption_facts(f"a man {ending}").bad_ending


@given(st.lists(st.text(max_size=30), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_shares_stay_in_range(captions: list[str]) -> None:
    found = statistics(captions, captions[:1]).as_dict()
    for name in ("distinct", "novel", "bad_endings", "repeated_word", "repeated_2", "repeated_3", "repeated_4"):
        assert 0 <= found[name] <= 1
