"""How fast beam search is: images per second from region features to captions, encoder included.

Full-size models with random weights, 50 images of 50 regions, beam 3, float32. Three runs of each model, interleaved so
that all see the same weather, and the median of each:

    worst   no sentence ever ends: all beams run for 17 steps
    coco    sentences end as COCO captions do (lengths drawn from their distribution, beams of an image within a word)
    naive   the plain way, in this file: every step re-projects the keys and sorts all words of all beams, nothing stops
            early (so that it costs the same whenever sentences end)

Random weights would never end a sentence on purpose, so a wrapper around the model makes `eos` certain where the script
says so and impossible elsewhere; it costs nothing next to a step.

The floor is the time of the matrix products alone: their operations, as they occur in the run, at the rate of a large
product (2048 × 2048 × 2048) measured between the runs. Since a step multiplies by 150 rows only, the time of the same
products one by one in their own shapes is given too. How the released code itself compares is in RESULTS.md.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from xlan.decoding import MAX_LENGTH, beam_search
from xlan.model.build import build_model
from xlan.types import SpecialIds, StepTrace

SPECIAL = SpecialIds(pad=0, bos=0, eos=0, unk=9487)
CLOCK = time.perf_counter
MODELS = ("xlan", "xtransformer")
# Per cent of COCO's captions with so many words (16: or more), cut off as the released code does.
COCO_LENGTHS = {7: 0.8, 8: 16.4, 9: 21.8, 10: 21.4, 11: 15.6, 12: 9.8, 13: 5.6, 14: 3.2, 15: 1.9, 16: 3.3}


@dataclass(frozen=True)
class ScriptedState:
    inner: Any
    ends: Tensor  # number of words after which each row ends, [R]
    step: int

    @property
    def rows(self) -> int:
        return int(self.inner.rows)

    @property
    def device(self) -> torch.device:
        return self.ends.device

    @property
    def trace(self) -> StepTrace | None:
        return None

    def select(self, index: Tensor) -> ScriptedState:
        ends = self.ends[index]
        if self.step == 1:  # the first branching: beams of one image end within a word of each other
            ends = ends + torch.arange(len(ends)) % 3 - 1
        return ScriptedState(self.inner.select(index), ends, self.step)


class Scripted:
    """A model whose sentences end when `ends` (`[B]` words) says so; None: never."""

    def __init__(self, model: Any, ends: Tensor | None) -> None:
        self.model = model
        self.ends = ends
        self.vocab_size = model.vocab_size

    def start(self, encoded: Any, *, trace: bool = False) -> ScriptedState:
        ends = torch.full((len(encoded),), 2 * MAX_LENGTH) if self.ends is None else self.ends
        return ScriptedState(self.model.start(encoded, trace=trace), ends, 0)

    def step(self, tokens: Tensor, state: ScriptedState) -> tuple[Tensor, ScriptedState]:
        log_probs, inner = self.model.step(tokens, state.inner)
        over = state.ends <= state.step
        if bool(over.any()):
            log_probs[over] = float("-inf")
        log_probs[:, SPECIAL.eos] = torch.where(over, 0.0, float("-inf"))
        return log_probs, replace(state, inner=inner, step=state.step + 1)


def naive_search(model: Any, encoded: Any, width: int) -> Tensor:
    """Beam search the plain way, for sentences that never end: `[B, width]` scores."""
    state = model.start(encoded)
    images = state.rows
    total = torch.zeros(images, 1)
    finished = torch.zeros(images, 1, dtype=torch.bool)
    tokens = torch.full((images,), SPECIAL.bos)
    for _ in range(MAX_LENGTH):
        fresh = model.start(encoded)
        shared = {f.name for f in fields(state)} & {"memory", "regions", "image"}
        state = replace(state, **{name: getattr(fresh, name) for name in shared})
        log_probs, state = model.step(tokens, state)
        log_probs[:, SPECIAL.eos] = float("-inf")
        beams, vocab_size = total.shape[1], log_probs.shape[1]
        candidates = total.unsqueeze(2) + log_probs.view(images, beams, vocab_size)
        stay = torch.full_like(candidates, float("-inf"))
        stay[:, :, SPECIAL.eos] = total
        candidates = torch.where(finished.unsqueeze(2), stay, candidates)
        scores, order = candidates.flatten(1).sort(dim=1, descending=True)
        total, chosen = scores[:, :width], order[:, :width]
        parent, word = chosen // vocab_size, chosen % vocab_size
        finished = finished.gather(1, parent) | (word == SPECIAL.eos)
        state = state.select((parent + torch.arange(images).unsqueeze(1) * beams).flatten())
        tokens = word.flatten()
    return total


class MatmulRecorder(TorchDispatchMode):
    """Notes the shape of every matrix product: (batch, m, k, n) → how often."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, int, int, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("linear", "matmul"):  # inference mode shows these whole
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
            batch = left.shape[0] if left.dim() == 3 else 1
            self.shapes[batch, left.shape[-2], left.shape[-1], right.shape[-1]] += 1
        return func(*args, **(kwargs or {}))

    @property
    def operations(self) -> float:
        return sum(2.0 * b * m * k * n * times for (b, m, k, n), times in self.shapes.items())

    def seconds_one_by_one(self) -> float:
        """Time of the same products in their own shapes, with weights that are not in the cache."""
        total = 0.0
        for (b, m, k, n), times in self.shapes.items():
            shape = (b,) if b > 1 else ()
            left = torch.randn(*shape, m, k)
            rights = [torch.randn(*shape, n, k).transpose(-1, -2) for _ in range(max(1, min(4, (1 << 24) // (n * k))))]
            torch.matmul(left, rights[0])
            spent = [
                seconds(functools.partial(torch.matmul, left, rights[i % len(rights)]))
                for i in range(min(10, times + 2))
            ]
            total += times * median(spent)
        return total


def seconds(work: Callable[[], Any]) -> float:
    start = CLOCK()
    work()
    return CLOCK() - start


def large_product_rate(size: int = 2048, repeats: int = 3) -> float:
    matrix = torch.randn(size, size)
    out = torch.empty_like(matrix)
    return 2.0 * size**3 / min(seconds(lambda: torch.mm(matrix, matrix, out=out)) for _ in range(repeats))


def coco_lengths(images: int) -> Tensor:
    weights = torch.tensor(list(COCO_LENGTHS.values()))
    drawn = torch.multinomial(weights, images, replacement=True, generator=torch.Generator().manual_seed(3))
    return torch.tensor(list(COCO_LENGTHS))[drawn]


@torch.inference_mode()
def measure(name: str, images: int, regions: int, width: int, repeats: int) -> None:
    torch.manual_seed(0)
    model = build_model(name, vocab_size=9488).eval()
    features = torch.randn(images, regions, model.feature_dim).relu_()
    never, coco = Scripted(model, None), Scripted(model, coco_lengths(images))
    works: dict[str, Callable[[], Any]] = {
        "worst": lambda: beam_search(never, model.encode(features), SPECIAL, width=width),
        "coco": lambda: beam_search(coco, model.encode(features), SPECIAL, width=width),
        "coco, best only": lambda: beam_search(coco, model.encode(features), SPECIAL, width=width, best_only=True),
        "naive": lambda: naive_search(model, model.encode(features), width),
        "encoder alone": lambda: model.encode(features),
    }
    apart = float((works["worst"]().scores - works["naive"]()).abs().max())  # also warms up
    recorded = {}
    for label, work in works.items():
        with MatmulRecorder() as recorder:
            work()
        recorded[label] = recorder
    spent: dict[str, list[float]] = {label: [] for label in works}
    rates = []
    for _ in range(repeats):
        for label, work in works.items():
            rates.append(large_product_rate())
            spent[label].append(seconds(work))
    rate = median(rates)
    own = recorded["worst"].seconds_one_by_one()

    parameters = sum(p.numel() for p in model.parameters())
    print(f"\n{name}: {parameters:,} parameters, {images} images × {regions} regions, beam {width}, {repeats} repeats")
    print(f"large products {rate / 1e9:.0f} GFLOP/s (from {min(rates) / 1e9:.0f} to {max(rates) / 1e9:.0f}); ", end="")
    print(f"scores of the naive search differ by at most {apart:.0e}")
    print(f"{'':18}{'seconds':>9}{'images/s':>10}{'GFLOP':>8}{'floor s':>9}{'/ floor':>9}{'naive ×':>9}")
    naive = median(spent["naive"])
    for label, times in spent.items():
        took, floor = median(times), recorded[label].operations / rate
        decodes = label != "encoder alone"
        print(
            f"{label:18}{took:9.2f}{images / took:10.1f}{recorded[label].operations / 1e9:8.0f}{floor:9.2f}"
            f"{took / floor:9.2f}" + (f"{naive / took:9.2f}" if decodes else "")
        )
    print(f"the products of 'worst' one by one in their own shapes: {own:.2f} s")
    worst = median(spent["worst"]) / (recorded["worst"].operations / rate)
    print(f"target: worst ≤ 1.5 × floor: {worst:.2f} {'met' if worst <= 1.5 else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--regions", type=int, default=50)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="one thread, processor time: for busy machines")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        global CLOCK
        CLOCK = time.process_time
        torch.set_num_threads(1)
    for name in arguments.models:
        measure(name, arguments.images, arguments.regions, arguments.width, arguments.repeats)


if __name__ == "__main__":
    main()
