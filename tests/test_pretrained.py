"""Model directories."""

from __future__ import annotations

import errno
import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from xlan import Vocabulary, build_model, from_pretrained, save_pretrained
from xlan.errors import DataError, ModelError, WeightsError, XlanError
from xlan.pretrained import read_model_directory

VOCABULARY = Vocabulary.from_words(["a", "cat", "sits"])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model("xlan-tiny", vocab_size=len(VOCABULARY), feature_dim=6, dim=8, heads=2, hidden_dim=2)


@pytest.fixture
def directory(tmp_path, model):
    save_pretrained(tmp_path / "model", model.spec, model.state_dict(), VOCABULARY, card="# A cat model\n")
    return tmp_path / "model"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def change(path, **values):
    config = json.loads(path.read_text())
    config.update(values)
    path.write_text(json.dumps(config))


def test_there_and_back_again(model, directory):
    loaded = from_pretrained(directory, verify=True)
    assert loaded.vocabulary == VOCABULARY
    assert loaded.model.spec == model.spec
    assert not loaded.model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
    assert (directory / "README.md").read_text() == "# A cat model\n"


def test_a_directory_is_complete_and_holds_no_pickle(directory):
    assert names(directory) == ["README.md", "config.json", "model.safetensors", "vocab.json"]


def test_all_files_can_be_read_by_those_who_may_read_the_card(directory):
    modes = {path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == {(directory / "README.md").stat().st_mode & 0o777}


def test_half_precision_on_disk_single_in_memory(tmp_path, model, directory):
    save_pretrained(tmp_path / "half", model.spec, model.state_dict(), VOCABULARY, dtype=torch.float16)
    assert (tmp_path / "half/model.safetensors").stat().st_size < (directory / "model.safetensors").stat().st_size
    loaded = from_pretrained(tmp_path / "half").model
    assert all(parameter.dtype == torch.float32 for parameter in loaded.parameters())


def test_loaded_models_can_be_trained(directory):
    model = from_pretrained(directory).model.train()
    model(torch.randn(1, 2, 6), None, torch.tensor([[1, 4]]), torch.tensor([2])).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_replacing_is_all_or_nothing(directory, model, monkeypatch):
    before = (directory / "config.json").read_text()
    monkeypatch.setattr(Vocabulary, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save_pretrained(directory, model.spec, model.state_dict(), VOCABULARY)
    assert (directory / "config.json").read_text() == before
    assert from_pretrained(directory, verify=True)
    assert names(directory.parent) == ["model"], "nothing is left behind"


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files the POSIX way")
def test_a_full_disk_is_an_error_of_the_file_system_and_leaves_the_model_as_it_was(directory, model):
    import resource
    import signal

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save_pretrained(directory, model.spec, model.state_dict(), VOCABULARY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename.endswith("model.safetensors")
    assert names(directory.parent) == ["model"]
    assert from_pretrained(directory, verify=True).vocabulary == VOCABULARY


def test_replacing_an_older_model(directory, model):
    with torch.no_grad():
        model.encoder.embed.bias.fill_(5.0)
    save_pretrained(directory, model.spec, model.state_dict(), VOCABULARY)
    assert from_pretrained(directory).model.encoder.embed.bias[0].item() == 5.0
    assert names(directory.parent) == ["model"]


def test_something_else_is_not_overwritten(tmp_path, model):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").touch()
    with pytest.raises(ModelError, match="already exists and is not a model directory"):
        save_pretrained(tmp_path / "photos", model.spec, model.state_dict(), VOCABULARY)
    assert (tmp_path / "photos/cat.jpg").exists()


def test_a_folder_with_a_config_of_something_else_is_not_overwritten(tmp_path, model):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/config.json").write_text('{"name": "mine"}')
    (tmp_path / "project/work.py").touch()
    with pytest.raises(ModelError, match="already exists and is not a model directory"):
        save_pretrained(tmp_path / "project", model.spec, model.state_dict(), VOCABULARY)
    assert names(tmp_path / "project") == ["config.json", "work.py"]


def test_replacing_a_model_keeps_what_others_put_beside_it(directory, model):
    before = names(directory)
    (directory / "notes.txt").write_text("mine")
    (directory / "vision.safetensors").touch()
    save_pretrained(directory, model.spec, model.state_dict(), VOCABULARY)
    assert names(directory) == sorted([*before, "notes.txt"])
    assert names(directory.parent) == ["model"]


def test_the_old_model_comes_back_when_the_new_one_cannot_be_moved(directory, model, monkeypatch):
    rename = Path.rename

    def fail(path, target):
        if path.name.endswith(".tmp") and not path.is_file():
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        save_pretrained(directory, model.spec, model.state_dict(), VOCABULARY)
    assert from_pretrained(directory, verify=True)
    assert names(directory.parent) == ["model"]


def test_vocabulary_of_another_size_is_refused(tmp_path, model):
    with pytest.raises(ModelError, match="the vocabulary has 5 words, the model expects 7"):
        save_pretrained(tmp_path / "model", model.spec, model.state_dict(), Vocabulary.from_words(["a"]))


def seal(directory):
    """Make config.json agree with the files again."""
    config = json.loads((directory / "config.json").read_text())
    for name, said in config["files"].items():
        content = (directory / name).read_bytes()
        said.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (directory / "config.json").write_text(json.dumps(config))


def truncate(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def foreign(directory):
    save_file({"conv.weight": torch.zeros(2)}, directory / "model.safetensors")
    seal(directory)


def misshapen(directory):
    weights = load_file(directory / "model.safetensors")
    weights["decoder.logits.bias"] = torch.zeros(9)
    save_file(weights, directory / "model.safetensors")
    seal(directory)


def flip_a_bit(directory):
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def other_words(directory):
    Vocabulary.from_words(["a", "cat", "sits", "down"]).save(directory / "vocab.json")
    seal(directory)


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (lambda d: (d / "config.json").unlink(), ModelError, "not a model directory (there is no config.json in it)"),
        (lambda d: (d / "config.json").write_text("{"), DataError, "not valid JSON"),
        (lambda d: (d / "config.json").write_text("[]"), ModelError, "not the configuration of a model directory"),
        (lambda d: change(d / "config.json", format=99), ModelError, "format 99, this version of xlan reads format 1"),
        (lambda d: change(d / "config.json", model=3), ModelError, "'model' and 'files' must be objects"),
        (lambda d: change(d / "config.json", files={}), ModelError, "must give bytes and sha256 of model.safetensors"),
        (
            lambda d: change(d / "config.json", files={"model.safetensors": {"bytes": "9", "sha256": ""}}),
            ModelError,
            "must give bytes and sha256 of model.safetensors",
        ),
        (lambda d: (d / "model.safetensors").unlink(), WeightsError, "model.safetensors is missing"),
        (lambda d: (d / "vocab.json").unlink(), WeightsError, "vocab.json is missing"),
        (truncate, WeightsError, "copy the directory again"),
        (foreign, WeightsError, "unexpected: conv.weight"),
        (misshapen, WeightsError, "misshapen: decoder.logits.bias [9] instead of [7]"),
        (other_words, ModelError, "vocab.json has 8 words, config.json says 7"),
        (flip_a_bit, WeightsError, "damaged (its SHA-256 differs)"),
    ],
)
def test_damage_is_told_in_words(directory, damage, kind, message):
    damage(directory)
    with pytest.raises(XlanError) as error:
        from_pretrained(directory, verify=True)
    assert isinstance(error.value, kind)
    assert message in str(error.value)


def test_weights_of_another_architecture_are_not_saved(tmp_path, model):
    weights = {**model.state_dict(), "stranger": torch.zeros(2)}
    with pytest.raises(WeightsError, match=r"weights: does not fit the architecture; .*stranger"):
        save_pretrained(tmp_path / "model", model.spec, weights, VOCABULARY)
    with pytest.raises(ModelError, match=r"extras: expected vision\.safetensors or .*, got 'vision\.pt'"):
        save_pretrained(tmp_path / "model", model.spec, model.state_dict(), VOCABULARY, extras={"vision.pt": b""})
    assert not (tmp_path / "model").exists()


def test_a_directory_is_read_without_its_weights(directory, model):
    found = read_model_directory(directory, verify=True)
    assert (found.spec, found.vocabulary) == (model.spec, VOCABULARY)
    assert found.card == "# A cat model\n"
    assert set(found.hashes) == {"model.safetensors", "vocab.json"}
    assert set(found.weights()) == set(model.state_dict())


def test_the_identity_is_of_everything_that_decides_the_captions(directory):
    def identity():
        return read_model_directory(directory).identity

    found = read_model_directory(directory)
    plain = hashlib.sha256(json.dumps(dict(found.hashes), sort_keys=True).encode()).hexdigest()
    assert identity() == plain
    change(directory / "config.json", features={"extractor": "grid", "input_size": 256})
    small = identity()
    change(directory / "config.json", features={"input_size": 256, "extractor": "grid"})
    assert identity() == small
    change(directory / "config.json", features={"extractor": "grid", "input_size": 320})
    large = identity()
    (directory / "detector").mkdir()
    (directory / "detector" / "detector.json").write_text('{"threshold": 0.1}')
    one = identity()
    (directory / "detector" / "detector.json").write_text('{"threshold": 0.2}')
    assert len({plain, small, large, one, identity()}) == 5
