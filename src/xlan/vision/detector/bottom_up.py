"""Bottom-up attention: Faster R-CNN on ResNet-101 with 1,600 classes and 400 attributes of Visual Genome.

picture → res4 → proposals (RPN) → RoIPool 14×14 → res5 → mean: the feature of a region, 2,048 wide
                                                             ├→ class → embedding → attribute
                                                             └→ box of each class

Layout of the weights, whatever file they came from: one objectness logit per anchor, background and "no attribute"
last, boxes without background. `Convention` holds everything else the public versions differ in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from xlan.errors import ModelError
from xlan.vision.detector import selection
from xlan.vision.detector.anchors import MAX_LOG_GROWTH, caffe_shapes, centred_shapes, place
from xlan.vision.detector.boxes import clip, decode
from xlan.vision.detector.conventions import Convention
from xlan.vision.detector.nms import nms
from xlan.vision.detector.pooling import roi_pool
from xlan.vision.detector.resnet import Backbone, ResNetSpec, stage
from xlan.vision.values import check_lists, check_objects, check_whole

STRIDE = 16
ANCHORS_PER_CELL = 12
RATIOS = (0.5, 1.0, 2.0)
MOST_CHANNELS = 8192  # and blocks, classes, attributes: beyond any public network, but not beyond memory
_POOLED = 14
# Regions that go through res5 together: their maps take about 100 MB at full size.
_ROIS_PER_PASS = 32


@dataclass(frozen=True)
class BottomUpSpec:
    """Sizes of the network; those of the public weights by default.

    Attributes:
        resnet: of backbone and res5.
        rpn: hidden channels of the proposal network.
        classes: without background.
        attributes: without "none"; 0 for weights that have no attributes.
        embedding: width of the class embedding that attributes see.
        attribute_hidden: hidden width of the attribute classifier.
    """

    resnet: ResNetSpec = field(default_factory=ResNetSpec)
    rpn: int = 512
    classes: int = 1600
    attributes: int = 400
    embedding: int = 256
    attribute_hidden: int = 512

    @property
    def feature_dim(self) -> int:
        """Width of a region's feature."""
        return 8 * self.resnet.out

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, what: str) -> BottomUpSpec:
        """Read what `to_dict` wrote; errors begin with `what`."""
        try:
            check_objects(spec=values)
            check_objects(resnet=values["resnet"])
            check_lists(blocks=values["resnet"]["blocks"])
            resnet = ResNetSpec(**{**values["resnet"], "blocks": tuple(values["resnet"]["blocks"])})
            spec = cls(**{**values, "resnet": resnet})
            spec._check()
        except (ModelError, TypeError, KeyError) as error:
            raise ModelError(f"{what}: its sizes cannot be read: {error}") from None
        return spec

    def _check(self) -> None:
        """Refuse sizes that no network has."""
        if len(self.resnet.blocks) != 4:
            raise ModelError(f"blocks must be 4 numbers, got {len(self.resnet.blocks)}")
        sizes = [(field.name, getattr(self, field.name)) for field in fields(self) if field.name != "resnet"]
        sizes += [(name, getattr(self.resnet, name)) for name in ("stem", "width", "out")]
        sizes += [("a number in blocks", number) for number in self.resnet.blocks]
        for name, size in sizes:
            check_whole(**{name: size})
            least = 0 if name == "attributes" else 1
            if not least <= size <= MOST_CHANNELS:
                raise ModelError(f"{name} must be from {least} to {MOST_CHANNELS}, got {size}")


class Proposals(NamedTuple):
    """Boxes `[N, 4]` in pixels of the network's input and objectness logits `[N]`, best first."""

    boxes: Tensor
    logits: Tensor


class Heads(NamedTuple):
    """What the second stage says of N proposals.

    Attributes:
        features: `[N, D]`.
        class_logits: `[N, classes + 1]`, background last.
        box_deltas: `[N, 4 * classes]`.
        attribute_logits: `[N, attributes + 1]`, "none" last; None without attributes.
    """

    features: Tensor
    class_logits: Tensor
    box_deltas: Tensor
    attribute_logits: Tensor | None


