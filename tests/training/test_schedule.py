from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.training.schedule import Constant, Cosine, Noam, Plateau, ScheduledSampling, StepDecay


@pytest.mark.parametrize("width", [768, 1024])
def test_noam_equals_the_released_schedule(optim: dict[str, Any], width: int) -> None:
    noam = Noam(width=width, warmup=10_000)
    for step, rate in optim["noam_lr_used_at_iteration"][str(width)].items():
        assert noam.rate(int(step)) == pytest.approx(rate, rel=1e-12)


def test_noam_peaks_at_the_end_of_the_warmup() -> None:
    noam = Noam(width=64, warmup=50)
    rates = [noam.rate(step) for step in range(200)]
    assert rates.index(max(rates)) == 49


def test_scheduled_sampling_equals_the_released_schedule(optim: dict[str, Any]) -> None:
    schedule = ScheduledSampling(start=12, every=5, step=0.05, maximum=0.5)
    released = optim["xlan_ss_prob_used_in_epoch"]
    assert [schedule.probability(epoch) for epoch in range(len(released))] == pytest.approx(released, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=40), st.integers(0, 4))
def test_plateau_equals_torch(scores: list[float], patience: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=0.8, patience=patience, threshold=1e-4, min_lr=0.0, eps=0.0
    )
    ours = Plateau(1.0, 0.8, patience)
    for score in scores:
        theirs.step(score)
        ours.evaluated(score)
        assert ours.rate(0) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 2), min_size=2, max_size=20), st.integers(0, 19))
def test_plateau_goes_on_from_its_state(scores: list[float], cut: int) -> None:
    whole = Plateau(1.0, 0.5, 1)
    first, second = Plateau(1.0, 0.5, 1), Plateau(1.0, 0.5, 1)
    for score in scores:
        whole.evaluated(score)
    for score in scores[:cut]:
        first.evaluated(score)
    second.restore(first.state())
    for score in scores[cut:]:
        second.evaluated(score)
    assert second.state() == whole.state()


def test_constant_warms_up() -> None:
    schedule = Constant(0.1, warmup=4)
    assert [schedule.rate(step) for step in range(6)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_cosine_falls_to_its_floor() -> None:
    schedule = Cosine(1.0, total=100, warmup=10, floor=0.1)
    assert schedule.rate(9) == pytest.approx(1.0)
    assert schedule.rate(55) == pytest.approx(0.55)
    assert schedule.rate(100) == pytest.approx(0.1)
    assert schedule.rate(10_000) == pytest.approx(0.1)


def test_step_decay_falls_at_the_epochs_told() -> None:
    schedule = StepDecay(1.0, 0.5, every=2, batches=10, start=1)
    rates = [schedule.rate(10 * epoch) for epoch in range(8)]
    assert rates == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert schedule.rate(29) == 1
    assert StepDecay(1.0, 0.5, every=2, batches=10, warmup=4).rate(0) == 0.25
