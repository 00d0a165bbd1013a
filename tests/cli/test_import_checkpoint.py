"""`xlan import-checkpoint`, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from xlan import from_pretrained
from xlan.cli.main import app
from xlan.errors import ModelError

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