class Found(NamedTuple):
    """Regions of one picture, boxes in pixels of the network's input.

    Attributes:
        keep: `[n]` which proposals they are.
        boxes: `[n, 4]`.
        features: `[n, D]`.
        scores: `[n]` probability of the class.
        classes: `[n]` without background.
        attributes: `[n]` without "none"; None without attributes.
        attribute_scores: `[n]`; None without attributes.
    """

    keep: Tensor
    boxes: Tensor
    features: Tensor
    scores: Tensor
    classes: Tensor
    attributes: Tensor | None
    attribute_scores: Tensor | None


class RPN(nn.Module):
    """Objectness and box deltas of every anchor."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, hidden, 3, padding=1)
        self.objectness = nn.Conv2d(hidden, ANCHORS_PER_CELL, 1)
        self.deltas = nn.Conv2d(hidden, 4 * ANCHORS_PER_CELL, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[1, C, h, w]` → `[1, 12, h, w]` and `[1, 48, h, w]`."""
        hidden = functional.relu(self.conv(x), inplace=True)
        return self.objectness(hidden), self.deltas(hidden)


class AttributeHead(nn.Module):
    """Attributes of a region, given its feature and its class."""

    def __init__(self, spec: BottomUpSpec) -> None:
        super().__init__()
        self.embed = nn.Embedding(spec.classes + 1, spec.embedding)
        self.hidden = nn.Linear(spec.feature_dim + spec.embedding, spec.attribute_hidden)
        self.score = nn.Linear(spec.attribute_hidden, spec.attributes + 1)

    def forward(self, features: Tensor, class_logits: Tensor) -> Tensor:
        """`[N, D]`, `[N, classes + 1]` → `[N, attributes + 1]`; background counts as a class here."""
        embedded = self.embed(class_logits.argmax(dim=1))
        hidden = functional.relu(self.hidden(torch.cat([features, embedded], dim=1)))
        logits: Tensor = self.score(hidden)
        return logits


