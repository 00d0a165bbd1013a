"""Teach the head that names words again, on the features that a model sees.

    python runs/word_head.py WORDS CAPTIONS FEATURES OUTPUT [--epochs 1] [--limit N]

`xlan adapt` trains the head on random views while the network below it changes. Here the network stays, and the head
learns from the whole pictures of a feature store: the same words, the same loss. Prints the validation loss per picture
and the mean average precision before and after; the averaged weights are written to `OUTPUT`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.adapt.data import Floats, word_targets
from xlan.adapt.network import mean_average_precision
from xlan.data.captions import load_captions
from xlan.data.records import CaptionedImage, feature_key
from xlan.errors import XlanError
from xlan.vision.store import FeatureStore
from xlan.vision.words import WordHead, parts

BATCH, RATE, AVERAGE, DROPOUT = 32, 5e-4, 0.998, 0.1


def main() -> None:
    """Read, train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("words", "captions", "features", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--limit", type=int, help="train on the first images only")
    options = parser.parse_args()
    torch.manual_seed(0)
    head, store, captions = (
        WordHead.load(options.words),
        FeatureStore(options.features),
        load_captions(options.captions),
    )
    train, val = (
        [image for image in captions.split(split)[:limit] if feature_key(image, store)]
        for split, limit in (("train", options.limit), ("val", None))
    )
    layer = nn.Linear(head.weight.shape[1], len(head.words))
    layer.load_state_dict({"weight": torch.from_numpy(head.weight), "bias": torch.from_numpy(head.bias)})
    report("before", layer, store, val, head.words)
    averaged = learn(layer, store, train, head.words, epochs=options.epochs)
    report("after", averaged, store, val, head.words)
    WordHead(head.words, averaged.weight.detach().numpy(), averaged.bias.detach().numpy()).save(options.output)


def batches(store: FeatureStore, images: Sequence[CaptionedImage]) -> Iterator[tuple[list[CaptionedImage], Tensor]]:
    """Some images at a time, with the features of their parts `[B, N, D]`; all have the same number of parts."""
    for start in range(0, len(images), BATCH):
        some = list(images[start : start + BATCH])
        arrays = [parts(store[str(feature_key(image, store))]) for image in some]
        yield some, torch.from_numpy(np.stack(arrays).astype(np.float32))


def logits(layer: nn.Linear, features: Tensor) -> Tensor:
    """`[B, N, D]` → `[B, W]`: the parts vote, pooled by log-mean-exp as in `WordHead.logits`."""
    with torch.autocast("cpu", torch.bfloat16):
        votes = layer(features)
    return votes.float().logsumexp(dim=1) - math.log(votes.shape[1])


def learn(
    layer: nn.Linear, store: FeatureStore, images: Sequence[CaptionedImage], words: Sequence[str], *, epochs: float
) -> nn.Linear:
    """Adam with a rate that falls to zero; gives back the averaged weights."""
    targets = word_targets(images, words)  # type: ignore[arg-type]
    place = {image.id: i for i, image in enumerate(images)}
    averaged = nn.Linear(layer.in_features, layer.out_features)
    averaged.load_state_dict(layer.state_dict())
    optimizer = torch.optim.Adam(layer.parameters(), lr=RATE, betas=(0.9, 0.98))
    total, step, began = round(epochs * len(images) / BATCH), 0, time.monotonic()
    random = np.random.default_rng(0)
    while step < total:
        order = [images[i] for i in random.permutation(len(images))]
        for some, features in batches(store, order):
            if step == total:
                break
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / total))
            found = logits(layer, F.dropout(features, DROPOUT))
            wanted = torch.from_numpy(targets[[place[image.id] for image in some]])
            loss = F.binary_cross_entropy_with_logits(found, wanted, reduction="sum") / len(some)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mine, new in zip(averaged.parameters(), layer.parameters(), strict=True):
                    mine.lerp_(new, 1 - min(AVERAGE, (step + 1) / (step + 10)))
            step += 1
            if step % 100 == 0:
                left = (time.monotonic() - began) / step * (total - step)
                print(f"step {step} of {total}  loss {loss.item():.2f}  {left / 60:.0f} min left", file=sys.stderr)
    return averaged


@torch.inference_mode()
def report(
    name: str, layer: nn.Linear, store: FeatureStore, images: Sequence[CaptionedImage], words: Sequence[str]
) -> None:
    """Print how well a head does."""
    targets: Floats = word_targets(images, words)  # type: ignore[arg-type]
    found = torch.cat([logits(layer, features) for _, features in batches(store, images)])
    loss = float(F.binary_cross_entropy_with_logits(found, torch.from_numpy(targets), reduction="sum")) / len(images)
    print(f"{name}: loss {loss:.3f}, mean average precision {mean_average_precision(found.numpy(), targets > 0):.4f}")


if __name__ == "__main__":
    try:
        main()
    except XlanError as error:
        sys.exit(f"error: {error}")
