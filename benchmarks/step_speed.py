"""Training step against its own matrix multiplications, of X-LAN and X-Transformer or of any other named models.

    python benchmarks/step_speed.py [--models xlan xtransformer] [--dim N] [--images 10] [--repeats 5]
    python benchmarks/step_speed.py --dim 512 --models xlan lstm show-tell lstm-a3 att2in att2all updown updown-lb \
        gcn-lstm-spatial aoanet

One cross-entropy step (forward, loss, backward; the optimiser apart) on 10 images × 5 captions, 50 regions, caption
lengths as in COCO. The floor is the floating-point operations of the step's own matrix products, divided by the rate at
which this machine multiplies large matrices in the same run, measured in turns with the steps. Peak memory is what the
process needs above what weights and gradients take.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from xlan import build_model
from xlan.lengths import real_positions

CAPTIONS, REGIONS, FEATURES, VOCAB, WORDS = 5, 50, 2048, 9488, 17
# Words per caption in COCO, in percent: 8 to 16 (longer ones are cut to 16 words and an end).
COCO_LENGTHS = {8: 14, 9: 22, 10: 22, 11: 15, 12: 10, 13: 7, 14: 4, 15: 3, 16: 3}


def batch(images: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(images, REGIONS, FEATURES, generator=generator)
    mask = torch.ones(images, REGIONS, dtype=torch.bool)
    chances = torch.tensor(list(COCO_LENGTHS.values()), dtype=torch.float)
    words = torch.tensor(list(COCO_LENGTHS))[torch.multinomial(chances, images * CAPTIONS, True, generator=generator)]
    tokens = torch.randint(1, VOCAB, (images * CAPTIONS, WORDS), generator=generator)
    corner = torch.rand(images, REGIONS, 2, generator=generator) / 2
    boxes = torch.cat([corner, corner + torch.rand(images, REGIONS, 2, generator=generator) / 5], dim=-1)
    return features, mask, tokens, words + 1, boxes  # and the end


def gemm_rate(size: int = 2048) -> float:
    """Floating-point operations per second of one large float32 product, best of three."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = min(timed(lambda: a @ b) for _ in range(3))
    return 2 * size**3 / best


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def resident() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
        file.write("5")


def peak() -> int:
    with open("/proc/self/status") as file:  # noqa: PTH123
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) * 1024


def measure(name: str, images: int, repeats: int, **sizes: int) -> None:
    torch.manual_seed(0)
    model = build_model(name, vocab_size=VOCAB, feature_dim=FEATURES, **sizes)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    features, mask, tokens, lengths, boxes = batch(images)
    targets = tokens.roll(-1, 1)[real_positions(lengths, WORDS)]

    def step() -> None:
        logits = model(features, mask, tokens, lengths, boxes=boxes)
        F.cross_entropy(logits, targets).backward()

    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    optimiser.step()
    rates, times, optimiser_times = [], [], []
    base = resident()
    reset_peak()
    for _ in range(repeats):
        rates.append(gemm_rate())
        optimiser.zero_grad(set_to_none=False)
        times.append(timed(step))
        optimiser_times.append(timed(optimiser.step))
    rate, seconds = statistics.median(rates), statistics.median(times)
    floor = flops / rate
    print(
        f"{name:16s} {images} images × {CAPTIONS}: {seconds:6.2f} s/step  floor {floor:5.2f} s "
        f"({flops / 1e9:.0f} GFLOP at {rate / 1e9:.0f} GFLOP/s)  ratio {seconds / floor:4.2f}  "
        f"optimiser {statistics.median(optimiser_times):.2f} s  {images * CAPTIONS / seconds:5.1f} captions/s  "
        f"{lengths.sum()} words  peak +{(peak() - base) / 1e9:.2f} GB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["xlan", "xtransformer"])
    parser.add_argument("--dim", type=int, help="one width for all models, instead of each one's own")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for name in options.models:
        measure(name, options.images, options.repeats, **({} if options.dim is None else {"dim": options.dim}))


if __name__ == "__main__":
    main()
