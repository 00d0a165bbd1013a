from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.decoding import MinLength, NoRepeat, beam_reference, beam_search
from xlan.errors import DecodingError

RULES = ("released", "earlier")


def same(found, expected) -> None:
    """Equal records: ids and flags exactly, numbers to rounding."""
    assert [[h.ids for h in image] for image in found] == [[h.ids for h in image] for image in expected]
    for ours, theirs in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert ours.finished == theirs.finished
        assert ours.score == pytest.approx(theirs.score, abs=1e-12)
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-12)


@given(
    seed=st.integers(0, 10_000),
    rule=st.sampled_from(RULES),
    width=st.integers(1, 7),
    levels=st.sampled_from([0, 0, 2, 3]),
    length_penalty=st.sampled_from([0.0, 0.0, 0.7, 1.0, -0.5]),
    max_length=st.integers(1, 6),
    end=st.sampled_from([-1.0, 0.5, 2.0]),
)
@settings(deadline=None, max_examples=80)
def test_equals_the_reference(
    random_model, aliased, seed, rule, width, levels, length_penalty, max_length, end
) -> None:
    model = random_model(vocab_size=5, seed=seed, levels=levels, end=end)
    arguments = {"width": width, "rule": rule, "length_penalty": length_penalty, "max_length": max_length}
    images = torch.arange(3)
    same(
        beam_search(model, images, aliased, **arguments).hypotheses(),
        beam_reference(model, images, aliased, **arguments),
    )


@given(st.integers(0, 10_000), st.sampled_from(RULES), st.sampled_from([0, 2]))
@settings(deadline=None, max_examples=25)
def test_equals_the_reference_under_controls(random_model, apart, seed, rule, levels) -> None:
    model = random_model(vocab_size=6, seed=seed, levels=levels, eos=2, end=1.0)
    arguments = {"width": 3, "rule": rule, "max_length": 6, "controls": [MinLength(2), NoRepeat(2)]}
    images = torch.arange(2)
    same(beam_search(model, images, apart, **arguments).hypotheses(), beam_reference(model, images, apart, **arguments))


@pytest.mark.parametrize("rule", RULES)
def test_ties_go_to_the_lower_beam_then_the_lower_id(uniform_model, apart, rule) -> None:
    found = beam_search(uniform_model(5), torch.tensor([1]), apart, width=3, max_length=2, rule=rule)
    # Every sentence of two ids scores the same: the lowest ids come first. Id 2 ends a sentence at once, and so scores
    # higher; the earlier rule never says 3, the unknown word.
    assert [h.ids for h in found.hypotheses()[0]] == [(2,), (0, 0), (0, 1)]


