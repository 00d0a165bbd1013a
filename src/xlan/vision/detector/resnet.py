"""The ResNet of bottom-up attention: Caffe's variant, whose first 1×1 convolution has the stride.

Normalisation is frozen, so weights are kept folded into the convolutions: one convolution with bias is all that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class ResNetSpec:
    """Sizes.

    Attributes:
        stem: channels of the first convolution.
        blocks: bottlenecks in res2, res3, res4 and res5.
        width: inner channels of res2; each stage doubles them.
        out: channels that res2 gives; each stage doubles them.
    """

    stem: int = 64
    blocks: tuple[int, int, int, int] = (3, 4, 23, 3)
    width: int = 64
    out: int = 256


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1, added to the input (or to its 1×1 projection)."""

    def __init__(self, inputs: int, width: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride) if inputs != outputs else None
        self.conv1 = nn.Conv2d(inputs, width, 1, stride=stride)
        self.conv2 = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation)
        self.conv3 = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` → `[B, C', H / stride, W / stride]`."""
        y = functional.relu(self.conv1(x), inplace=True)
        y = functional.relu(self.conv2(y), inplace=True)
        y = self.conv3(y)
        y += x if self.shortcut is None else self.shortcut(x)
        return functional.relu(y, inplace=True)


class Stem(nn.Module):
    """7×7 convolution and 3×3 maximum without padding, whose last window may reach beyond the map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3)

    def forward(self, images: Tensor) -> Tensor:
        """`[B, 3, H, W]` → `[B, C, H / 4, W / 4]`."""
        x = functional.relu(self.conv1(images), inplace=True)
        return functional.max_pool2d(x, 3, stride=2, ceil_mode=True)


def stage(inputs: int, width: int, outputs: int, *, blocks: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """A stage of bottlenecks; the first has the stride."""
    first = Bottleneck(inputs, width, outputs, stride=stride, dilation=dilation)
    rest = [Bottleneck(outputs, width, outputs, dilation=dilation) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)


class Backbone(nn.Module):
    """Stem, res2, res3 and res4: a map of stride 16."""

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        self.stem = Stem(spec.stem)
        self.res2 = stage(spec.stem, spec.width, spec.out, blocks=spec.blocks[0])
        self.res3 = stage(spec.out, 2 * spec.width, 2 * spec.out, blocks=spec.blocks[1], stride=2)
        self.res4 = stage(2 * spec.out, 4 * spec.width, 4 * spec.out, blocks=spec.blocks[2], stride=2)

    def forward(self, images: Tensor) -> Tensor:
        """`[B, 3, H, W]` → `[B, 4 * out, H / 16, W / 16]`."""
        x: Tensor = self.res4(self.res3(self.res2(self.stem(images))))
        return x


def fold(weight: Tensor, norm: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that also does what the normalisation after it does.

    Args:
        weight: `[C, I, k, k]`.
        norm: scale, shift, mean and variance, each `[C]`.
    """
    scale, shift, mean, variance = (tensor.double() for tensor in norm)
    factor = scale * torch.rsqrt(variance + NORM_EPSILON)
    folded = weight.double() * factor[:, None, None, None]
    return folded.to(weight.dtype), (shift - mean * factor).to(weight.dtype)
