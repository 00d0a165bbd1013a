"""Do the tensors of a file fit a network? One report for all weights, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

MAX_LISTED = 10


def compare_weights(
    expected: Mapping[str, Sequence[int]], got: Mapping[str, Sequence[int]], *, unknown: Iterable[str] = ()
) -> str:
    """What is missing, unexpected and misshapen among weights, in one line; empty when they fit.

    Args:
        expected: shapes by name that a model needs.
        got: shapes by name that a file has.
        unknown: further names in the file that belong to no part of the model.
    """
    shapes = [
        f"{name} {list(got[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in got and tuple(got[name]) != tuple(shape)
    ]
    faults = {
        "missing": [name for name in expected if name not in got],
        "unexpected": [*unknown, *(name for name in got if name not in expected)],
        "misshapen": shapes,
    }
    return "; ".join(f"{what}: {_some(names)}" for what, names in faults.items() if names)


def _some(names: list[str]) -> str:
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
