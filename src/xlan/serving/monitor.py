"""Counters and histograms in the Prometheus text format, version 0.0.4.

Label values come from fixed lists (routes, methods, statuses), never from what a client sent, so that the number of
series is bounded. Everything is called from the event loop's thread.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Counter:
    """A number that only grows, one for each set of label values."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self._labels = name, text, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Count `amount` under these label values."""
        if len(labels) != len(self._labels):
            raise ValueError(f"{self.name}: expected labels {self._labels}, got {labels}")
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def lines(self) -> Iterator[str]:
        """Its samples."""
        for values, number in sorted(self._values.items()):
            yield f"{self.name}{_braces(zip(self._labels, values, strict=True))} {_number(number)}"


class Gauge:
    """A number that is asked for when somebody looks."""

    kind = "gauge"

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self.name, self.text, self._value = name, text, value

    def lines(self) -> Iterator[str]:
        """Its sample."""
        yield f"{self.name} {_number(self._value())}"


class Histogram:
    """How often a number was at most so large."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self._bounds = name, text, tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one number."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> Iterator[str]:
        """Its samples: one for each bound, all smaller ones included."""
        below = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            below += count
            yield f"{self.name}_bucket{_braces([('le', _number(bound))])} {below}"
        yield f"{self.name}_sum {_number(self._sum)}"
        yield f"{self.name}_count {below}"


class Monitor:
    """What a server counts.

    Args:
        model: name of the model.
        version: version of xlan.
        waiting: how many requests wait now.
        working: how many requests are being answered now.
    """

    def __init__(self, *, model: str, version: str, waiting: Callable[[], float], working: Callable[[], float]) -> None:
        began = time.time()
        info = Counter("xlan_info", "Version and model, always 1.", ("version", "model"))
        info.kind = "gauge"
        info.add(version, model)
        self.requests = Counter("xlan_requests_total", "Requests answered.", ("route", "method", "status"))
        self.pictures = Counter("xlan_pictures_total", "Pictures captioned.")
        self.dropped = Counter("xlan_dropped_total", "Requests given up before an answer.", ("reason",))
        self.batch_size = Histogram("xlan_batch_size", "Pictures in a call of the model.", SIZES)
        self.queue_seconds = Histogram("xlan_queue_seconds", "From a whole request until its batch began.", SECONDS)
        self.model_seconds = Histogram("xlan_model_seconds", "A call of the model.", SECONDS)
        self.request_seconds = Histogram("xlan_request_seconds", "From a request's header to its answer.", SECONDS)
        self._metrics = (
            info,
            Gauge("xlan_start_time_seconds", "When the server started, seconds since 1970.", lambda: began),
            Gauge("xlan_queue_length", "Requests accepted and not yet with the model.", waiting),
            Gauge("xlan_requests_in_progress", "Caption requests that are being answered.", working),
            self.requests,
            self.pictures,
            self.dropped,
            self.batch_size,
            self.queue_seconds,
            self.model_seconds,
            self.request_seconds,
        )

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        lines: list[str] = []
        for metric in self._metrics:
            lines.append(f"# HELP {metric.name} {_escape_help(metric.text)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines.extend(metric.lines())
        return "\n".join(lines) + "\n"


def _braces(labels: Iterator[tuple[str, str]] | Sequence[tuple[str, str]] | zip[tuple[str, str]]) -> str:
    inside = ",".join(f'{name}="{_escape(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))
