from __future__ import annotations

import torch

from xlan.decoding import DecodingResult, Hypothesis


def result() -> DecodingResult:
    return DecodingResult(
        ids=torch.tensor([[[5, 6, 2], [5, 2, 0]], [[7, 7, 7], [0, 0, 0]]]),
        lengths=torch.tensor([[3, 2], [3, 0]]),
        log_probs=torch.tensor([[[-1.0, -2.0, -3.0], [-4.0, -5.0, 0.0]], [[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]]]),
        scores=torch.tensor([[-2.0, -4.5], [-1.0, float("-inf")]]),
        finished=torch.tensor([[True, True], [False, False]]),
        spatial=torch.arange(24.0).view(2, 2, 3, 2),
    )


def test_records_stop_where_sentences_do_and_skip_empty_places() -> None:
    (first, second), (third,) = result().hypotheses()
    assert first.ids == (5, 6, 2)
    assert first.words == (5, 6)
    assert second.log_probs == (-4.0, -5.0)
    assert second.spatial.tolist() == [[6.0, 7.0], [8.0, 9.0]]
    assert third.words == third.ids == (7, 7, 7)
    assert third.channel is None


def test_totals_are_sums_whatever_the_ranking() -> None:
    assert result().totals.tolist() == [[-6.0, -9.0], [-3.0, float("-inf")]]
    assert result().hypotheses()[0][0].total == -6.0
    assert result().hypotheses()[0][0].score == -2.0


def test_best_is_the_first_of_each_image() -> None:
    assert [found.ids for found in result().best()] == [(5, 6, 2), (7, 7, 7)]
    assert all(isinstance(found, Hypothesis) for found in result().best())


def test_mask_marks_what_was_said() -> None:
    assert result().mask.tolist() == [
        [[True, True, True], [True, True, False]],
        [[True, True, True], [False, False, False]],
    ]
