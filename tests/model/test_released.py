"""Reading the authors' checkpoints."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from xlan.errors import WeightsError
from xlan.model.released import convert_released, read_checkpoint
from xlan.model.spec import MODELS

FOLDER = Path(__file__).parent.parent / "fixtures" / "reference"


def listed(tag):
    """The published checkpoint as empty tensors, from the list of its names and shapes."""
    weights = {}
    for line in (FOLDER / f"{tag}_keys.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, shape, dtype, _ = line.split("\t")
            weights[name] = torch.empty(ast.literal_eval(shape), dtype=getattr(torch, dtype), device="meta")
    return weights


@pytest.mark.parametrize("tag", ["xlan", "xtransformer"])
def test_published_checkpoints_are_recognised_whole(tag):
    spec, weights = convert_released(listed(tag))
    assert spec == MODELS[tag]
    buffers = 1 if tag == "xtransformer" else 0
    assert len(weights) == len(listed(tag)) - buffers


def small():
    return load_file(FOLDER / "xlan_weights.safetensors")


def test_the_module_prefix_makes_no_difference():
    spec, weights = convert_released({f"module.{name}": tensor for name, tensor in small().items()})
    plain_spec, plain = convert_released(small())
    assert spec == plain_spec
    assert weights.keys() == plain.keys()


def test_every_fault_is_listed():
    weights = small()
    del weights["att2ctx.0.bias"]
    weights["surprise.weight"] = torch.zeros(2)
    weights["logit.bias"] = torch.zeros(7)
    with pytest.raises(WeightsError) as error:
        convert_released(weights)
    text = str(error.value)
    assert "missing: decoder.context_linear.bias" in text
    assert "unexpected: surprise.weight" in text
    assert "misshapen: decoder.logits.bias [7] instead of [50]" in text


def test_foreign_weights():
    with pytest.raises(WeightsError, match=r"expected the weights of one of X-LAN, .*; got conv1\.weight"):
        convert_released({"conv1.weight": torch.zeros(1)})
    with pytest.raises(WeightsError, match=r"no word_embed\.0\.weight, which the architecture is read from"):
        convert_released({"att_lstm.weight_ih": torch.zeros(1)})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "logit.weight",
            lambda t: t.to(torch.int32),
            "logit.weight: expected a dense tensor of floats, got torch.strided",
        ),
        (
            "logit.weight",
            lambda t: t.to_sparse(),
            "logit.weight: expected a dense tensor of floats, got torch.sparse_coo",
        ),
        ("logit.bias", lambda t: t * torch.nan, "logit.bias: holds values that are not finite"),
        (
            "attention.layers.0.encoder_attn.attn_net.attention_basic.0.weight",
            lambda t: t[:, :0],
            "does not fit the architecture",
        ),
    ],
)
def test_tensors_that_are_no_weights_are_refused(name, change, message):
    weights = small()
    weights[name] = change(weights[name])
    with pytest.raises(WeightsError) as error:
        convert_released(weights)
    assert message in str(error.value)


def test_tied_weights_get_memory_of_their_own():
    weights = small()
    weights["logit.weight"] = weights["word_embed.0.weight"]
    _, ours = convert_released(weights)
    assert ours["decoder.logits.weight"].data_ptr() != ours["decoder.embed.weight"].data_ptr()


def test_pth_and_safetensors_hold_the_same(tmp_path):
    weights = {f"module.{name}": tensor for name, tensor in small().items()}
    torch.save(weights, tmp_path / "model.pth")
    save_file(weights, tmp_path / "model.safetensors")
    one, two = read_checkpoint(tmp_path / "model.pth"), read_checkpoint(tmp_path / "model.safetensors")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


class Mischief:
    def __reduce__(self):
        return (Path("made-by-mischief").touch, ())


def test_code_in_a_checkpoint_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"module.x": Mischief()}, "bad.pth")
    with pytest.raises(
        WeightsError,
        match=r"bad\.pth: not a readable checkpoint of tensors \(it asks for \w+; only tensors are read, nothing is",
    ):
        read_checkpoint("bad.pth")
    assert not Path("made-by-mischief").exists()


@pytest.mark.parametrize("name", ["bad.pth", "bad.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 half a zip", b"\xff" * 100])
def test_damaged_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / name)


def test_truncated_checkpoint(tmp_path):
    torch.save(small(), tmp_path / "whole.pth")
    whole = (tmp_path / "whole.pth").read_bytes()
    (tmp_path / "half.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / "half.pth")


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"a": torch.zeros(2, device="meta")}])
def test_not_a_state_dict(tmp_path, content):
    torch.save(content, tmp_path / "list.pth")
    with pytest.raises(WeightsError, match="expected a state dict"):
        read_checkpoint(tmp_path / "list.pth")


def test_missing_file(tmp_path):
    with pytest.raises(WeightsError, match="no such file"):
        read_checkpoint(tmp_path / "none.pth")
