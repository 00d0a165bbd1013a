"""A small two-stage detector on EfficientNet-Lite, for those who have no weights of bottom-up attention.

picture → backbone → maps of stride 8, 16, 32 → neck → maps of stride 8 and 16 → proposals → RoIAlign 7×7 → class, box

The backbone can be the captioner's own: one pass then serves the grid and the detector, and only the heads, a few
megabytes, come on top. Since it was trained to name things, not to locate them, the neck is deep: in each of its rounds
information flows down to the finer maps and up again, as in "EfficientDet" (Tan et al., 2020).

Box regression is shared by all classes, because rare classes have too few examples. Everything is in
pixels of the square input; callers see fractions of the picture.

Region features are the mean of the backbone's last map over the box: the same kind of feature as a grid cell, and as
wide, so regions and cells can be mixed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from xlan.vision.detector.boxes import clip, decode
from xlan.vision.detector.lite_settings import (
    BEFORE,
    BOX_WEIGHTS,
    FEATURE_SAMPLES,
    GROUPS,
    OVERLAP,
    POOLED,
    PROPOSAL_OVERLAP,
    PROPOSALS,
    SAMPLES,
    STRIDES,
    Boxes,
    LiteDetectorSpec,
    joined,
    kept_detections,
    kept_proposals,
)
from xlan.vision.detector.pooling import roi_align, roi_mean
from xlan.vision.efficientnet import EfficientNetLite, FeatureMaps
from xlan.vision.lite import SPECS


class Pyramid(NamedTuple):
    """Maps of the neck, `[B, channels, S / 8, S / 8]` and `[B, channels, S / 16, S / 16]`."""

    fine: Tensor
    coarse: Tensor


class Scores(NamedTuple):
    """Objectness logits `[B, A]` and deltas `[B, A, 4]` of all A anchors of a picture."""

    logits: Tensor
    deltas: Tensor


class Proposals(NamedTuple):
    """Proposals of one picture, best first: boxes `[n, 4]`, and how likely each holds a thing, `[n]`."""

    boxes: Tensor
    objectness: Tensor


class _Lateral(nn.Module):
    """A map of the backbone as input of the neck: projected to its channels and normalised."""

    def __init__(self, from_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(from_channels, channels, 1)
        self.norm = nn.GroupNorm(GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` → `[B, channels, H, W]`."""
        result: Tensor = self.norm(self.conv(x))
        return result


class _Smooth(nn.Module):
    """Residual 5×5 depthwise and 1×1 convolutions: a wide view at little cost."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.norm = nn.GroupNorm(GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` → the same shape."""
        return functional.relu(self.norm(x + self.pointwise(functional.relu(self.depthwise(x)))))


class _Round(nn.Module):
    """One round over maps of stride 8, 16 and 32: from coarse to fine, then back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down16, self.out8 = _Smooth(channels), _Smooth(channels)
        self.out16, self.out32 = _Smooth(channels), _Smooth(channels)

    def forward(self, fine: Tensor, middle: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Three maps `[B, channels, …]` → three of the same shapes."""
        down = self.down16(middle + _grown(coarse, middle))
        fine = self.out8(fine + _grown(down, fine))
        middle = self.out16(middle + down + _shrunk(fine))
        return fine, middle, self.out32(coarse + _shrunk(middle))