@given(st.integers(0, 10_000), st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_a_beam_as_wide_as_the_space_is_exhaustive(random_model, aliased, all_sentences, seed, max_length) -> None:
    model = random_model(vocab_size=3, seed=seed)
    expected = all_sentences(model, 5, aliased, max_length)
    found = beam_search(model, torch.tensor([5]), aliased, width=len(expected), max_length=max_length).hypotheses()[0]
    assert [h.ids for h in found] == [ids for ids, _ in expected]
    assert [h.total for h in found] == pytest.approx([score for _, score in expected])


@given(st.integers(0, 10_000), st.sampled_from(RULES))
@settings(deadline=None, max_examples=30)
def test_no_width_beats_exhaustive_search_and_enough_width_reaches_it(
    random_model, aliased, all_sentences, seed, rule
) -> None:
    model = random_model(vocab_size=4, seed=seed)  # id 4, the unknown word, does not exist here
    special = aliased.__class__(pad=0, bos=0, eos=0, unk=0)
    best = all_sentences(model, 2, special, 4)[0][1]
    scores = [
        beam_search(model, torch.tensor([2]), special, width=width, max_length=4, rule=rule).best()[0].score
        for width in (1, 2, 4, 16, 64, 65, 100, 256)
    ]
    assert all(score <= best + 1e-12 for score in scores)
    # At most 3 ** 3 sentences are unfinished after three words, and as many as 40 are finished: 64 beams hold them all.
    assert scores[4:] == pytest.approx([best] * 4)


def test_a_wider_beam_can_be_worse_when_it_is_not_exhaustive(table_model, apart) -> None:
    """Nothing promises that two beams do better than one: the second beam's children can push out the winner."""
    #          pad bos  eos  unk   a    b    c    d    e
    table = {
        1: [0, 0, 0.00, 0, 0.55, 0.45, 0.0, 0.00, 0.0],
        4: [0, 0, 0.00, 0, 0.20, 0.20, 0.4, 0.20, 0.0],
        5: [0, 0, 0.00, 0, 0.00, 0.00, 0.0, 0.51, 0.49],
        6: [0, 0, 1.00, 0, 0.00, 0.00, 0.0, 0.00, 0.0],
        7: [0, 0, 0.25, 0, 0.25, 0.25, 0.0, 0.00, 0.25],
        8: [0, 0, 0.25, 0, 0.25, 0.25, 0.0, 0.25, 0.0],
    }
    model = table_model([table.get(i, [1] + [0] * 8) for i in range(9)])
    one, two = (beam_search(model, torch.tensor([0]), apart, width=w, max_length=3).best()[0] for w in (1, 2))
    assert one.ids == (4, 6, 2)
    assert two.score < one.score


@given(st.integers(0, 10_000), st.permutations(range(6)), st.sampled_from(RULES))
@settings(deadline=None, max_examples=25)
def test_permuting_the_batch_permutes_the_output(random_model, aliased, seed, order, rule) -> None:
    model, images = random_model(seed=seed, end=1.0), torch.arange(6)
    straight = beam_search(model, images, aliased, rule=rule, max_length=8, trace=True)
    permuted = beam_search(model, images[list(order)], aliased, rule=rule, max_length=8, trace=True)
    for name in ("ids", "lengths", "log_probs", "scores", "finished", "spatial", "channel"):
        assert torch.equal(getattr(straight, name)[list(order)], getattr(permuted, name)), name


@given(st.integers(0, 10_000), st.integers(0, 7), st.sampled_from(RULES))
@settings(deadline=None, max_examples=25)
def test_other_images_in_the_batch_change_nothing(random_model, aliased, seed, image, rule) -> None:
    model = random_model(seed=seed, end=1.0)
    together = beam_search(model, torch.arange(8), aliased, rule=rule, max_length=8).hypotheses()[image]
    alone = beam_search(model, torch.tensor([image]), aliased, rule=rule, max_length=8).hypotheses()[0]
    assert together == alone


@given(
    seed=st.integers(0, 10_000),
    rule=st.sampled_from(RULES),
    levels=st.sampled_from([0, 2]),
    length_penalty=st.sampled_from([0.0, 0.8, -0.4]),
)
@settings(deadline=None, max_examples=30)
def test_asking_for_the_best_only_gives_the_same_best(
    random_model, aliased, seed, rule, levels, length_penalty
) -> None:
    model = random_model(seed=seed, levels=levels, end=1.0)
    arguments = {"rule": rule, "width": 4, "max_length": 8, "length_penalty": length_penalty}
    everything = beam_search(model, torch.arange(4), aliased, **arguments)
    best = beam_search(model, torch.arange(4), aliased, best_only=True, **arguments)
    assert best.ids.shape[1] == 1
    assert best.best() == everything.best()


def test_only_live_beams_of_unfinished_images_are_computed(random_model, aliased) -> None:
    model = random_model(end=2.0)
    beam_search(model, torch.arange(30), aliased, width=3, max_length=12)
    rows = model.rows_asked
    assert rows[0] == 30, "the first step has one row per image"
    assert rows[1] <= 90
    assert rows == [rows[0], *sorted(rows[1:], reverse=True)], "rows only become fewer"
    assert rows[-1] < 20


def test_best_only_computes_less(random_model, aliased) -> None:
    thrifty, thorough = random_model(end=2.0), random_model(end=2.0)
    beam_search(thrifty, torch.arange(30), aliased, best_only=True)
    beam_search(thorough, torch.arange(30), aliased)
    assert sum(thrifty.rows_asked) < sum(thorough.rows_asked)


def test_the_earlier_rule_stops_when_nothing_live_can_win(table_model, apart) -> None:
    #                      pad bos  eos unk   a     b
    model = table_model([[0.0, 0.0, 0.9, 0.0, 0.06, 0.04]] * 6)
    beam_search(model, torch.tensor([0]), apart, width=1, rule="earlier")
    assert model.rows_asked == [1]


@pytest.mark.parametrize("rule", RULES)
def test_attention_follows_the_beams(random_model, aliased, rule) -> None:
    model = random_model(end=1.0)
    for image, found in enumerate(
        beam_search(model, torch.arange(4), aliased, rule=rule, trace=True, max_length=9).hypotheses()
    ):
        for hypothesis in found:
            values, traces = model.replay(image, hypothesis.ids, aliased.bos)
            assert hypothesis.log_probs == pytest.approx(values, abs=1e-12)
            assert torch.equal(hypothesis.spatial, torch.cat([trace.spatial for trace in traces]))
            assert torch.equal(hypothesis.channel, torch.cat([trace.channel for trace in traces]))


def test_hypotheses_come_from_best_to_worst(random_model, aliased) -> None:
    scores = beam_search(random_model(), torch.arange(5), aliased, width=5, max_length=7).scores
    assert torch.equal(scores, scores.sort(dim=1, descending=True).values)


def test_the_last_step_keeps_sentences_without_an_end(random_model, aliased) -> None:
    result = beam_search(random_model(end=-50.0), torch.arange(3), aliased, max_length=5)
    assert (result.lengths == 5).all()
    assert not result.finished.any()


def test_fewer_sentences_than_beams_leave_empty_places(table_model, apart) -> None:
    #                      pad  bos  eos  unk   a
    model = table_model([[0.0, 0.0, 0.75, 0.0, 0.25]] * 5)
    result = beam_search(model, torch.tensor([0]), apart, width=4, max_length=2)
    assert [h.ids for h in result.hypotheses()[0]] == [(2,), (4, 2), (4, 4)]
    assert result.lengths.tolist() == [[1, 2, 2, 0]]
    assert result.scores[0, 3] == float("-inf")
    assert result.ids[0, 3].tolist() == [apart.pad] * 2


def test_the_earlier_rule_never_says_the_unknown_word(table_model, apart) -> None:
    model = table_model([[0.0, 0.0, 0.1, 0.8, 0.1]] * 5)
    released, earlier = (
        beam_search(model, torch.tensor([0]), apart, rule=rule, width=2, max_length=4) for rule in RULES
    )
    assert (released.ids == apart.unk).any()
    assert not (earlier.ids == apart.unk).any()


def test_low_precision_log_probabilities_are_summed_in_float32(random_model, aliased) -> None:
    model = random_model(dtype=torch.bfloat16)
    assert beam_search(model, torch.arange(2), aliased).scores.dtype == torch.float32


def test_runs_in_inference_mode_and_returns_ordinary_tensors(random_model, aliased) -> None:
    model = random_model()
    result = beam_search(model, torch.arange(2), aliased, trace=True)
    assert all(model.modes)
    assert not any(getattr(result, name).is_inference() for name in ("ids", "log_probs", "spatial", "lengths"))


def test_no_images_give_no_captions(random_model, aliased) -> None:
    assert beam_search(random_model(), torch.arange(0), aliased).hypotheses() == []


def test_nan_is_reported_as_such(table_model, apart) -> None:
    model = table_model([[float("nan")] * 6] * 6)
    with pytest.raises(DecodingError, match="NaN instead of log-probabilities for image 0, 1 of the batch"):
        beam_search(model, torch.tensor([5, 6]), apart)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "beam width: expected at least 1, got 0"),
        ({"rule": "latest"}, "beam rule: expected 'released' or 'earlier', got 'latest'"),
        ({"length_penalty": float("nan")}, "length penalty: expected a finite number, got nan"),
        ({"max_length": -1}, "maximum length: expected at least 1 step, got -1"),
    ],
)
def test_refuses_what_cannot_be(random_model, aliased, arguments, message) -> None:
    with pytest.raises(DecodingError, match=message):
        beam_search(random_model(), torch.arange(2), aliased, **arguments)
