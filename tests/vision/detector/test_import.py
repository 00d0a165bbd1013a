"""Public weight files → detector directories, and everything that can be wrong with a file."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import TINY, milvlg, picture, weights
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner, Result

from xlan.cli.main import app
from xlan.errors import DataError, ModelError, WeightsError
from xlan.model.build import build_model
from xlan.model.spec import XLANSpec
from xlan.pretrained import save_pretrained
from xlan.text.vocab import Vocabulary
from xlan.vision.detector.conventions import CONVENTIONS
from xlan.vision.detector.directory import CONFIG, WEIGHTS, load_detector, save_bottom_up
from xlan.vision.detector.extractor import BottomUpExtractor
from xlan.vision.detector.weight_files import read_array_pickle, read_weight_file
from xlan.vision.detector.weights import import_weights, read_names


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """A tiny bottom-up network in LXMERT's layout."""
    return weights(TINY, background=5.0)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def as_numpy(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ["w.bin", "w.pth", "w.safetensors", "w.pkl"])
def test_every_container_gives_the_same_network(tmp_path: Path, tensors: dict[str, Tensor], name: str) -> None:
    save_file(tensors, tmp_path / "plain.safetensors")
    if name == "w.pkl":
        value = {"model": as_numpy(tensors), "__author__": "somebody"}
        (tmp_path / name).write_bytes(pickle.dumps(value, protocol=2))
    elif name.endswith(".safetensors"):
        save_file(tensors, tmp_path / name)
    else:
        counters = {"backbone.stem.conv1.norm.num_batches_tracked": torch.tensor(7)}
        torch.save({"model": {**tensors, **counters}} if name == "w.pth" else {**tensors, **counters}, tmp_path / name)
    found = import_weights(tmp_path / name)
    expected = import_weights(tmp_path / "plain.safetensors")
    assert found.layout == "lxmert"
    assert found.convention.name == ("airsplay" if name == "w.pkl" else "lxmert")
    assert found.spec == TINY
    assert same(found.weights, expected.weights)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    value = {"model": {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((2, 2), order="F")}}
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(value, protocol=protocol))
    found = read_array_pickle(tmp_path / "w.pkl")["model"]
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"].tolist() == [[1, 1], [1, 1]]


