"""What Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from xlan.serving.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.text().decode("utf-8"))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def make() -> Metrics:
    return Metrics(model='od"d\\name\n', version="1", waiting=lambda: 3, working=lambda: 4.5)


def test_gauges_are_read_when_somebody_looks() -> None:
    found = samples(make())
    assert found["xlan_queue_length", ()] == 3
    assert found["xlan_requests_in_progress", ()] == 4.5
    assert found["xlan_info", (("model", 'od"d\\name\n'), ("version", "1"))] == 1


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = make(), make()
    first.pictures.inc()
    first.requests.labels("/v1/captions", "POST", "200").inc()
    assert samples(first)["xlan_pictures_total", ()] == 1
    assert samples(second)["xlan_pictures_total", ()] == 0
    assert not [name for name, _ in samples(second) if name == "xlan_requests_total"]


def test_no_series_that_only_tells_when_a_counter_was_made() -> None:
    metrics = make()
    metrics.batch_size.observe(16)
    found = samples(metrics)
    assert found["xlan_batch_size_bucket", (("le", "16.0"),)] == 1
    assert not [name for name, _ in found if name.endswith("_created")]
