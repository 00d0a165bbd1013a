"""What a server counts, for Prometheus.

Label values come from fixed lists (routes, methods, statuses), never from what a client sent, so that the number of
series is bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client import disable_created_metrics as _without_created_series

# Our names are plain ASCII, so this version of the format, which every Prometheus reads, is what we write.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
        model: name of the model.
        version: version of xlan.
        waiting: returns how many requests are waiting now.
        working: returns how many requests are being answered now.
    """

    def __init__(self, *, model: str, version: str, waiting: Callable[[], float], working: Callable[[], float]) -> None:
        _without_created_series()  # type: ignore[no-untyped-call]  # one more series per counter, which nobody reads
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, processor time, open files, start time
        Info("xlan", "Version and model.", registry=registry).info({"version": version, "model": model})
        queue_length = Gauge("xlan_queue_length", "Pictures accepted and not yet with the model.", registry=registry)
        queue_length.set_function(waiting)
        in_progress = Gauge("xlan_requests_in_progress", "Caption requests being answered.", registry=registry)
        in_progress.set_function(working)
        self.requests = Counter("xlan_requests", "Requests answered.", ("route", "method", "status"), registry=registry)
        self.pictures = Counter("xlan_pictures", "Pictures captioned.", registry=registry)
        self.dropped = Counter("xlan_dropped", "Pictures given up before an answer.", ("reason",), registry=registry)
        self.batch_size = Histogram(
            "xlan_batch_size", "Pictures in one call of the model.", buckets=SIZES, registry=registry
        )
        self.queue_seconds = Histogram(
            "xlan_queue_seconds", "From a complete request until its batch began.", buckets=SECONDS, registry=registry
        )
        self.model_seconds = Histogram(
            "xlan_model_seconds", "One call of the model.", buckets=SECONDS, registry=registry
        )
        self.request_seconds = Histogram(
            "xlan_request_seconds", "From a request's header to its answer.", buckets=SECONDS, registry=registry
        )

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)
