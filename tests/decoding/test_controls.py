from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import (
    Forbid,
    MaxLength,
    MinLength,
    NoBadEnding,
    NoRepeat,
    Prefix,
    Require,
    SuppressUnknown,
    beam_search,
    diverse_beam_search,
    greedy,
    sample,
)
from xlan.errors import DecodingError
from xlan.types import SpecialIds

SPECIAL = SpecialIds(pad=0, bos=1, eos=2, unk=3)
WORDS = st.integers(4, 8)


def ngrams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def obeys(control, words, finished: bool) -> bool:
    """What each control promises about a finished sentence, said differently from how it is enforced."""
    if isinstance(control, MinLength):
        return len(words) >= control.words
    if isinstance(control, MaxLength):
        return len(words) <= control.words
    if isinstance(control, NoRepeat):
        return len(ngrams(words, control.n)) == len(set(ngrams(words, control.n)))
    if isinstance(control, Forbid):
        return not any(phrase in ngrams(words, len(phrase)) for phrase in control.phrases)
    if isinstance(control, SuppressUnknown):
        return SPECIAL.unk not in words
    if isinstance(control, NoBadEnding):
        return not words or words[-1] not in control.words
    if isinstance(control, Require):
        return all(any(p in ngrams(words, len(p)) for p in alternatives) for alternatives in control.requirements)
    raise AssertionError(control)


def phrases(longest: int):
    return st.one_of(WORDS, st.lists(WORDS, min_size=1, max_size=longest).map(tuple))


CONTROLS = st.lists(
    st.one_of(
        st.integers(0, 4).map(MinLength),
        st.integers(1, 5).map(MaxLength),
        st.integers(1, 3).map(NoRepeat),
        st.lists(phrases(2), max_size=2).map(Forbid),
        st.just(SuppressUnknown()),
        st.lists(WORDS, max_size=3).map(NoBadEnding),
        st.lists(st.lists(phrases(2), min_size=1, max_size=2), min_size=1, max_size=2).map(Require),
    ),
    max_size=4,
)


@given(
    controls=CONTROLS, seed=st.integers(0, 1000), method=st.sampled_from(["greedy", "released", "earlier", "sample"])
)
@settings(deadline=None, max_examples=80)
def test_no_control_is_ever_violated(random_model, controls, seed, method) -> None:
    model = random_model(vocab_size=9, seed=seed, eos=2, end=1.0)
    images = torch.arange(2)
    try:
        if method == "greedy":
            result = greedy(model, images, SPECIAL, max_length=6, controls=controls)
        elif method == "sample":
            generator = torch.Generator().manual_seed(seed)
            result = sample(model, images, SPECIAL, n=3, generator=generator, max_length=6, controls=controls)
        else:
            result = beam_search(model, images, SPECIAL, rule=method, max_length=6, controls=controls)
    except DecodingError:
        return
    for found in result.hypotheses():
        assert found
        for hypothesis in found:
            for control in controls:
                assert obeys(control, hypothesis.words, hypothesis.finished), (control, hypothesis.ids)


