"""The small detector as graphs: what `xlan.vision.detector.lite` computes, for one picture.

    proposals   pixels [1, S, S, 3]                  →  fine, coarse, stride32 (maps), rois [n, 4], objectness [n]
    regions     fine, coarse, stride32, rois [R, 4]  →  probabilities [R, classes], corners [R, 4]
    features    stride32, rois [R, 4]                →  features [R, D]

Between them boxes that overlap are dropped (`xlan.vision.detector.lite_settings`). RoIs are in pixels of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlan.errors import WeightsError
from xlan.export.graph import EPSILON, Graph, Precision
from xlan.export.proto import DTYPES, Array
from xlan.export.vision import Maps, backbone
from xlan.vision.detector.anchors import MAX_LOG_GROWTH
from xlan.vision.detector.lite_settings import (
    BEFORE,
    BOX_WEIGHTS,
    FEATURE_SAMPLES,
    GROUPS,
    POOLED,
    PROPOSALS,
    SAMPLES,
    STRIDES,
    LiteDetectorSpec,
)
from xlan.vision.lite import SPECS


class DetectorGraphs(NamedTuple):
    """The three graphs."""

    proposals: Graph
    regions: Graph
    features: Graph


def detector_graphs(
    spec: LiteDetectorSpec,
    vision: Mapping[str, Array],
    heads: Mapping[str, Array],
    *,
    precision: Precision = "stored",
    source: str = "detector",
) -> DetectorGraphs:
    """Graphs of a detector.

    Args:
        spec: its sizes.
        vision: weights of the backbone.
        heads: weights of everything after it.
        precision: how the graphs store them.
        source: names the heads in error messages.

    Raises:
        WeightsError: weights are missing, unexpected or misshapen.
    """
    first = Graph({**vision, **heads}, precision=precision, source=source)
    second = Graph(heads, precision=precision, source=source)
    third = Graph({}, precision=precision, source=source)
    _proposals(_Neck(first, spec))
    _regions(second, spec)
    _features(third, spec)
    unexpected = sorted({*vision, *heads} - first.used - second.used)
    if unexpected:
        raise WeightsError(f"{source}: does not fit this detector; unexpected: {', '.join(unexpected[:5])}")
    return DetectorGraphs(first, second, third)


class _Neck:
    """The neck and the proposal network over maps of stride 8, 16 and 32."""

    def __init__(self, g: Graph, spec: LiteDetectorSpec) -> None:
        self.g, self.spec, self.width = g, spec, spec.channels

    def conv(self, maps: Maps, name: str, inside: int, outside: int, kernel: int = 1, *, groups: int = 1) -> Maps:
        g = self.g
        value = g.op(
            "Conv",
            maps.value,
            g.tensor(f"{name}.weight", g.array(f"{name}.weight", outside, inside // groups, kernel, kernel)),
            g.vector(f"{name}.bias", outside),
            kernel_shape=[kernel, kernel],
            pads=[kernel // 2] * 4,
            group=groups,
        )
        return Maps(g, value, maps.side)

    def norm(self, maps: Maps, name: str) -> Maps:
        """GroupNorm: one mean and variance for each group of channels."""
        g, ones = self.g, np.ones(GROUPS, np.float32)
        groups = g.reshape(maps.value, 0, GROUPS, -1)
        even = g.op("InstanceNormalization", groups, g.constant(ones), g.constant(np.zeros_like(ones)), epsilon=EPSILON)
        even = g.reshape(even, 0, self.width, maps.side, maps.side)
        scale, shift = (g.vector(f"{name}.{part}", self.width, view=(self.width, 1, 1)) for part in ("weight", "bias"))
        return Maps(g, g.add(g.mul(even, scale), shift), maps.side)

    def relu(self, maps: Maps) -> Maps:
        return Maps(self.g, self.g.op("Relu", maps.value), maps.side)

    def plus(self, *maps: Maps) -> Maps:
        total = maps[0].value
        for other in maps[1:]:
            total = self.g.add(total, other.value)
        return Maps(self.g, total, maps[0].side)

    def lateral(self, maps: Maps, name: str, channels: int) -> Maps:
        return self.norm(self.conv(maps, f"{name}.conv", channels, self.width), f"{name}.norm")

    def smooth(self, maps: Maps, name: str) -> Maps:
        wide = self.relu(self.conv(maps, f"{name}.depthwise", self.width, self.width, 5, groups=self.width))
        wide = self.conv(wide, f"{name}.pointwise", self.width, self.width)
        return self.relu(self.norm(self.plus(maps, wide), f"{name}.norm"))

    def grown(self, maps: Maps, like: Maps) -> Maps:
        sizes = self.g.ints(1, self.width, like.side, like.side)
        how = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return Maps(self.g, self.g.op("Resize", maps.value, "", "", sizes, **how), like.side)

    def shrunk(self, maps: Maps) -> Maps:
        value = self.g.op("MaxPool", maps.value, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
        return Maps(self.g, value, -(-maps.side // 2))

    def round(self, fine: Maps, middle: Maps, coarse: Maps, name: str) -> tuple[Maps, Maps, Maps]:
        down = self.smooth(self.plus(middle, self.grown(coarse, middle)), f"{name}.down16")
        fine = self.smooth(self.plus(fine, self.grown(down, fine)), f"{name}.out8")
        middle = self.smooth(self.plus(middle, down, self.shrunk(fine)), f"{name}.out16")
        return fine, middle, self.smooth(self.plus(coarse, self.shrunk(middle)), f"{name}.out32")

    def scores(self, maps: Maps) -> tuple[str, str]:
        """Logits `[1, anchors]` and deltas `[anchors, 4]` of one map, cell by cell."""
        g, anchors = self.g, self.spec.anchors_per_cell
        hidden = self.relu(self.conv(maps, "rpn_conv", self.width, self.width, 3))
        logits = self.conv(hidden, "rpn_logits", self.width, anchors).value
        deltas = self.conv(hidden, "rpn_deltas", self.width, 4 * anchors).value
        return g.reshape(g.transpose(logits, 0, 2, 3, 1), 1, -1), g.reshape(g.transpose(deltas, 0, 2, 3, 1), -1, 4)


def _proposals(neck: _Neck) -> None:
    g, spec = neck.g, neck.spec
    size, network = spec.input_size, SPECS[spec.network]
    seen = backbone(g, g.input("pixels", "uint8", [1, size, size, 3]), size, network)
    fine = neck.lateral(seen[8], "from8", network.stride8_channels)
    middle = neck.lateral(seen[16], "from16", network.stride16_channels)
    coarse = neck.lateral(seen[32], "from32", network.head)
    for i in range(spec.rounds):
        fine, middle, coarse = neck.round(fine, middle, coarse, f"rounds.{i}")
    parts = [neck.scores(level) for level in (fine, middle)]
    anchors = spec.anchors()
    count = min(BEFORE * PROPOSALS, len(anchors))
    logits = g.concat(*(logits for logits, _ in parts), axis=1)
    likely, best = g.ops("TopK", logits, g.ints(count), outputs=2, axis=1)
    best = g.reshape(best, -1)
    boxes = g.op("Gather", g.constant(anchors), best, axis=0)
    deltas = g.op("Gather", g.concat(*(deltas for _, deltas in parts), axis=0), best, axis=0)
    g.output("fine", fine.value, "float32", [1, spec.channels, fine.side, fine.side])
    g.output("coarse", middle.value, "float32", [1, spec.channels, middle.side, middle.side])
    g.output("stride32", seen[32].value, "float32", [1, network.head, seen[32].side, seen[32].side])
    g.output("objectness", g.op("Sigmoid", g.reshape(likely, -1)), "float32", [count])
    g.output("rois", _decoded(g, boxes, deltas, (1.0, 1.0, 1.0, 1.0), size), "float32", [count, 4])


def _decoded(g: Graph, boxes: str, deltas: str, weights: tuple[float, float, float, float], size: int) -> str:
    """`xlan.vision.detector.boxes.decode` and `clip`: `[R, 4]`, `[R, 4]` → `[R, 4]`."""
    x0, y0, x1, y1 = g.split(boxes, 4)
    dx, dy, dw, dh = g.split(g.op("Div", deltas, g.constant(np.array(weights, np.float32))), 4)
    half, most = g.number(0.5), g.number(MAX_LOG_GROWTH)
    low, high = [], []
    for start, end, move, growth in ((x0, x1, dx, dw), (y0, y1, dy, dh)):
        extent = g.op("Sub", end, start)
        centre = g.add(g.mul(move, extent), g.add(start, g.mul(half, extent)))
        reach = g.mul(half, g.mul(g.op("Exp", g.op("Min", growth, most)), extent))
        low.append(g.op("Sub", centre, reach))
        high.append(g.add(centre, reach))
    return g.op("Clip", g.concat(*low, *high, axis=1), g.number(0.0), g.number(size))


def _pooled(g: Graph, maps: str, boxes: str, stride: int, size: int, samples: int) -> str:
    """RoIAlign of one picture's map: `[R, C, size, size]`."""
    count = g.op("Shape", boxes, start=0, end=1)
    numbers = g.op("Cast", g.op("ConstantOfShape", count), to=DTYPES["int64"])
    return g.op(
        "RoiAlign",
        maps,
        boxes,
        numbers,
        coordinate_transformation_mode="half_pixel",
        mode="avg",
        output_height=size,
        output_width=size,
        sampling_ratio=samples,
        spatial_scale=1 / stride,
    )


