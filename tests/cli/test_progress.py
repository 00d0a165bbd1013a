"""Progress of long commands in a log."""

from __future__ import annotations

import pytest

from xlan.cli import progress


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (720, "12 min"), (11_100, "3 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_a_log_gets_lines_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 25.0, 50.0, 60.0, 110.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.count_progress("extracting") as move:
        for done in (5_000, 5_100, 5_400, 5_500, 6_000):  # 5,000 are from an earlier run
            move(done, 7_000)
    assert capsys.readouterr().err.splitlines() == [
        "extracting: 5,400 of 7,000 (77%), about 3 min left",
        "extracting: 6,000 of 7,000 (86%), about 2 min left",
    ]


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bytes_progress("importing") as move:
        for done in range(0, 100, 10):
            move(done, 100)
    assert capsys.readouterr().err == ""
