"""Where in a caption models are better or worse: cross-entropy per word by place, on people's captions of a split.

    python runs/loss_by_place.py CAPTIONS FEATURES MODEL... [--split val] [--images 1000] [--places 11]

The first place is the first word; a caption's end counts as a word. Prints a table in Markdown, a row for each model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from xlan.data.captions import CaptionSet, load_captions
from xlan.data.dataset import CaptionDataset
from xlan.data.loader import reference_loader
from xlan.errors import XlanError
from xlan.lengths import real_positions
from xlan.pretrained import from_pretrained
from xlan.vision.store import FeatureStore

CAPTIONS_PER_IMAGE = 5


def loss_by_place(model: str, captions: str, features: str, *, split: str, images: int) -> tuple[torch.Tensor, float]:
    """Mean loss at each place `[T]`, not a number where no caption is that long, and the mean over all words."""
    loaded = from_pretrained(model)
    policy = loaded.model.eval()
    said = load_captions(captions)
    dataset = CaptionDataset(
        CaptionSet(said.split(split)[:images], said.source, said.form),
        FeatureStore(features),
        loaded.vocabulary,
        split=split,
        missing="skip",
        feature_dim=policy.feature_dim,
    )
    total, words = torch.zeros(512, dtype=torch.float64), torch.zeros(512, dtype=torch.float64)
    with torch.inference_mode():
        for batch in reference_loader(dataset, batch_size=10, captions_per_image=CAPTIONS_PER_IMAGE):
            logits = policy(batch.features, batch.mask, batch.inputs, batch.lengths, batch.owner, boxes=batch.boxes)
            real = real_positions(batch.lengths, batch.targets.shape[1])
            loss = F.cross_entropy(logits.float(), batch.targets[real], reduction="none")
            places = torch.arange(batch.targets.shape[1]).expand_as(batch.targets)[real]
            total.index_add_(0, places, loss.double())
            words.index_add_(0, places, torch.ones_like(loss, dtype=torch.float64))
    return total / words, float(total.sum() / words.sum())


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Loss per word by place in the caption.")
    parser.add_argument("captions")
    parser.add_argument("features")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--split", default="val")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--places", type=int, default=11)
    given = parser.parse_args(arguments)
    print("| model | " + " | ".join(str(place + 1) for place in range(given.places)) + " | all |")
    print("|---" * (given.places + 2) + "|")
    for model in given.models:
        by_place, mean = loss_by_place(model, given.captions, given.features, split=given.split, images=given.images)
        print(f"| {model} | " + " | ".join(f"{value:.3f}" for value in by_place[: given.places]) + f" | {mean:.3f} |")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except XlanError as error:
        sys.exit(f"error: {error}")
