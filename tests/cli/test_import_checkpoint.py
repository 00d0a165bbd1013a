"""`xlan import-checkpoint`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from xlan import from_pretrained
from xlan.cli.main import app
from xlan.decoding import greedy
from xlan.errors import DataError, ModelError, WeightsError

FOLDER = Path(__file__).parent.parent / "fixtures" / "reference"


@pytest.fixture
def released(tmp_path):
    """A checkpoint and a vocabulary like the released ones, at small size."""
    weights = load_file(FOLDER / "xlan_weights.safetensors")
    torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, tmp_path / "caption_model_47.pth")
    (tmp_path / "vocab.txt").write_text("".join(f"word{i}\n" for i in range(1, 50)))
    return tmp_path


def run(folder, *extra, vocab="vocab.txt"):
    arguments = [str(folder / "caption_model_47.pth"), "--vocab", str(folder / vocab), "-o", str(folder / "model")]
    return CliRunner().invoke(app, ["import-checkpoint", *arguments, *extra])


def test_makes_a_model_directory_that_computes_the_same(released):
    done = run(released)
    assert done.exit_code == 0, done.output
    assert "X-LAN, 2 encoder blocks, LSTM decoder, width 32" in done.output
    loaded = from_pretrained(released / "model", dtype=torch.float64, verify=True)
    special = loaded.vocabulary.special
    assert (special.pad, special.bos, special.eos, special.unk) == (0, 0, 0, 49)
    assert loaded.vocabulary.decode([1, 2, 0, 3]) == "word1 word2"
    inputs = load_file(FOLDER / "xlan_inputs.safetensors")
    outputs = load_file(FOLDER / "xlan_outputs_f64.safetensors")
    encoded = loaded.model.encode(inputs["att_feats"].double(), inputs["att_mask"].bool())
    torch.testing.assert_close(encoded.summary.detach(), outputs["enc_global"], rtol=1e-9, atol=1e-12)
    assert "caption_model_47.pth" in (released / "model/README.md").read_text()


def test_another_vocabulary_is_refused(released):
    (released / "short.txt").write_text("a\nb\n")
    error = run(released, vocab="short.txt").exception
    assert isinstance(error, ModelError)
    assert "2 words make 3 ids, the checkpoint has 50" in str(error)


def test_a_model_that_is_there_is_kept_unless_forced(released):
    assert run(released).exit_code == 0
    error = run(released).exception
    assert isinstance(error, ModelError)
    assert "use --force to replace it" in str(error)
    assert run(released, "--force").exit_code == 0


BASELINES = FOLDER.parent / "baselines"
SAID = {
    "show_tell": "LSTM, no attention, width 24",
    "newfc": "LSTM with a maxout cell, no attention, width 24",
    "att2in2": "Att2in, width 24",
    "att2all2": "Att2all, width 24",
    "updown": "Up-Down, width 24",
    "aoanet": "AoANet, 6 refiner layers, width 24",
}


@pytest.fixture
def public(tmp_path):
    """A function: tag → a folder with a checkpoint of the widespread implementation and its vocabulary as JSON."""

    def make(tag):
        tensors = load_file(BASELINES / f"{tag}.safetensors")
        weights = {k.removeprefix("weights/"): t for k, t in tensors.items() if k.startswith("weights/")}
        torch.save(weights, tmp_path / "caption_model_47.pth")
        words = {str(i): f"word{i}" for i in range(1, 49)} | {"49": "UNK"}
        (tmp_path / "vocab.json").write_text(json.dumps({"ix_to_word": words}))
        return tmp_path, tensors

    return make


@pytest.mark.parametrize("tag", SAID)
def test_public_checkpoints_of_other_systems(public, tag):
    folder, tensors = public(tag)
    done = run(folder, *(["--heads", "4"] if tag == "aoanet" else []), vocab="vocab.json")
    assert done.exit_code == 0, done.output or done.exception
    assert SAID[tag] in done.output
    loaded = from_pretrained(folder / "model", dtype=torch.float64, verify=True)
    assert loaded.vocabulary.special.unk == 49
    encoded = loaded.model.encode(tensors["inputs/region_features"].double(), tensors["inputs/region_mask"])
    result = greedy(loaded.model, encoded, loaded.vocabulary.special, max_length=12)
    theirs = tensors["outputs/greedy_seq"]
    assert torch.equal(result.ids[:, 0], theirs[:, : result.ids.shape[-1]])


def test_a_pickled_vocabulary_is_not_read(public):
    folder, _ = public("updown")
    (folder / "infos.pkl").write_bytes(b"")
    error = run(folder, vocab="infos.pkl").exception
    assert isinstance(error, DataError)
    assert "a pickle can run code and is not read; write its vocabulary as JSON" in str(error)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (["a"], "expected words by id"),
        ({"1": "a", "3": "b"}, "without gaps, but id 2 of 2 is missing"),
        ({"1": 1}, "expected words by id"),
        ({"1": "a", "2": ""}, "vocab.json: expected a word without spaces as id 2, got ''"),
        ({"1": "a dog"}, "vocab.json: expected a word without spaces as id 1, got 'a dog'"),
        ({"1": "a", "2": "a"}, "vocab.json: expected each word once, but 'a' comes again as id 2"),
    ],
)
def test_a_vocabulary_that_is_none(public, content, message):
    folder, _ = public("updown")
    (folder / "vocab.json").write_text(json.dumps(content))
    error = run(folder, vocab="vocab.json").exception
    assert isinstance(error, DataError)
    assert message in str(error)


def test_a_state_dict_inside_something_else(public):
    folder, _ = public("updown")
    torch.save({"model": {"embed.0.weight": torch.zeros(3)}, "epoch": 3}, folder / "caption_model_47.pth")
    error = run(folder, vocab="vocab.json").exception
    assert isinstance(error, WeightsError)
    assert "but 'model' is dict" in str(error)
    assert "save that entry alone" in str(error)


def test_heads_that_do_not_fit(public):
    folder, _ = public("aoanet")
    error = run(folder, "--heads", "7", vocab="vocab.json").exception
    assert isinstance(error, WeightsError)
    assert str(error) == "heads: expected a divisor of the width 24, got 7; give it with --heads"


def test_a_checkpoint_of_another_family(public):
    folder, _ = public("updown")
    torch.save({"resnet.conv1.weight": torch.zeros(3)}, folder / "caption_model_47.pth")
    error = run(folder, vocab="vocab.json").exception
    assert isinstance(error, WeightsError)
    assert "expected the weights of one of X-LAN, X-Transformer, AoANet, UpDown" in str(error)
    assert "got resnet.conv1.weight" in str(error)