class LiteHeads(nn.Module):
    """Everything after the backbone."""

    def __init__(self, spec: LiteDetectorSpec) -> None:
        super().__init__()
        backbone, width = SPECS[spec.network], spec.channels
        self.spec = spec
        self.from8 = _Lateral(backbone.stride8_channels, width)
        self.from16 = _Lateral(backbone.stride16_channels, width)
        self.from32 = _Lateral(backbone.head, width)
        self.rounds = nn.ModuleList(_Round(width) for _ in range(spec.rounds))
        anchors = spec.anchors_per_cell
        self.rpn_conv = nn.Conv2d(width, width, 3, padding=1)
        self.rpn_logits = nn.Conv2d(width, anchors, 1)
        self.rpn_deltas = nn.Conv2d(width, 4 * anchors, 1)
        self.hidden1 = nn.Linear(width * POOLED * POOLED, spec.hidden)
        self.hidden2 = nn.Linear(spec.hidden, spec.hidden)
        self.class_of_hidden = nn.Linear(spec.hidden, len(spec.classes) + 1)
        self.class_of_feature = nn.Linear(backbone.head, len(spec.classes) + 1, bias=False)
        self.boxes = nn.Linear(spec.hidden, 4)
        self.anchors = torch.from_numpy(spec.anchors())
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for layer in (self.rpn_logits, self.rpn_deltas, self.class_of_hidden, self.class_of_feature):
            nn.init.normal_(layer.weight, std=0.01)
        nn.init.normal_(self.boxes.weight, std=0.001)
        assert self.rpn_logits.bias is not None
        nn.init.constant_(self.rpn_logits.bias, -3.0)

    def neck(self, maps: FeatureMaps) -> Pyramid:
        """Maps of the backbone → maps that proposals and boxes are read from."""
        levels = self.from8(maps.stride8), self.from16(maps.stride16), self.from32(maps.stride32)
        for block in self.rounds:
            levels = block(*levels)
        return Pyramid(levels[0], levels[1])

    def score(self, pyramid: Pyramid) -> Scores:
        """Objectness and deltas of every anchor, in the order of `anchors`."""
        logits, deltas = [], []
        for level in pyramid:
            hidden = functional.relu(self.rpn_conv(level))
            logits.append(self.rpn_logits(hidden).permute(0, 2, 3, 1).flatten(1))
            deltas.append(self.rpn_deltas(hidden).permute(0, 2, 3, 1).reshape(len(level), -1, 4))
        return Scores(torch.cat(logits, dim=1), torch.cat(deltas, dim=1))

    @torch.no_grad()
    def propose(self, scores: Scores, *, before: int, count: int, overlap: float = PROPOSAL_OVERLAP) -> list[Proposals]:
        """Proposals of each picture.

        Args:
            scores: of the anchors.
            before: how many of the best anchors enter suppression.
            count: how many proposals leave it.
            overlap: its threshold.
        """
        side = self.spec.input_size
        best, index = scores.logits.topk(min(before, scores.logits.shape[1]), dim=1)
        result = []
        for logits, chosen, deltas in zip(best, index, scores.deltas, strict=True):
            boxes = clip(decode(self.anchors[chosen], deltas[chosen]), height=side, width=side)
            kept = torch.from_numpy(kept_proposals(boxes.numpy(), count=count, overlap=overlap))
            result.append(Proposals(boxes[kept], logits[kept].sigmoid()))
        return result

    def look(self, pyramid: Pyramid, stride32: Tensor, rois: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits `[R, classes + 1]` (background last) and deltas `[R, 4]` of RoIs `[R, 5]`."""
        pooled = self._pool(pyramid, rois).flatten(1)
        hidden = functional.relu(self.hidden2(functional.relu(self.hidden1(pooled))))
        logits = self.class_of_hidden(hidden) + self.class_of_feature(region_features(stride32, rois))
        return logits, self.boxes(hidden)

    def _pool(self, pyramid: Pyramid, rois: Tensor) -> Tensor:
        """`[R, channels, 7, 7]`: small boxes from the fine map, large ones from the coarse map."""
        sides = ((rois[:, 3] - rois[:, 1]) * (rois[:, 4] - rois[:, 2])).clamp(min=0).sqrt()
        small = sides < self.spec.fine_below
        parts, places = [], []
        for level, stride, chosen in zip(pyramid, STRIDES, (small, ~small), strict=True):
            index = torch.nonzero(chosen)[:, 0]
            parts.append(roi_align(level, rois[index], POOLED, 1 / stride, sampling=SAMPLES))
            places.append(index)
        # Channels last in memory, as roi_align leaves them: flattening copies nothing.
        joined = torch.cat([part.permute(0, 2, 3, 1) for part in parts])
        return joined[torch.argsort(torch.cat(places))]


class LiteDetector(nn.Module):
    """Backbone and heads."""

    def __init__(self, network: EfficientNetLite, heads: LiteHeads) -> None:
        super().__init__()
        self.network, self.heads = network, heads

    @property
    def spec(self) -> LiteDetectorSpec:
        """Sizes."""
        return self.heads.spec

    def detect(
        self,
        maps: FeatureMaps,
        *,
        min_score: float = 0.05,
        most: int = 100,
        proposals: int = PROPOSALS,
        overlap: float = OVERLAP,
    ) -> list[Boxes]:
        """Detections of each picture of a batch, from the backbone's maps.

        Args:
            maps: of the pictures.
            min_score: drop detections with a lower score, before it is calibrated.
            most: detections of a picture.
            proposals: boxes that the second stage looks at.
            overlap: threshold of the suppression within a class.
        """
        pyramid = self.heads.neck(maps)
        # Choices are made in float32, whatever the products are computed in.
        scores = Scores(*(part.float() for part in self.heads.score(pyramid)))
        proposed = self.heads.propose(scores, before=BEFORE * proposals, count=proposals)
        rois = as_rois([one.boxes for one in proposed])
        logits, deltas = (part.float() for part in self.heads.look(pyramid, maps.stride32, rois))
        probabilities = logits.softmax(dim=1)[:, :-1]
        side, result, start = self.spec.input_size, [], 0
        for boxes, objectness in proposed:
            part = slice(start, start + len(boxes))
            start += len(boxes)
            corners = clip(decode(boxes, deltas[part], weights=BOX_WEIGHTS), height=side, width=side)
            every = joined(probabilities[part].numpy(), objectness.numpy())
            found = kept_detections(every, corners.numpy(), min_score=min_score, most=most, overlap=overlap)
            result.append(found._replace(scores=self.spec.calibrated(found.scores)))
        return result


def region_features(stride32: Tensor, rois: Tensor) -> Tensor:
    """Mean of the last map over each RoI: `[B, D, h, w]`, `[R, 5]` → `[R, D]`."""
    return roi_mean(stride32, rois, 1 / 32, samples=FEATURE_SAMPLES)


def as_rois(boxes: list[Tensor]) -> Tensor:
    """Boxes of each picture → rows `image x0 y0 x1 y1`."""
    numbers = [part.new_full((len(part), 1), float(image)) for image, part in enumerate(boxes)]
    return torch.cat([torch.cat([number, part], dim=1) for number, part in zip(numbers, boxes, strict=True)])


def _grown(x: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(x, size=like.shape[-2:], mode="nearest")


def _shrunk(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 2, stride=2, ceil_mode=True)
