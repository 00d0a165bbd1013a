"""Grid regions of an EfficientNet-Lite as a graph: what `xlan.vision.grid` computes.

    pixels [images, S, S, 3] (0 to 255)  →  features [images, N, D], the image itself first (if set), then the cells

The input is of a fixed size, so paddings and averages are constants of the graph.
"""

from __future__ import annotations

import numpy as np

from xlan.errors import WeightsError
from xlan.export.graph import Graph, Precision
from xlan.export.proto import Array
from xlan.vision.grid_settings import PIXEL_MEAN, PIXEL_SCALE, GridSettings, VisionFile
from xlan.vision.lite import SPECS, STEM_CHANNELS, Block, LiteSpec, same_padding

MOST = 6.0  # of ReLU6


class Maps:
    """Convolutions over square maps, of which the side is known."""

    def __init__(self, g: Graph, value: str, side: int) -> None:
        self.g, self.value, self.side = g, value, side

    def conv(
        self, name: str, shape: tuple[int, int, int, int], *, stride: int = 1, groups: int = 1, activate: bool = True
    ) -> Maps:
        """A convolution with "SAME" padding, and ReLU6 unless `activate` is off."""
        g, kernel = self.g, shape[2]
        before, behind = same_padding(self.side, kernel, stride)
        value = g.op(
            "Conv",
            self.value,
            g.tensor(f"{name}.conv.weight", g.array(f"{name}.conv.weight", *shape)),
            g.vector(f"{name}.conv.bias", shape[0]),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, behind, behind],
            group=groups,
        )
        if activate:
            value = g.op("Clip", value, g.number(0.0), g.number(MOST))
        return Maps(g, value, -(-self.side // stride))

    def block(self, name: str, block: Block) -> Maps:
        """Expand, filter depthwise, project; added to the input where shapes allow."""
        maps, hidden = self, block.in_channels * block.expand
        if block.expand != 1:
            maps = maps.conv(f"{name}.expand", (hidden, block.in_channels, 1, 1))
        filters = (hidden, 1, block.kernel, block.kernel)
        maps = maps.conv(f"{name}.depthwise", filters, stride=block.stride, groups=hidden)
        maps = maps.conv(f"{name}.project", (block.out_channels, hidden, 1, 1), activate=False)
        if not block.residual:
            return maps
        return Maps(self.g, self.g.add(self.value, maps.value), maps.side)

    def averaged(self, cells: int) -> str:
        """Averages over a grid of `cells` × `cells`, which may overlap where it does not divide the side."""
        if cells == self.side:
            return self.value
        weights = self.g.constant(_averages(self.side, cells))
        across = self.g.op("MatMul", self.value, self.g.constant(_averages(self.side, cells).T.copy()))
        return self.g.op("MatMul", weights, across)


def grid_side(settings: GridSettings) -> int:
    """Cells in a row of the grid."""
    return settings.cells if settings.cells is not None else -(-settings.input_size // settings.levels[-1])


def backbone(g: Graph, pixels: str, size: int, spec: LiteSpec) -> dict[int, Maps]:
    """Maps of stride 8, 16 and 32 of pixels `[images, size, size, 3]` from 0 to 255."""
    x = g.op("Sub", g.op("Cast", pixels, to=1), g.number(PIXEL_MEAN))
    x = g.transpose(g.mul(x, g.number(1 / PIXEL_SCALE)), 0, 3, 1, 2)
    maps = Maps(g, x, size).conv("stem", (STEM_CHANNELS, 3, 3, 3), stride=2)
    levels, ends = {}, {spec.stride8_blocks: 8, spec.stride16_blocks: 16}
    for i, block in enumerate(spec.blocks):
        maps = maps.block(f"blocks.{i}", block)
        if i + 1 in ends:
            levels[ends[i + 1]] = maps
    levels[32] = maps.conv("head", (spec.head, spec.blocks[-1].out_channels, 1, 1))
    return levels


def vision_graph(file: VisionFile, *, precision: Precision = "float32", source: str = "vision.safetensors") -> Graph:
    """The graph of a vision file. 8 bits need calibration pictures, see `xlan.export.calibrate`; here they are float32.

    Raises:
        WeightsError: weights are missing, unexpected or misshapen.
    """
    settings, spec = file.settings, SPECS[file.settings.network]
    g = Graph(file.weights, precision="float32" if precision == "int8" else precision, source=source)
    size, cells = settings.input_size, grid_side(settings)
    levels = backbone(g, g.input("pixels", "uint8", ["images", size, size, 3]), size, spec)
    chosen = [levels[level].averaged(cells) for level in settings.levels]
    grid = g.concat(*chosen, axis=1) if len(chosen) > 1 else chosen[0]  # [B, D, R, C]
    features = g.transpose(g.reshape(grid, 0, 0, -1), 0, 2, 1)
    if settings.image_region:
        whole = g.op("ReduceMean", features, g.ints(1), keepdims=1)
        features = g.concat(whole, features, axis=1)
    regions = cells * cells + settings.image_region
    g.output("features", features, "float32", ["images", regions, settings.feature_dim])
    unexpected = sorted(set(file.weights) - g.used)
    if unexpected:
        raise WeightsError(f"{source}: does not fit this network; unexpected: {', '.join(unexpected[:5])}")
    return g


def _averages(side: int, cells: int) -> Array:
    """`[cells, side]`: weights of the average that makes each cell, as adaptive pooling takes them."""
    weights = np.zeros((cells, side), np.float32)
    for cell in range(cells):
        first, behind = cell * side // cells, -(-(cell + 1) * side // cells)
        weights[cell, first:behind] = 1 / (behind - first)
    return weights
