"""The numbers of EfficientNet-Lite, without torch: sizes, stages, and the blocks they come to.

From "EfficientNet: Rethinking Model Scaling" (Tan & Le, 2019, Table 1: the stages; §3.3: width and depth scaling) and
the description of its Lite variants: stem, head and the depth of the first and last stage are not scaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

STEM_CHANNELS = 32


@dataclass(frozen=True)
class LiteSpec:
    """Size of one EfficientNet-Lite.

    Attributes:
        name: how users and files call it.
        width: multiplier of channels (stem and head excepted).
        depth: multiplier of repeats (first and last stage excepted).
        input_size: side in pixels of the square input it was trained with.
        head: channels of the last map.
    """

    name: str
    width: float
    depth: float
    input_size: int
    head: int = 1280

    @property
    def blocks(self) -> list[Block]:
        """All blocks in order."""
        found: list[Block] = []
        channels = STEM_CHANNELS
        for number, stage in enumerate(_STAGES):
            ends = number in (0, len(_STAGES) - 1)
            repeats = stage.repeats if ends else math.ceil(stage.repeats * self.depth)
            out = round_channels(stage.channels, self.width)
            for i in range(repeats):
                stride = stage.stride if i == 0 else 1
                found.append(Block(channels, out, stage.kernel, stride, stage.expand, number))
                channels = out
        return found

    @property
    def stride8_blocks(self) -> int:
        """How many of the first blocks lead to the last map of stride 8."""
        return sum(block.stage <= _LAST_STRIDE8_STAGE for block in self.blocks)

    @property
    def stride8_channels(self) -> int:
        """Channels of that map."""
        return self.blocks[self.stride8_blocks - 1].out_channels

    @property
    def stride16_blocks(self) -> int:
        """How many of the first blocks lead to the last map of stride 16."""
        return sum(block.stage <= _LAST_STRIDE16_STAGE for block in self.blocks)

    @property
    def stride16_channels(self) -> int:
        """Channels of that map."""
        return self.blocks[self.stride16_blocks - 1].out_channels


class Block(NamedTuple):
    """Expand, filter depthwise, project: one inverted residual."""

    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    expand: int
    stage: int

    @property
    def residual(self) -> bool:
        """The result is added to the input."""
        return self.stride == 1 and self.in_channels == self.out_channels


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expand: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
_LAST_STRIDE8_STAGE = 2
_LAST_STRIDE16_STAGE = 4

LITE0 = LiteSpec("efficientnet-lite0", width=1.0, depth=1.0, input_size=224)
LITE2 = LiteSpec("efficientnet-lite2", width=1.1, depth=1.2, input_size=260)
SPECS = {spec.name: spec for spec in (LITE0, LITE2)}


def round_channels(channels: int, width: float) -> int:
    """Scale a channel count to a multiple of 8, never losing more than a tenth."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Pixels before and behind, as TensorFlow's "SAME" pads: the extra one goes behind."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
