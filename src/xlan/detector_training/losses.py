"""Which anchors and proposals count as which thing, and what the two stages are punished for.

Both stages learn from a random sample of boxes per picture, as in "Faster R-CNN" (Ren et al., 2015). Boxes that overlap
something unsure (half out of view, or a machine's guess) and nothing else are left out; so are small ones in pictures
that only a machine has looked at, since it overlooks most small things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from xlan.vision.detector.boxes import area, encode, iou
from xlan.vision.detector.lite import LiteHeads, Proposals, Pyramid, Scores, as_rois
from xlan.vision.detector.lite_settings import BOX_WEIGHTS


@dataclass(frozen=True)
class Targets:
    """What is in one picture.

    Attributes:
        boxes: `[G, 4]` in pixels of the input.
        labels: `[G]`.
        unsure: `[U, 4]`.
        blind: boxes with sides below this (the root of their area) that match nothing are unknown, not background.
    """

    boxes: Tensor
    labels: Tensor
    unsure: Tensor
    blind: float = 0.0


@dataclass(frozen=True)
class Sampling:
    """How many boxes of a picture each stage learns from.

    Attributes:
        anchors: of the first stage, at most half of them things.
        proposals_before: anchors that enter suppression.
        proposals: boxes that leave it.
        rois: of the second stage, at most a third of them things.
    """

    anchors: int = 128
    proposals_before: int = 400
    proposals: int = 100
    rois: int = 64


def match(boxes: Tensor, targets: Targets, *, low: float, high: float, best_too: bool) -> tuple[Tensor, Tensor]:
    """Which thing each box stands for: `[N]` index of a target, -1 background, -2 left out; and the overlaps' maximum.

    Args:
        boxes: `[N, 4]`.
        targets: of the picture.
        low: a box with less overlap than this is background.
        high: one with at least this much stands for the thing.
        best_too: the boxes that overlap a thing most stand for it, however little that is.
    """
    found = torch.full((len(boxes),), -1)
    best = boxes.new_zeros(len(boxes))
    if len(targets.boxes):
        overlaps = iou(boxes, targets.boxes)  # [N, G]
        best, index = overlaps.max(dim=1)
        found = torch.where(best >= high, index, torch.where(best < low, -1, -2))
        if best_too:
            peaks = overlaps.amax(dim=0)
            row, column = torch.nonzero((overlaps == peaks) & (peaks > 0), as_tuple=True)
            found[row] = column
    if len(targets.unsure):
        near_unsure = iou(boxes, targets.unsure).amax(dim=1) >= min(low, 0.5)
        found = torch.where((found == -1) & near_unsure, -2, found)
    if targets.blind > 0:
        small = area(boxes) < targets.blind**2
        found = torch.where((found == -1) & small, -2, found)
    return found, best


def sample(found: Tensor, *, count: int, things: float, generator: torch.Generator) -> Tensor:
    """Indices of at most `count` boxes, at most a share `things` of which stand for a thing; the rest is background."""
    positive, negative = torch.nonzero(found >= 0)[:, 0], torch.nonzero(found == -1)[:, 0]
    wanted = min(len(positive), int(count * things))
    positive = positive[torch.randperm(len(positive), generator=generator)[:wanted]]
    negative = negative[torch.randperm(len(negative), generator=generator)[: count - wanted]]
    return torch.cat([positive, negative])


def proposal_losses(
    heads: LiteHeads, scores: Scores, targets: Sequence[Targets], *, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Losses of the first stage: thing or not, and where."""
    object_loss, box_loss = scores.logits.sum() * 0, scores.deltas.sum() * 0
    for logits, deltas, target in zip(scores.logits, scores.deltas, targets, strict=True):
        found, _ = match(heads.anchors, target, low=0.3, high=0.65, best_too=True)
        chosen = sample(found, count=count, things=0.5, generator=generator)
        truth = (found[chosen] >= 0).float()
        object_loss = object_loss + functional.binary_cross_entropy_with_logits(
            logits[chosen], truth, reduction="sum"
        ) / max(1, len(chosen))
        things = chosen[truth > 0]
        if len(things):
            wanted = encode(heads.anchors[things], target.boxes[found[things]])
            box_loss = box_loss + functional.smooth_l1_loss(deltas[things], wanted, beta=1 / 9, reduction="sum") / max(
                1, len(chosen)
            )
    return object_loss / len(targets), box_loss / len(targets)


def region_losses(
    heads: LiteHeads,
    pyramid: Pyramid,
    stride32: Tensor,
    proposals: Sequence[Proposals],
    targets: Sequence[Targets],
    *,
    count: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Losses of the second stage: which class, and where exactly."""
    background = len(heads.spec.classes)
    rois, labels, wanted = [], [], []
    for proposed, target in zip(proposals, targets, strict=True):
        candidates = torch.cat(
            [proposed.boxes, target.boxes]
        )  # the truth itself is among them, so that there are things
        found, _ = match(candidates, target, low=0.5, high=0.5, best_too=False)
        chosen = sample(found, count=count, things=1 / 3, generator=generator)
        rois.append(candidates[chosen])
        index = found[chosen]
        thing = index >= 0
        label = torch.full((len(chosen),), background)
        label[thing] = target.labels[index[thing]]
        deltas = candidates.new_zeros(len(chosen), 4)
        deltas[thing] = encode(rois[-1][thing], target.boxes[index[thing]], weights=BOX_WEIGHTS)
        labels.append(label)
        wanted.append(deltas)
    truth, goal = torch.cat(labels), torch.cat(wanted)
    logits, deltas = heads.look(pyramid, stride32, as_rois(rois))
    class_loss = functional.cross_entropy(logits.float(), truth, reduction="sum") / max(1, len(truth))
    thing = truth < background
    box_loss = functional.smooth_l1_loss(deltas.float()[thing], goal[thing], reduction="sum") / max(1, len(truth))
    return class_loss, box_loss