def _maps(g: Graph, spec: LiteDetectorSpec) -> list[str]:
    width = {8: spec.channels, 16: spec.channels, 32: SPECS[spec.network].head}
    names = {8: "fine", 16: "coarse", 32: "stride32"}
    sides = {stride: -(-spec.input_size // stride) for stride in width}
    return [
        g.input(names[stride], "float32", [1, width[stride], sides[stride], sides[stride]]) for stride in (*STRIDES, 32)
    ]


def _regions(g: Graph, spec: LiteDetectorSpec) -> None:
    fine, coarse, stride32 = _maps(g, spec)
    boxes = g.input("rois", "float32", ["regions", 4])
    classes, head, pooled = len(spec.classes), SPECS[spec.network].head, spec.channels * POOLED * POOLED
    flat = [
        g.reshape(g.transpose(_pooled(g, maps, boxes, stride, POOLED, SAMPLES), 0, 2, 3, 1), -1, pooled)
        for maps, stride in zip((fine, coarse), STRIDES, strict=True)
    ]
    x0, y0, x1, y1 = g.split(boxes, 4)
    area = g.mul(g.op("Sub", x1, x0), g.op("Sub", y1, y0))
    small = g.op("Less", g.op("Sqrt", g.op("Relu", area)), g.number(spec.fine_below))
    hidden = g.op("Where", small, *flat)
    for name, inside in (("hidden1", pooled), ("hidden2", spec.hidden)):
        hidden = g.op("Relu", g.linear(hidden, name, inside, spec.hidden))
    feature = g.reshape(_pooled(g, stride32, boxes, 32, 1, FEATURE_SAMPLES), -1, head)
    logits = g.add(
        g.linear(hidden, "class_of_hidden", spec.hidden, classes + 1),
        g.linear(feature, "class_of_feature", head, classes + 1, bias=False),
    )
    chances = g.op("Slice", g.op("Softmax", logits, axis=1), g.ints(0), g.ints(classes), g.ints(1))
    deltas = g.linear(hidden, "boxes", spec.hidden, 4)
    g.output("probabilities", chances, "float32", ["regions", classes])
    g.output("corners", _decoded(g, boxes, deltas, BOX_WEIGHTS, spec.input_size), "float32", ["regions", 4])


def _features(g: Graph, spec: LiteDetectorSpec) -> None:
    head, side = SPECS[spec.network].head, -(-spec.input_size // 32)
    stride32 = g.input("stride32", "float32", [1, head, side, side])
    boxes = g.input("rois", "float32", ["regions", 4])
    pooled = _pooled(g, stride32, boxes, 32, 1, FEATURE_SAMPLES)
    g.output("features", g.reshape(pooled, -1, head), "float32", ["regions", head])