class BottomUp(nn.Module):
    """The network, for inference."""

    def __init__(self, spec: BottomUpSpec, convention: Convention) -> None:
        super().__init__()
        resnet = spec.resnet
        self.spec, self.convention = spec, convention
        self.backbone = Backbone(resnet)
        self.rpn = RPN(4 * resnet.out, spec.rpn)
        self.res5 = stage(4 * resnet.out, 8 * resnet.width, 8 * resnet.out, blocks=resnet.blocks[3], dilation=2)
        self.classes = nn.Linear(spec.feature_dim, spec.classes + 1)
        self.boxes = nn.Linear(spec.feature_dim, 4 * spec.classes)
        self.attributes = AttributeHead(spec) if spec.attributes else None
        # Not every file brings anchors; `weights` replaces these by those of the file.
        self.register_buffer("shapes", default_shapes(convention))
        self.shapes: Tensor

    def propose(self, logits: Tensor, deltas: Tensor, *, height: int, width: int, scale: float) -> Proposals:
        """Proposals of one picture.

        Args:
            logits: `[1, 12, h, w]`.
            deltas: `[1, 48, h, w]`.
            height: of the network's input, without the padding of a thin picture.
            width: of the network's input.
            scale: by how much the picture was enlarged.
        """
        rule = self.convention
        rows, columns = logits.shape[2:]
        scores = logits[0].permute(1, 2, 0).flatten()  # in the order of `place`: cell by cell, then anchors
        moves = deltas[0].permute(1, 2, 0).reshape(-1, 4)
        anchors = torch.from_numpy(place(self.shapes.numpy(), rows, columns, STRIDE))
        growth = MAX_LOG_GROWTH if rule.cap_growth else None
        if not rule.filter_first:
            chosen = _best(scores, rule.proposals_before)
            scores, moves, anchors = scores[chosen], moves[chosen], anchors[chosen]
        boxes = decode(anchors, moves, offset=rule.offset, max_log_growth=growth)
        boxes = clip(boxes, height=height, width=width, offset=rule.offset)
        sides = boxes[:, 2:] - boxes[:, :2] + rule.offset
        least = rule.min_side * scale
        enough = (sides >= least if rule.min_side_kept else sides > least).all(dim=1)
        scores, boxes = scores[enough], boxes[enough]
        if rule.filter_first:
            chosen = _best(scores, rule.proposals_before)
            scores, boxes = scores[chosen], boxes[chosen]
        keep = nms(
            boxes,
            scores,
            rule.proposal_overlap,
            offset=rule.offset,
            inclusive=rule.nms_inclusive,
            limit=rule.proposals,
        )
        return Proposals(boxes[keep], scores[keep])

    def look(self, res4: Tensor, boxes: Tensor) -> Heads:
        """The second stage on proposals `[N, 4]` of one picture."""
        rois = torch.cat([boxes.new_zeros(len(boxes), 1), boxes], dim=1)
        parts = []
        for some in torch.split(rois, _ROIS_PER_PASS):
            parts.append(self.res5(roi_pool(res4, some, _POOLED, 1 / STRIDE)).mean(dim=(2, 3)))
        features = torch.cat(parts)
        class_logits = self.classes(features)
        attributes = self.attributes(features, class_logits) if self.attributes is not None else None
        return Heads(features, class_logits, self.boxes(features), attributes)

    def choose(self, proposals: Tensor, heads: Heads, *, height: int, width: int, picture_per_input: Tensor) -> Found:
        """Regions of one picture: which proposals, their boxes, classes and attributes.

        Args:
            proposals: `[N, 4]`.
            heads: what `look` gave for them.
            height: of the network's input.
            width: of the network's input.
            picture_per_input: `[4]` factors from the network's pixels to those of the picture.
        """
        rule = self.convention
        probabilities = heads.class_logits.softmax(dim=1)[:, :-1]
        scores, classes = probabilities.max(dim=1)
        if rule.selection.rule == "confident":
            keep, _ = selection.confident(proposals * picture_per_input, probabilities, rule)
            boxes = proposals
        else:
            index = 4 * classes[:, None] + torch.arange(4)
            deltas = heads.box_deltas.gather(1, index)
            growth = MAX_LOG_GROWTH if rule.cap_growth else None
            boxes = decode(proposals, deltas, weights=rule.box_weights, offset=rule.offset, max_log_growth=growth)
            boxes = clip(boxes, height=height, width=width, offset=rule.offset)
            keep = selection.regressed(boxes, scores, rule.selection)
        attributes = attribute_scores = None
        if heads.attribute_logits is not None:
            logits = heads.attribute_logits[keep]
            among = logits.softmax(dim=1)[:, :-1] if rule.none_competes else logits[:, :-1].softmax(dim=1)
            attribute_scores, attributes = among.max(dim=1)
        return Found(keep, boxes[keep], heads.features[keep], scores[keep], classes[keep], attributes, attribute_scores)

    def forward(self, images: Tensor, *, height: int, width: int, scale: float, picture_per_input: Tensor) -> Found:
        """One picture `[1, 3, H, W]` → its regions; a picture without any proposal is one region as a whole."""
        res4 = self.backbone(images)
        proposals = self.propose(*self.rpn(res4), height=height, width=width, scale=scale).boxes
        if not len(proposals):
            offset = self.convention.offset
            proposals = torch.tensor([[0.0, 0.0, width - offset, height - offset]])
        heads = self.look(res4, proposals)
        return self.choose(proposals, heads, height=height, width=width, picture_per_input=picture_per_input)


def default_shapes(convention: Convention) -> Tensor:
    """Anchors `[12, 4]` of a convention."""
    if convention.anchors == "caffe":
        return torch.from_numpy(caffe_shapes((4, 8, 16, 32), RATIOS))
    return torch.from_numpy(centred_shapes((64, 128, 256, 512), RATIOS))


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices of the best `count`, best first; of equal scores the one listed first."""
    return torch.argsort(scores, descending=True, stable=True)[:count]
