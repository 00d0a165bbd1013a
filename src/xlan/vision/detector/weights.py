"""Public weight files of bottom-up attention → the one layout that `bottom_up` uses.

Four layouts are known; each is brought to the names of `BottomUp` with normalisation folded into the convolutions:

    lxmert      12 objectness rows, background last                 (pytorch_model.bin; airsplay's .pkl)
    milvlg      24 rows (12 background, 12 object), background first (bua-caffe-frcn-r101…pth)
    caffemodel  the same numbers under Caffe's names

The sizes of the network are read off the shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from xlan.errors import DataError, WeightsError
from xlan.files import read_text
from xlan.vision.detector.bottom_up import ANCHORS_PER_CELL, BottomUp, BottomUpSpec, default_shapes
from xlan.vision.detector.conventions import CONVENTIONS, Convention
from xlan.vision.detector.resnet import ResNetSpec, fold
from xlan.vision.detector.weight_files import read_weight_file
from xlan.weights import compare_weights

_RPN = "proposal_generator.rpn_head"
_HEAD = "roi_heads.box_predictor"
_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
_NORM = ("weight", "bias", "running_mean", "running_var")
_PLAIN = {f"{_RPN}.conv": "rpn.conv", f"{_RPN}.anchor_deltas": "rpn.deltas"}
_LXMERT = {"embed": "cls_embedding", "hidden": "fc_attr", "score": "attr_score"}
_MILVLG = {"embed": "cls_embed", "hidden": "attr_linear1", "score": "attr_linear2"}
_CAFFE_PLAIN = {
    "rpn_conv/3x3": f"{_RPN}.conv",
    "rpn_cls_score": f"{_RPN}.objectness_logits",
    "rpn_bbox_pred": f"{_RPN}.anchor_deltas",
    "cls_score": f"{_HEAD}.cls_score",
    "bbox_pred": f"{_HEAD}.bbox_pred",
    "cls_embedding": f"{_HEAD}.cls_embed",
    "fc_attr": f"{_HEAD}.attr_linear1",
    "attr_score": f"{_HEAD}.attr_linear2",
}
# Names that identify other families, so that the message can say what the file is.
_STRANGERS = (
    (r"roi_heads\.attribute_predictor\.", "a detectron2 model of MILVLG (bua-d2-…), which is another network"),
    (
        r"(module\.)?att_lstm\.|decoder\.embed_tokens",
        "an X-LAN or X-Transformer captioner; use `xlan import-checkpoint`",
    ),
    (r"backbone\.(body|fpn)\.|backbone\.fpn_", "a detector with a feature pyramid (torchvision or detectron2)"),
    (r"(bbox|rpn|roi)_head\.", "an mmdetection model"),
    (r"(model\.)?transformer\.(encoder|decoder)\.|class_embed\.", "a DETR model"),
    (r"model\.\d+\.(conv|cv1|m)\b", "a YOLO model"),
    (
        r"backbone\.res[2-5]\.\d+\.(bn1|norm)\b",
        "bua-caffe-frcn-r152, a pre-activation ResNet, which is another network",
    ),
    (r"(layer[1-4]\.\d+\.conv1|fc)\.weight", "a ResNet classifier without a detector"),
    (r"(stem|blocks\.\d+)\.", "a vision network of xlan; use `--vision`"),
)


@dataclass(frozen=True)
class Imported:
    """What a public file became.

    Attributes:
        layout: `lxmert`, `milvlg` or `caffemodel`.
        spec: sizes, read off the shapes.
        convention: the one that fits the file, unless another was asked for.
        weights: state of `BottomUp(spec, convention)`.
    """

    layout: str
    spec: BottomUpSpec
    convention: Convention
    weights: dict[str, Tensor]


def import_weights(path: str | Path, *, convention: Convention | None = None) -> Imported:
    """Read a public weight file.

    Args:
        path: the file.
        convention: how to use it; by default `caffe` for a caffemodel, `milvlg` for MILVLG's files, `airsplay` for a
            pickle and `lxmert` for everything else in that layout.

    Raises:
        WeightsError: not readable, of another family (which is named), incomplete, or with values that are not finite.
    """
    source = Path(path)
    theirs = read_weight_file(source)
    layout = _layout(source, theirs)
    usual = {"caffemodel": "caffe", "milvlg": "milvlg", "lxmert": "lxmert"}[layout]
    if layout == "lxmert" and source.suffix.lower() == ".pkl":
        usual = "airsplay"
    chosen = convention or CONVENTIONS[usual]
    if layout == "caffemodel":
        theirs = _from_caffe(source, theirs)
    spec, weights = convert(theirs, source=str(source))
    weights = change_convention(weights, native=CONVENTIONS[usual], wanted=chosen)
    return Imported(layout, spec, chosen, _checked(source, spec, chosen, weights))


def change_convention(weights: Mapping[str, Tensor], *, native: Convention, wanted: Convention) -> dict[str, Tensor]:
    """Weights made for one convention, for use with another: the order of anchors, and the scale of box deltas."""
    ours = dict(weights)
    if native.anchors != wanted.anchors:
        # Size by size has anchor 3 * size + ratio where ratio by ratio has 4 * ratio + size.
        grid = torch.arange(ANCHORS_PER_CELL)
        order = (grid.view(4, 3) if wanted.anchors == "caffe" else grid.view(3, 4)).t().flatten()
        for leaf in ("weight", "bias"):
            deltas = ours[f"rpn.deltas.{leaf}"]
            ours[f"rpn.objectness.{leaf}"] = ours[f"rpn.objectness.{leaf}"][order]
            ours[f"rpn.deltas.{leaf}"] = deltas.view(ANCHORS_PER_CELL, 4, *deltas.shape[1:])[order].flatten(0, 1)
        ours.pop("shapes", None)
    if native.box_weights != wanted.box_weights:
        scale = torch.tensor(wanted.box_weights) / torch.tensor(native.box_weights)
        rows = scale.repeat(len(ours["boxes.bias"]) // 4)
        ours["boxes.weight"], ours["boxes.bias"] = ours["boxes.weight"] * rows[:, None], ours["boxes.bias"] * rows
    return ours


def _layout(source: Path, theirs: Mapping[str, Tensor]) -> str:
    if "res2a_branch1/0" in theirs and "rpn_cls_score/0" in theirs:
        return "caffemodel"
    rows = theirs.get(f"{_RPN}.objectness_logits.weight")
    stranger = next((what for pattern, what in _STRANGERS if any(re.match(pattern, name) for name in theirs)), None)
    layouts = {ANCHORS_PER_CELL: "lxmert", 2 * ANCHORS_PER_CELL: "milvlg"}
    if stranger is None and rows is not None and rows.ndim and rows.shape[0] in layouts:
        return layouts[rows.shape[0]]
    some = ", ".join(sorted(theirs)[:3])
    raise WeightsError(
        f"{source}: expected weights of bottom-up attention (ResNet-101, 12 anchors a cell), "
        f"got {stranger or f'names like {some}'}"
    )


class _Source:
    """The tensors of a file, each taken once; errors name the file and the tensor."""

    def __init__(self, tensors: Mapping[str, Tensor], source: str) -> None:
        self.tensors, self.source = tensors, source
        self.taken: set[str] = set()

    def __call__(self, name: str, rank: int) -> Tensor:
        if name not in self.tensors:
            raise WeightsError(f"{self.source}: has no {name}; the file is incomplete or of another network")
        tensor = self.tensors[name]
        self.taken.add(name)
        if tensor.ndim != rank or not tensor.is_floating_point():
            got = f"{list(tensor.shape)} {tensor.dtype}"
            raise WeightsError(f"{self.source}: {name}: expected {rank} dimensions of floats, got {got}")
        if not torch.isfinite(tensor).all():
            raise WeightsError(f"{self.source}: {name} holds values that are not finite; the file is damaged")
        return tensor.float()


def convert(theirs: Mapping[str, Tensor], *, source: str) -> tuple[BottomUpSpec, dict[str, Tensor]]:
    """Tensors in either detectron2-style layout → sizes and the state of `BottomUp`."""
    take = _Source(theirs, source)
    ours: dict[str, Tensor] = {}
    for part, place in (("backbone.stem.conv1", "backbone.stem.conv1"), *_bottlenecks(theirs)):
        norm = [take(f"{part}.norm.{leaf}", 1) for leaf in _NORM]
        ours[f"{place}.weight"], ours[f"{place}.bias"] = fold(take(f"{part}.weight", 4), norm)
    for part, place in _PLAIN.items():
        ours[f"{place}.weight"], ours[f"{place}.bias"] = take(f"{part}.weight", 4), take(f"{part}.bias", 1)
    objectness = take(f"{_RPN}.objectness_logits.weight", 4), take(f"{_RPN}.objectness_logits.bias", 1)
    first = objectness[0].shape[0] == 2 * ANCHORS_PER_CELL  # two logits an anchor: then background comes first, too
    for leaf, tensor in zip(("weight", "bias"), objectness, strict=True):
        ours[f"rpn.objectness.{leaf}"] = tensor[ANCHORS_PER_CELL:] - tensor[:ANCHORS_PER_CELL] if first else tensor
    for leaf, rank in (("weight", 2), ("bias", 1)):
        ours[f"classes.{leaf}"] = _last(take(f"{_HEAD}.cls_score.{leaf}", rank), first)
        ours[f"boxes.{leaf}"] = take(f"{_HEAD}.bbox_pred.{leaf}", rank)[4 if first else 0 :]
    names = _MILVLG if first else _LXMERT
    classes = len(ours["classes.bias"])
    if f"{_HEAD}.{names['embed']}.weight" in theirs:
        embedding = take(f"{_HEAD}.{names['embed']}.weight", 2)[:classes]  # some files have a row too many
        ours["attributes.embed.weight"] = _last(embedding, first)
        for leaf, rank in (("weight", 2), ("bias", 1)):
            ours[f"attributes.hidden.{leaf}"] = take(f"{_HEAD}.{names['hidden']}.{leaf}", rank)
            ours[f"attributes.score.{leaf}"] = _last(take(f"{_HEAD}.{names['score']}.{leaf}", rank), first)
    if _ANCHORS in theirs:
        ours["shapes"] = take(_ANCHORS, 2)
    return _spec(ours), {name: tensor.contiguous() for name, tensor in ours.items()}


def _last(tensor: Tensor, first: bool) -> Tensor:
    """With background as the last row, wherever it was."""
    return torch.cat([tensor[1:], tensor[:1]]) if first else tensor


def _bottlenecks(theirs: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    pattern = re.compile(r"((?:backbone|roi_heads)\.(res[2-5]\.\d+\.(?:conv[123]|shortcut)))\.weight")
    found = (pattern.fullmatch(name) for name in theirs)
    places = [(match[1], match[2]) for match in found if match]
    return [(part, place if place.startswith("res5") else f"backbone.{place}") for part, place in places]


def _spec(ours: Mapping[str, Tensor]) -> BottomUpSpec:
    """Sizes of the network that these weights belong to."""

    def rows(name: str) -> int:
        return ours[name].shape[0] if name in ours else 0

    blocks = [
        sum(1 for name in ours if re.fullmatch(rf"(backbone\.)?res{number}\.\d+\.conv1\.weight", name))
        for number in (2, 3, 4, 5)
    ]
    resnet = ResNetSpec(
        stem=rows("backbone.stem.conv1.weight"),
        blocks=(blocks[0], blocks[1], blocks[2], blocks[3]),
        width=rows("backbone.res2.0.conv1.weight"),
        out=rows("backbone.res2.0.conv3.weight"),
    )
    attributes = "attributes.score.bias" in ours
    return BottomUpSpec(
        resnet=resnet,
        rpn=rows("rpn.conv.weight"),
        classes=rows("classes.bias") - 1,
        attributes=rows("attributes.score.bias") - 1 if attributes else 0,
        embedding=ours["attributes.embed.weight"].shape[1] if attributes else 1,
        attribute_hidden=rows("attributes.hidden.bias") if attributes else 1,
    )


def _checked(source: Path, spec: BottomUpSpec, convention: Convention, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    spec = BottomUpSpec.from_dict(spec.to_dict(), what=str(source))
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in BottomUp(spec, convention).state_dict().items()}
    weights.setdefault("shapes", default_shapes(convention))
    faults = compare_weights(expected, {name: tensor.shape for name, tensor in weights.items()})
    if faults:
        raise WeightsError(f"{source}: does not fit a bottom-up network (our names); {faults}")
    return weights


def _from_caffe(source: Path, blobs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Caffe's layers and blob numbers → MILVLG's names."""
    theirs: dict[str, Tensor] = {}
    for layer, name in _CAFFE_PLAIN.items():
        for number, leaf in ((0, "weight"), (1, "bias")):
            if f"{layer}/{number}" in blobs:
                theirs[f"{name}.{leaf}"] = blobs[f"{layer}/{number}"]
    for layer in {name.rpartition("/")[0] for name in blobs}:
        part = _caffe_convolution(layer)
        if part is None:
            continue
        norm = layer.removeprefix("res") if layer != "conv1" else "_conv1"
        parts = [f"bn{norm}/0", f"bn{norm}/1", f"bn{norm}/2", f"scale{norm}/0", f"scale{norm}/1"]
        missing = [name for name in parts if name not in blobs]
        if missing:
            raise WeightsError(f"{source}: has no {missing[0]}; the file is incomplete or of another network")
        mean, variance, factor, scale, shift = (blobs[name] for name in parts)
        divisor = factor.flatten()[:1].clamp(min=1e-30) if float(factor.flatten()[0]) else torch.ones(1)
        theirs[f"{part}.weight"] = blobs[f"{layer}/0"]
        for leaf, tensor in zip(_NORM, (scale, shift, mean / divisor, variance / divisor), strict=True):
            theirs[f"{part}.norm.{leaf}"] = tensor.flatten()
    return theirs


