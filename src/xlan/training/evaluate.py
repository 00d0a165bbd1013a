"""Evaluation: decode a split, write the predictions in COCO's result format, then score them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xlan.data.collate import CaptionBatch, ImageBatch
from xlan.decoding.beam import beam_search
from xlan.files import write_json
from xlan.metrics.coco import plain_id
from xlan.text.vocab import Vocabulary
from xlan.training.distributed import World
from xlan.training.losses import caption_loss
from xlan.training.scoring import Scores
from xlan.training.steps import evaluating
from xlan.training.stop import StopRequest

Score: TypeAlias = Callable[[Mapping[str, str], Mapping[str, Sequence[str]]], Scores]


def decode_split(
    policy: Any,
    batches: Iterable[ImageBatch],
    vocabulary: Vocabulary,
    *,
    device: torch.device,
    beams: int,
    max_length: int,
    stop: StopRequest | None = None,
) -> dict[str, str]:
    """Caption of every image id of this process's share of a split, by beam search.

    Args:
        policy: the bare model, as a Stepper.
        batches: images.
        vocabulary: turns ids into words.
        device: where the model is.
        beams: width of the search.
        max_length: longest caption, end included.
        stop: checked between batches; a request ends the decoding, since a checkpoint was written before.
    """
    captions: dict[str, str] = {}
    with torch.inference_mode(), evaluating(policy):
        for some in batches:
            if stop is not None:
                stop.check()
            batch = some.to(device)
            encoded = policy.encode(batch.features, batch.mask, batch.boxes)
            found = beam_search(policy, encoded, vocabulary.special, width=beams, max_length=max_length, best_only=True)
            for image, best in zip(batch.image_ids, found.best(), strict=True):
                captions[image] = vocabulary.decode(best.words)
    return captions


def reference_loss(
    policy: Any, batches: Iterable[CaptionBatch], *, world: World, stop: StopRequest | None = None
) -> float:
    """Cross-entropy per word of people's captions of a split, over all processes; without dropout and smoothing.

    Args:
        policy: the bare model.
        batches: this process's share of the images, with their captions.
        world: the processes of the run.
        stop: checked between batches.
    """
    total = words = 0.0
    with torch.inference_mode(), evaluating(policy):
        for some in batches:
            if stop is not None:
                stop.check()
            batch = some.to(world.device)
            # Not through hooks, which would gather sharded weights that the caller has gathered already.
            inputs = (batch.features, batch.mask, batch.inputs, batch.lengths, batch.owner)
            logits = policy.forward(*inputs, boxes=batch.boxes)
            total += float(caption_loss(logits, batch.targets, batch.lengths, reduction="sum"))
            words += logits.shape[0]
    total, words = world.sum([total, words])
    return total / max(1.0, words)


def evaluate_split(
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    world: World,
    path: str | os.PathLike[str],
    score: Score,
) -> Scores:
    """Bring all processes' captions together, write them to `path`, score them; the same scores on every process."""
    shares = world.gather(dict(captions))
    scores: Scores | None = None
    if world.is_main:
        whole = {image: caption for share in shares for image, caption in share.items()}
        write_predictions(path, whole)
        scores = score(whole, references)
    scores = world.broadcast(scores)
    assert scores is not None
    return scores


def write_predictions(path: str | os.PathLike[str], captions: Mapping[str, str]) -> None:
    """Write captions in COCO's result format; ids that are numbers are written as numbers, as COCO has them."""
    write_json(path, [{"image_id": plain_id(image), "caption": text} for image, text in captions.items()], indent=None)
