"""Weights and pictures that a rule makes, so that a network of any size can be re-created from its name alone."""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from xlan.vision.detector.anchors import centred_shapes
from xlan.vision.detector.bottom_up import BottomUpSpec
from xlan.vision.detector.resnet import ResNetSpec

FULL = BottomUpSpec()
TINY = BottomUpSpec(
    resnet=ResNetSpec(stem=8, blocks=(3, 4, 6, 3), width=8, out=32),
    rpn=64,
    classes=20,
    attributes=10,
    embedding=32,
    attribute_hidden=64,
)
HEAD, RPN = "roi_heads.box_predictor", "proposal_generator.rpn_head"


def unit(name: str, count: int) -> npt.NDArray[np.float32]:
    """Numbers from 0 to 1 that depend on the name alone."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count)
    return (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def shapes(spec: BottomUpSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes of LXMERT's file at these sizes, without counters."""
    result: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, outputs: int, inputs: int, kernel: int) -> None:
        result[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            result[f"{name}.norm.{leaf}"] = (outputs,)

    def plain(name: str, *shape: int) -> None:
        result[f"{name}.weight"] = shape
        result[f"{name}.bias"] = (shape[0],)

    resnet = spec.resnet
    convolution("backbone.stem.conv1", resnet.stem, 3, 7)
    inputs = resnet.stem
    for number, blocks in zip((2, 3, 4, 5), resnet.blocks, strict=True):
        width, outputs = (size << (number - 2) for size in (resnet.width, resnet.out))
        for block in range(blocks):
            name = f"{'roi_heads' if number == 5 else 'backbone'}.res{number}.{block}"
            if block == 0:
                convolution(f"{name}.shortcut", outputs, inputs, 1)
            convolution(f"{name}.conv1", width, inputs, 1)
            convolution(f"{name}.conv2", width, width, 3)
            convolution(f"{name}.conv3", outputs, width, 1)
            inputs = outputs
    plain(f"{RPN}.conv", spec.rpn, 4 * resnet.out, 3, 3)
    plain(f"{RPN}.objectness_logits", 12, spec.rpn, 1, 1)
    plain(f"{RPN}.anchor_deltas", 48, spec.rpn, 1, 1)
    plain(f"{HEAD}.cls_score", spec.classes + 1, spec.feature_dim)
    plain(f"{HEAD}.bbox_pred", 4 * spec.classes, spec.feature_dim)
    result[f"{HEAD}.cls_embedding.weight"] = (spec.classes + 1, spec.embedding)
    plain(f"{HEAD}.fc_attr", spec.attribute_hidden, spec.feature_dim + spec.embedding)
    plain(f"{HEAD}.attr_score", spec.attributes + 1, spec.attribute_hidden)
    return result


GAINS = {"objectness_logits": 2, "anchor_deltas": 0.03, "cls_score": 20, "bbox_pred": 2, "attr_score": 6}


def weights(spec: BottomUpSpec, *, background: float) -> dict[str, Tensor]:
    """Made-up weights under LXMERT's names; `background` is the bias of the background class."""
    made = {name: torch.from_numpy(_tensor(name, shape, background)) for name, shape in shapes(spec).items()}
    made["proposal_generator.anchor_generator.cell_anchors.0"] = torch.from_numpy(
        centred_shapes((64, 128, 256, 512), (0.5, 1, 2))
    )
    return made


def _tensor(name: str, shape: tuple[int, ...], background: float) -> npt.NDArray[np.float32]:
    u = unit(name, math.prod(shape)).reshape(shape)
    s = 2 * u - np.float32(1)
    if ".norm." in name:
        if name.endswith("weight"):
            return np.float32(0.5 if ".conv3." in name else 1) * (np.float32(0.75) + np.float32(0.5) * u)
        if name.endswith("running_var"):
            return np.float32(4096 if ".stem." in name else 1) * (np.float32(0.75) + np.float32(0.5) * u)
        return np.float32(0.25) * s
    if name.endswith("bias"):
        bias = np.float32(0.1) * s
        if "cls_score" in name:
            bias[-1] = background
        if "attr_score" in name:
            bias[-1] = 3
        return bias
    if name.endswith("cls_embedding.weight"):
        return s
    gain = next((value for part, value in GAINS.items() if part in name), 2)
    result = np.float32(math.sqrt(3 * gain / math.prod(shape[1:]))) * s
    if shape[1] % 2 == 0:
        result[:, 1::2] = -result[:, 0::2]
    return result


def milvlg(lxmert: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same network in the other layout: background first, two objectness logits, boxes with background."""
    made = dict(lxmert)
    for leaf in ("weight", "bias"):
        name = f"{RPN}.objectness_logits.{leaf}"
        background = torch.linspace(-1, 1, made[name].numel()).view_as(made[name])
        made[name] = torch.cat([background, made[name] + background])
        made[f"{HEAD}.cls_score.{leaf}"] = made[f"{HEAD}.cls_score.{leaf}"].roll(1, 0)
        boxes = made[f"{HEAD}.bbox_pred.{leaf}"]
        made[f"{HEAD}.bbox_pred.{leaf}"] = torch.cat([boxes.new_ones(4, *boxes.shape[1:]), boxes])
        made[f"{HEAD}.attr_linear1.{leaf}"] = made.pop(f"{HEAD}.fc_attr.{leaf}")
        made[f"{HEAD}.attr_linear2.{leaf}"] = made.pop(f"{HEAD}.attr_score.{leaf}").roll(1, 0)
    embedding = made.pop(f"{HEAD}.cls_embedding.weight").roll(1, 0)
    made[f"{HEAD}.cls_embed.weight"] = torch.cat([embedding, embedding[:1]])  # older files have a row too many
    return made


def picture(height: int, width: int, salt: int) -> Image.Image:
    """A drawn picture: a ramp, five rectangles, and noise in blocks of 8×8."""
    tall, wide = -(-height // 8), -(-width // 8)
    raw = np.random.PCG64(zlib.crc32(f"image-{salt}".encode())).random_raw(64 + 3 * tall * wide)
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    pixels = ((x * (3 + c) + y * (5 - c) + 40 * salt) % 256) // 2 + 40
    for k in range(5):
        a = [int(value >> np.uint64(33)) for value in raw[8 * k : 8 * k + 7]]
        h, w = height // 6 + a[0] % (height // 3), width // 6 + a[1] % (width // 3)
        top, left = a[2] % (height - h), a[3] % (width - w)
        pixels[top : top + h, left : left + w] = [value % 256 for value in a[4:7]]
    noise = (raw[64:] >> np.uint64(59)).astype(np.int64).reshape(tall, wide, 3)
    pixels += noise.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


SIZES = ((160, 224), (200, 150), (96, 96))
SALTS = {"full": (33, 15, 2), "tiny": (3, 1, 2)}