def _caffe_convolution(layer: str) -> str | None:
    """`res4b5_branch2a` → `backbone.res4.5.conv1`; None for a layer that is no convolution of the ResNet."""
    if layer == "conv1":
        return "backbone.stem.conv1"
    match = re.fullmatch(r"res([2-5])([a-z])(\d*)_branch(1|2a|2b|2c)", layer)
    if match is None:
        return None
    block = int(match[3]) if match[3] else ord(match[2]) - ord("a")
    convolution = {"1": "shortcut", "2a": "conv1", "2b": "conv2", "2c": "conv3"}[match[4]]
    return f"{'roi_heads' if match[1] == '5' else 'backbone'}.res{match[1]}.{block}.{convolution}"


def read_names(path: str | Path, *, expected: int, what: str) -> list[str]:
    """Names of objects or attributes from a text file: one a line, synonyms after commas.

    Raises:
        DataError: not as many lines as the weights have `what`.
    """
    lines = read_text(path, max_bytes=1 << 20).splitlines()
    names = [" ".join(line.split(",")[0].split()) for line in lines]
    while names and not names[-1]:
        names.pop()
    if len(names) != expected or not all(names):
        raise DataError(f"{path}: {len(names)} names, the weights have {expected} {what}; give the list they came with")
    return names