@given(controls=CONTROLS, seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_diverse_beams_obey_controls(random_model, controls, seed) -> None:
    model = random_model(vocab_size=9, seed=seed, eos=2, end=1.0)
    try:
        result = diverse_beam_search(model, torch.arange(2), SPECIAL, groups=2, max_length=5, controls=controls)
    except DecodingError:
        return
    for hypothesis in itertools.chain(*result.hypotheses()):
        for control in controls:
            assert obeys(control, hypothesis.words, hypothesis.finished), (control, hypothesis.ids)


@given(controls=CONTROLS, seed=st.integers(0, 1000), rule=st.sampled_from(["released", "earlier"]))
@settings(deadline=None, max_examples=25)
def test_exhaustive_search_finds_the_best_sentence_that_obeys_or_says_there_is_none(
    random_model, all_sentences, controls, seed, rule
) -> None:
    """Words 4 to 6 exist here; the other words the controls talk about do not, which makes some of them impossible."""
    model = random_model(vocab_size=7, seed=seed, eos=2)
    known = [control for control in controls if not mentions_more(control, 7)]
    if rule == "earlier":
        known.append(SuppressUnknown())
    expected = [
        (ids, score)
        for ids, score in all_sentences(model, 3, SPECIAL, 3)
        if all(obeys(control, ids[:-1] if ids[-1] == 2 else ids, ids[-1] == 2) for control in known)
    ]
    search = {"width": 7**3, "max_length": 3, "rule": rule, "controls": known}
    if not expected:
        with pytest.raises(DecodingError):
            beam_search(model, torch.tensor([3]), SPECIAL, **search)
        return
    found = beam_search(model, torch.tensor([3]), SPECIAL, **search).hypotheses()[0]
    assert [h.ids for h in found] == [ids for ids, _ in expected]


def mentions_more(control, vocab_size: int) -> bool:
    if isinstance(control, Forbid):
        return any(word >= vocab_size for phrase in control.phrases for word in phrase)
    if isinstance(control, (NoBadEnding, Require)):
        return any(word >= vocab_size for word in control.words)
    return False


def test_scores_stay_the_models_own(random_model, apart) -> None:
    model = random_model(vocab_size=9, eos=2)
    controls = [MinLength(3), NoRepeat(1), Require([[5]])]
    for hypothesis in beam_search(model, torch.tensor([4]), apart, controls=controls, max_length=6).hypotheses()[0]:
        values, _ = model.replay(4, hypothesis.ids, apart.bos)
        assert hypothesis.log_probs == pytest.approx(values, abs=1e-12)


def test_any_function_is_a_control(random_model, apart) -> None:
    seen: list[Prefix] = []

    def only_even_words_for_image_one(log_probs, prefix):
        seen.append(prefix)
        odd = torch.arange(log_probs.shape[1]) % 2 == 1
        return log_probs.masked_fill((prefix.image == 1).unsqueeze(1) & odd, float("-inf"))

    model = random_model(vocab_size=9, eos=2, end=-3.0)
    result = beam_search(model, torch.arange(2), apart, width=2, max_length=4, controls=[only_even_words_for_image_one])
    assert (result.ids[1] % 2 == 0).all()
    assert (result.ids[0] % 2 == 1).any()
    assert [prefix.step for prefix in seen] == [0, 1, 2, 3]
    assert [prefix.words_left for prefix in seen] == [4, 3, 2, 1]


def test_the_models_own_tensor_is_left_alone(random_model, apart) -> None:
    model = random_model(vocab_size=9, eos=2)
    given_out = []
    step = model.step

    def remember(tokens, state):
        log_probs, state = step(tokens, state)
        given_out.append((log_probs, log_probs.clone()))
        return log_probs, state

    model.step = remember
    for controls in ([Forbid([4])], [Require([[4]])]):
        beam_search(model, torch.arange(2), apart, max_length=4, controls=controls)
        sample(model, torch.arange(2), apart, max_length=4, controls=controls)
    assert all(torch.equal(now, before) for now, before in given_out)


def test_maximum_length_makes_the_model_end_its_sentence(random_model, apart) -> None:
    result = beam_search(random_model(vocab_size=9, eos=2, end=-9.0), torch.arange(3), apart, controls=[MaxLength(3)])
    assert result.finished.all()
    assert (result.lengths == 4).all()


def test_suppressing_the_unknown_word_leaves_the_end_where_they_are_one_id(random_model) -> None:
    special = SpecialIds(pad=0, bos=0, eos=0, unk=0)
    result = greedy(random_model(end=9.0), torch.arange(2), special, controls=[SuppressUnknown()])
    assert result.finished.all()


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ([MinLength(9)], "minimum length: 9 words are asked for, but a sentence may have at most 6; lower the minimum"),
        ([MinLength(4), MaxLength(3)], "minimum length: 4 words are asked for, but a sentence may have at most 3"),
        ([MaxLength(0)], "maximum length: expected at least 1 word, got 0"),
        ([NoRepeat(0)], "no repeated n-gram: expected n of at least 1, got 0"),
        ([Forbid([9])], r"forbidden words: id 9 is outside the vocabulary \(0 to 8\)"),
        ([Forbid([(4, 2)])], "forbidden words: id 2 is the end of a sentence, not a word"),
        ([NoBadEnding([-1])], "words a caption may not end on: id -1 is outside the vocabulary"),
        ([Require([[4], [2]])], "required words: id 2 is the end of a sentence, not a word"),
        ([Require([[(4, 5, 6, 7)], [(8, 8, 8)]])], "they take at least 7 words, but a sentence may have at most 6"),
        ([Require([[4]]), Require([[5]]), MaxLength(1)], "they take at least 2 words, .* at most 1; require fewer"),
        ([Require([[4]]), NoBadEnding([4]), MaxLength(1)], "they take at least 2 words, .* at most 1"),
        ([Require([[4], [5, 6]]), Forbid([5, 6])], "required words: id 5 is required and forbidden; drop one"),
        ([Require([[(4, 4)]]), NoRepeat(1)], r"no sentence of at most 6 words satisfies the controls for image \d"),
        ([Forbid([0, 1, 3, 4, 5, 6, 7, 8]), MinLength(1)], "no sentence of at most 6 words satisfies the controls"),
    ],
)
@pytest.mark.parametrize("method", [greedy, beam_search, diverse_beam_search, sample])
def test_what_is_impossible_is_an_error_that_says_so(random_model, controls, message, method) -> None:
    with pytest.raises(DecodingError, match=message):
        method(random_model(vocab_size=9, eos=2), torch.arange(2), SPECIAL, max_length=6, controls=controls)


def test_an_empty_phrase_is_refused() -> None:
    with pytest.raises(DecodingError, match="a phrase needs at least one word"):
        Forbid([()])
