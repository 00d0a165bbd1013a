"""Where in a caption models are better or worse: cross-entropy per word by place, on people's captions of a split.

    python runs/loss_by_place.py CAPTIONS FEATURES MODEL... [--split val] [--images 1000] [--places 11] [--blind]

The first place is the first word; a caption's end counts as a word. Prints a table in Markdown, a row for each model.
With --blind, a second row has the loss when every caption is read beside the features of another picture, and a third
the difference: how much the model learns from the picture, and not from the words before.
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


def loss_by_place(
    model: str, captions: str, features: str, *, split: str, images: int, blind: bool = False
) -> tuple[torch.Tensor, float]:
    """Mean loss at each place `[T]`, not a number where no caption is that long, and the mean over all words.

    With `blind`, every picture is replaced by its neighbour in the batch.
    """
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
            seen = (batch.features, batch.mask, batch.boxes)
            if blind:
                seen = tuple(None if one is None else one.roll(1, dims=0) for one in seen)
            logits = policy(*seen[:2], batch.inputs, batch.lengths, batch.owner, boxes=seen[2])
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
    parser.add_argument("--blind", action="store_true", help="also with the features of other pictures")
    given = parser.parse_args(arguments)
    print("| model | " + " | ".join(str(place + 1) for place in range(given.places)) + " | all |")
    print("|---" * (given.places + 2) + "|")
    for model in given.models:
        found = [
            loss_by_place(model, given.captions, given.features, split=given.split, images=given.images, blind=blind)
            for blind in ((False, True) if given.blind else (False,))
        ]
        _print_row(model, *found[0], given.places)
        if given.blind:
            (right, mean), (wrong, blind_mean) = found
            _print_row(f"{model}, other pictures", wrong, blind_mean, given.places)
            _print_row(f"{model}, learned from the picture", wrong - right, blind_mean - mean, given.places)


def _print_row(name: str, by_place: torch.Tensor, mean: float, places: int) -> None:
    print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in by_place[:places]) + f" | {mean:.3f} |")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except XlanError as error:
        sys.exit(f"error: {error}")
