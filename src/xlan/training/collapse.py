"""Detects early that self-critical training goes wrong.

A reward can be cheated: captions shrink, end on "a", or become one sentence for every picture, while the loss looks
fine. Running means are compared with the best stretch seen so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

WATCHED = ("reward", "length", "bad_endings", "entropy", "distinct")


class CollapseWatch:
    """Compares the last `window` steps with the stretch that had the best reward.

    Args:
        window: steps per running mean.
        fall: share of the best reward whose loss counts as a collapse.
    """

    def __init__(self, window: int, *, fall: float = 0.2) -> None:
        self.window = window
        self.fall = fall
        self._recent: dict[str, deque[float]] = {name: deque(maxlen=window) for name in WATCHED}
        self._best: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._warned: set[str] = set()

    def update(self, values: Mapping[str, float]) -> list[str]:
        """Take in one step's means (those of `WATCHED`); returns warnings not given before."""
        for name in WATCHED:
            self._recent[name].append(values[name])
        if len(self._recent["reward"]) < self.window:
            return []
        now = {name: sum(recent) / len(recent) for name, recent in self._recent.items()}
        if not self._first:
            self._first = now
        if not self._best or now["reward"] > self._best["reward"]:
            self._best = now
        found = self._problems(now)
        fresh = [text for key, text in found.items() if key not in self._warned]
        # A problem that went away and comes back is reported again.
        self._warned = set(found)
        return fresh

    def _problems(self, now: Mapping[str, float]) -> dict[str, str]:
        best, first = self._best, self._first
        found: dict[str, str] = {}
        if now["reward"] < best["reward"] - self.fall * abs(best["reward"]):
            found["reward"] = (
                f"the reward fell from {best['reward']:.3f} to {now['reward']:.3f} over {self.window} steps; "
                f"lower train.optimizer.lr or go back to the best checkpoint"
            )
        if now["length"] < 0.6 * best["length"] or now["length"] > 1.6 * best["length"]:
            found["length"] = f"captions went from {best['length']:.1f} to {now['length']:.1f} words on average"
        if now["bad_endings"] > best["bad_endings"] + 0.2:
            found["bad_endings"] = (
                f"{now['bad_endings']:.0%} of the captions end on a word like 'a' or 'of': does the reward count the "
                f"end of the caption?"
            )
        if now["entropy"] < 0.1 * first["entropy"]:
            found["entropy"] = f"the entropy per word fell from {first['entropy']:.2f} to {now['entropy']:.2f}"
        if now["distinct"] < 0.25 * first["distinct"]:
            found["distinct"] = f"only {now['distinct']:.0%} of the sampled captions of a step differ from one another"
        return {key: f"training may be collapsing: {text}" for key, text in found.items()}

    def state(self) -> dict[str, Any]:
        """What must be remembered to continue, as JSON values."""
        return {
            "recent": {name: list(values) for name, values in self._recent.items()},
            "best": self._best,
            "first": self._first,
            "warned": sorted(self._warned),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        for name in WATCHED:
            self._recent[name] = deque(state["recent"][name], maxlen=self.window)
        self._best, self._first = dict(state["best"]), dict(state["first"])
        self._warned = set(state["warned"])
