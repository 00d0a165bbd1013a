"""What Prometheus reads."""

from __future__ import annotations

import re

import pytest

from xlan.serving.monitor import Counter, Histogram, Monitor

SAMPLE = re.compile(
    r'^[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? (\+Inf|-?[0-9.e+-]+)$'
)


def make() -> Monitor:
    return Monitor(model='od"d\\name\n', version="1", waiting=lambda: 3, working=lambda: 4.5)


def test_every_line_is_well_formed_and_every_metric_is_described() -> None:
    monitor = make()
    monitor.requests.add("/v1/captions", "POST", "200")
    monitor.batch_size.observe(16)
    text = monitor.text()
    assert text.endswith("\n")
    described = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            described.add(line.split()[2])
            assert line.split()[3] in ("counter", "gauge", "histogram")
        elif not line.startswith("# HELP "):
            assert SAMPLE.match(line), line
            name = re.split(r"[{ ]", line)[0]
            assert {name, re.sub(r"_(bucket|sum|count)$", "", name)} & described, line


def test_label_values_are_escaped() -> None:
    assert r'model="od\"d\\name\n"' in make().text()


def test_gauges_are_asked_when_somebody_looks() -> None:
    assert "\nxlan_queue_length 3\n" in make().text()
    assert "\nxlan_requests_in_progress 4.5\n" in make().text()


def test_a_histogram_counts_all_that_is_smaller() -> None:
    histogram = Histogram("h", "", (1, 2))
    for value in (0.5, 1, 1.5, 9):
        histogram.observe(value)
    assert list(histogram.lines()) == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="2"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 12",
        "h_count 4",
    ]


def test_a_counter_wants_all_its_labels() -> None:
    counter = Counter("c", "", ("a", "b"))
    with pytest.raises(ValueError, match=r"c: expected labels \('a', 'b'\), got \('x',\)"):
        counter.add("x")