def test_the_other_layout_is_the_same_network(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    other = {name: tensor.contiguous() for name, tensor in milvlg(tensors).items()}
    del other["proposal_generator.anchor_generator.cell_anchors.0"]
    # Its anchors are listed ratio by ratio: bring the rows of the proposal network into that order.
    order = torch.arange(12).view(4, 3).t().flatten()
    for leaf in ("weight", "bias"):
        name = f"proposal_generator.rpn_head.objectness_logits.{leaf}"
        other[name] = torch.cat([other[name][:12][order], other[name][12:][order]])
        name = f"proposal_generator.rpn_head.anchor_deltas.{leaf}"
        other[name] = other[name].unflatten(0, (12, 4))[order].flatten(0, 1)
        name = f"roi_heads.box_predictor.bbox_pred.{leaf}"
        scale = torch.tensor([0.1, 0.1, 0.2, 0.2]).repeat(TINY.classes + 1)
        other[name] = other[name] * (scale[:, None] if leaf == "weight" else scale)
    save_file(other, tmp_path / "c.safetensors")
    for wanted in ("milvlg", "lxmert"):
        first = import_weights(tmp_path / "a.safetensors", convention=CONVENTIONS[wanted])
        second = import_weights(tmp_path / "c.safetensors", convention=CONVENTIONS[wanted])
        assert second.layout == "milvlg"
        for name, tensor in first.weights.items():
            torch.testing.assert_close(second.weights[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


# Caffe's file, written here by the rules of protocol buffers.


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _layer(name: str, *blobs: Tensor) -> bytes:
    content = _message(1, name.encode()) + _message(2, b"Kind") + _varint(10 << 3 | 5) + struct.pack("<f", 1.0)
    for blob in blobs:
        shape = _message(7, _message(1, b"".join(_varint(side) for side in blob.shape)))
        content += _message(7, _message(5, blob.contiguous().numpy().astype("<f4").tobytes()) + shape)
    return _message(100, content)


def _caffemodel(theirs: dict[str, Tensor]) -> bytes:
    """The layers of MILVLG's names as Caffe calls them."""
    content = _message(1, b"net")
    for name, weight in theirs.items():
        if f"{name.removesuffix('.weight')}.norm.weight" not in theirs:
            continue
        part = name.removesuffix(".weight")
        scale, shift, mean, variance = (
            theirs[f"{part}.norm.{leaf}"] for leaf in ("weight", "bias", "running_mean", "running_var")
        )
        if ".stem." in part:
            layer, suffix = "conv1", "_conv1"
        else:
            stage, block, convolution = part.split(".")[1:]
            letter = {"0": "a", "1": "b", "2": "c"}[block] if stage in ("res2", "res5") else ""
            letter = letter or ("a" if block == "0" else f"b{block}")
            branch = {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}[convolution]
            suffix = f"{stage[3:]}{letter}_branch{branch}"
            layer = f"res{suffix}"
        content += _layer(layer, weight)
        content += _layer(f"bn{suffix}", mean * 4, variance * 4, torch.tensor([4.0]))
        content += _layer(f"scale{suffix}", scale, shift)
    head, rpn = "roi_heads.box_predictor", "proposal_generator.rpn_head"
    for layer, name in {
        "rpn_conv/3x3": f"{rpn}.conv",
        "rpn_cls_score": f"{rpn}.objectness_logits",
        "rpn_bbox_pred": f"{rpn}.anchor_deltas",
        "cls_score": f"{head}.cls_score",
        "bbox_pred": f"{head}.bbox_pred",
        "fc_attr": f"{head}.attr_linear1",
        "attr_score": f"{head}.attr_linear2",
    }.items():
        content += _layer(layer, theirs[f"{name}.weight"], theirs[f"{name}.bias"])
    return content + _layer("cls_embedding", theirs[f"{head}.cls_embed.weight"])


def test_a_caffemodel_is_the_same_network(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    theirs = {name: tensor.contiguous() for name, tensor in milvlg(tensors).items()}
    del theirs["proposal_generator.anchor_generator.cell_anchors.0"]
    save_file(theirs, tmp_path / "w.safetensors")
    (tmp_path / "w.caffemodel").write_bytes(_caffemodel(theirs))
    found, expected = import_weights(tmp_path / "w.caffemodel"), import_weights(tmp_path / "w.safetensors")
    assert (found.layout, found.convention.name) == ("caffemodel", "caffe")
    assert found.spec == expected.spec
    for name, tensor in expected.weights.items():
        torch.testing.assert_close(found.weights[name], tensor, msg=name)


@pytest.mark.parametrize("cut", [1, 1000, 100_000])
def test_a_caffemodel_that_is_cut_short(tmp_path: Path, tensors: dict[str, Tensor], cut: int) -> None:
    path = tmp_path / "w.caffemodel"
    path.write_bytes(_caffemodel({k: v.contiguous() for k, v in milvlg(tensors).items()})[:-cut])
    with pytest.raises(WeightsError, match=r"w.caffemodel: is truncated"):
        read_weight_file(path)


# What is refused.


class _Code:
    """Pickles as a call of `os.mkdir`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["evil.pkl", "evil.pth", "evil.bin"])
def test_a_pickle_with_code_is_refused_and_nothing_is_run(tmp_path: Path, name: str) -> None:
    value = {"model": {"weight": np.ones(3, dtype=np.float32)}, "more": _Code(tmp_path / "made")}
    if name.endswith(".pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(value))
    else:
        torch.save(value, tmp_path / name)
    with pytest.raises(WeightsError, match=rf"{name}: refused, nothing was run: (it holds|the pickle wants) \w+"):
        read_weight_file(tmp_path / name)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"cnumpy\nndarray\n(I1000000000000\nS'f8'\ntR.", "not callable"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'f8'\ntR.", "expected \\(0,\\)"),
        (b"cnumpy\ndtype\n(S'O8'\ntR.", "arrays of 'O8', expected plain numbers"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "the pickle wants builtins.eval"),
        (b"Pname\n.", "refers to name outside"),
        (b"\x80\x04", "not a readable weight file"),
        (b"I1\n.", "expected tensors by name, got int"),
        (b"}.", "holds no tensors"),
    ],
)
def test_odd_pickles_are_refused(tmp_path: Path, code: bytes, message: str) -> None:
    (tmp_path / "odd.pkl").write_bytes(code)
    with pytest.raises(WeightsError, match=f"odd.pkl: .*{message}"):
        read_weight_file(tmp_path / "odd.pkl")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("roi_heads.attribute_predictor.fc.0.weight", "a detectron2 model of MILVLG"),
        ("module.att_lstm.weight_ih", "an X-LAN or X-Transformer captioner; use `xlan import-checkpoint`"),
        ("backbone.body.conv1.weight", "a detector with a feature pyramid"),
        ("rpn_head.rpn_conv.weight", "an mmdetection model"),
        ("transformer.encoder.layers.0.linear1.weight", "a DETR model"),
        ("layer1.0.conv1.weight", "a ResNet classifier"),
        ("something", "names like something"),
    ],
)
def test_files_of_other_families_are_named(tmp_path: Path, name: str, what: str) -> None:
    save_file({name: torch.ones(2)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=f"w.safetensors: expected weights of bottom-up attention .*, got {what}"):
        import_weights(tmp_path / "w.safetensors")


def test_values_that_are_not_finite(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    bad = dict(tensors)
    bad["backbone.res3.1.conv2.weight"] = bad["backbone.res3.1.conv2.weight"].clone()
    bad["backbone.res3.1.conv2.weight"][0, 0, 0, 0] = float("nan")
    save_file(bad, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"backbone.res3.1.conv2.weight holds values that are not finite"):
        import_weights(tmp_path / "w.safetensors")


def test_a_missing_tensor_is_named(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    some = {name: tensor for name, tensor in tensors.items() if name != "roi_heads.res5.1.conv2.norm.bias"}
    save_file(some, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"has no roi_heads.res5.1.conv2.norm.bias"):
        import_weights(tmp_path / "w.safetensors")


def test_a_missing_block_is_named(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    some = {name: tensor for name, tensor in tensors.items() if not name.startswith("backbone.res4.3.")}
    save_file(some, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"does not fit a bottom-up network .*missing: backbone\.res4\.3\."):
        import_weights(tmp_path / "w.safetensors")


def test_missing_files_and_unknown_suffixes(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no.pth: no such file"):
        read_weight_file(tmp_path / "no.pth")
    (tmp_path / "w.onnx").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"w.onnx: expected one of \.pth, .*, got \.onnx"):
        read_weight_file(tmp_path / "w.onnx")
    (tmp_path / "w.pth").write_bytes(b"no zip")
    with pytest.raises(WeightsError, match=r"w.pth: not a readable weight file"):
        read_weight_file(tmp_path / "w.pth")


def test_names_of_objects(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes(b"yolk\r\ngoal,goals\r\n traffic light , lights")
    assert read_names(tmp_path / "names.txt", expected=3, what="classes") == ["yolk", "goal", "traffic light"]
    with pytest.raises(DataError, match=r"names.txt: 3 names, the weights have 4 classes"):
        read_names(tmp_path / "names.txt", expected=4, what="classes")


def test_the_command_writes_a_directory_that_detects(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "objects.txt").write_text("\n".join(f"thing{i},other" for i in range(20)))
    (tmp_path / "attributes.txt").write_text("\n".join(f"quality{i}" for i in range(10)))
    options = ("--objects", tmp_path / "objects.txt", "--attributes", tmp_path / "attributes.txt", "--regions", "7-9")
    arguments = ("import-detector", tmp_path / "pytorch_model.bin", "-o", tmp_path / "detector", *options)
    result = run(*arguments)
    assert result.exit_code == 0
    assert "lxmert layout, lxmert convention, 7 to 9 regions, 20 classes, 10 attributes" in result.stdout
    detector = load_detector(tmp_path / "detector")
    found = detector.detect([detector.prepare(picture(96, 96, 2))])[0]
    assert 7 <= len(found) <= 9
    assert set(found.names) <= {f"thing{i}" for i in range(20)}
    assert found.attributes is not None
    assert set(found.attributes) <= {f"quality{i}" for i in range(10)}
    assert found.regions.features.shape == (len(found), 256)
    assert "pytorch_model.bin" in (tmp_path / "detector" / "README.md").read_text()
    with pytest.raises(ModelError, match="detector: a detector directory already exists; use --force"):
        run(*arguments)
    assert run(*arguments, "--force", "--half").exit_code == 0
    stored = load_file(tmp_path / "detector" / WEIGHTS)
    assert stored["classes.weight"].dtype == torch.float16
    assert isinstance(load_detector(tmp_path / "detector"), BottomUpExtractor)


PAGE = Path(__file__).parents[3] / "docs" / "detector.md"


def commands_of_the_page() -> list[str]:
    """Every command of the page that does not train: those of blocks, joined, and those of tables."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = [block.replace("\\\n", " ") for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(xlan (?:caption|pack|features|detect|explain) [^`]*)`", text)
    return [line for line in lines if not line.startswith("xlan detector") and "out/coco" not in line]


@pytest.mark.slow
def test_the_commands_of_the_page_run(
    tmp_path: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {name: tensor.contiguous() for name, tensor in milvlg(tensors).items()}
    monkeypatch.chdir(tmp_path)
    Path("resnet101_faster_rcnn_final.caffemodel").write_bytes(_caffemodel(theirs))
    Path("objects_vocab.txt").write_text("\n".join(f"thing{i}" for i in range(TINY.classes)))
    Path("attributes_vocab.txt").write_text("\n".join(f"quality{i}" for i in range(TINY.attributes)))
    Path("photos").mkdir()
    for name in ("photo.jpg", "photos/a.jpg"):
        picture(96, 128, 2).save(name)
    words = Vocabulary.from_words(["a", "dog"])
    spec = XLANSpec(
        form="released",
        vocab_size=len(words),
        feature_dim=TINY.feature_dim,
        dim=16,
        depth=1,
        heads=2,
        hidden_dim=4,
        sigma="celu",
    )
    save_pretrained("xlan-released", spec, build_model(spec).state_dict(), words)
    commands = commands_of_the_page()
    assert len(commands) >= 6
    for line in commands:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "xlan"
        outcome = run(*arguments)
        assert outcome.exit_code == 0, f"{line}\n{outcome.output}"
    assert "most at the" in Path("why.html").read_text()


@pytest.mark.parametrize(
    "family",
    [
        "`resnet101_faster_rcnn_final.caffemodel`",
        "`bua-caffe-frcn-r101_with_attributes.pth`",
        "`faster_rcnn_from_caffe_attr.pkl`",
        "`pytorch_model.bin`",
    ],
)
def test_the_page_tells_of_every_weight_file(family: str) -> None:
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {family}")]
    assert any(f"`{name}`" in row for name in CONVENTIONS)


@pytest.mark.parametrize(("option", "value"), [("--convention", "yolo"), ("--regions", "0"), ("--regions", "9-3")])
def test_wrong_options_are_usage_errors(tmp_path: Path, option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["import-detector", "w.bin", "-o", str(tmp_path / "d"), option, value])
    assert result.exit_code == 2


@pytest.fixture
def directory(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, tmp_path / "w.safetensors")
    found = import_weights(tmp_path / "w.safetensors")
    save_bottom_up(tmp_path / "d", found.spec, found.convention, found.weights)
    return tmp_path / "d"


def test_directories_that_cannot_be_used(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no: not a detector directory \(there is no detector.json in it\)"):
        load_detector(tmp_path / "no")
    weights_file, config = directory / WEIGHTS, directory / CONFIG
    whole, text = weights_file.read_bytes(), config.read_text()
    weights_file.write_bytes(whole[:-5])
    with pytest.raises(WeightsError, match=r"bytes, expected .*; copy the directory again"):
        load_detector(directory)
    weights_file.write_bytes(whole[:-4] + struct.pack("<f", float("nan")))
    with pytest.raises(WeightsError, match="holds values that are not finite; the file is damaged"):
        load_detector(directory)
    weights_file.write_bytes(whole)
    for old, new, message in (
        ('"format": 1', '"format": 2', "format 2, this version of xlan reads format 1"),
        ('"kind": "bottom-up"', '"kind": "yolo"', "unknown kind of detector 'yolo'"),
        ('"rpn": 64', '"rpn": 0', "rpn must be from 1 to 8192, got 0"),
        ('"rpn": 64', '"rpn": 65', "does not fit this network; misshapen: rpn.conv.weight"),
        ('"offset": 0,', "", "missing or unknown: offset"),
        ('"objects": []', '"objects": [3]', "'objects' must be a list of names"),
    ):
        assert old in text
        config.write_text(text.replace(old, new))
        with pytest.raises(ModelError, match=message):
            load_detector(directory)
    weights_file.unlink()
    config.write_text(text)
    with pytest.raises(WeightsError, match="missing; copy the directory again"):
        load_detector(directory)


def test_a_folder_with_other_things_is_not_overwritten(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    detector = load_detector(directory)
    assert isinstance(detector, BottomUpExtractor)
    network = detector.network
    with pytest.raises(ModelError, match="mine: already exists and is not a detector directory"):
        save_bottom_up(tmp_path / "mine", network.spec, network.convention, network.state_dict())
