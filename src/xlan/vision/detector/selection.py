"""Which proposals become regions, and with which box: the two rules in use."""

from __future__ import annotations

import torch
from torch import Tensor

from xlan.vision.detector.boxes import iou
from xlan.vision.detector.conventions import Convention, Selection
from xlan.vision.detector.nms import kept_by_class, nms


def confident(boxes: Tensor, probabilities: Tensor, convention: Convention) -> tuple[Tensor, Tensor]:
    """Caffe's rule: keep the proposals that some class is sure of after that class's own suppression.

    Args:
        boxes: `[N, 4]` proposals in pixels of the picture.
        probabilities: `[N, C]` without background.
        convention: offset, whether suppression is inclusive, and the numbers of the rule.

    Returns:
        Indices that stay (in the order of the proposals, or by confidence where `fewest` or `most` decides), and the
        confidence `[N]` of every proposal.
    """
    rule = convention.selection
    overlaps = iou(boxes, boxes, offset=convention.offset)
    kept = kept_by_class(overlaps, probabilities, rule.thresholds[0], inclusive=convention.nms_inclusive)
    confidence = torch.where(kept, probabilities, 0.0).amax(dim=1)
    keep = torch.nonzero(confidence >= rule.confidence)[:, 0]
    if len(keep) < rule.fewest or len(keep) > rule.most:
        order = torch.argsort(confidence, descending=True, stable=True)
        keep = order[: rule.fewest if len(keep) < rule.fewest else rule.most]
    return keep, confidence


def regressed(boxes: Tensor, scores: Tensor, rule: Selection) -> Tensor:
    """LXMERT's rule: suppress overlapping boxes whatever their class, with the first threshold that leaves enough.

    Where no threshold leaves `fewest`, the last one decides, and the best of the suppressed are added.

    Args:
        boxes: `[N, 4]`, each proposal's box for its best class.
        scores: `[N]` of that class.
        rule: numbers.
    """
    keep = torch.arange(0)
    for threshold in rule.thresholds:
        keep = nms(boxes, scores, threshold)[: rule.most]
        if len(keep) >= rule.fewest:
            return keep
    order = torch.argsort(scores, descending=True, stable=True)
    rest = order[~torch.isin(order, keep)]
    return torch.cat([keep, rest[: rule.fewest - len(keep)]])
