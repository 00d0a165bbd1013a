"""`xlan confidence`: a real model directory, fitted and checked on drawn shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from xlan import Captioner, Vocabulary, build_model
from xlan.cli.main import app
from xlan.confidence.odd import KINDS, odd_pictures
from xlan.data.captions import load_captions
from xlan.data.shapes import write_shapes
from xlan.errors import FeatureError
from xlan.pretrained import SHIPPED, save_pretrained
from xlan.types import Regions
from xlan.vision.store import FeatureStoreWriter


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    write_shapes(folder, 700, seed=3)
    return folder


@pytest.fixture
def model(tmp_path: Path, shapes: Path) -> Path:
    captions = load_captions(shapes / "captions.jsonl")
    words = Vocabulary.build(captions.words("train"), threshold=1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = build_model("xlan-tiny", vocab_size=len(words), feature_dim=_width(shapes))
    save_pretrained(tmp_path / "model", made.spec, made.state_dict(), words)
    return tmp_path / "model"


def _width(shapes: Path) -> int:
    from xlan.vision.store import FeatureStore

    store = FeatureStore(shapes / "features")
    return int(store[next(iter(store.ids))].features.shape[1])


def run(*arguments: object):
    return CliRunner().invoke(app, ["confidence", *map(str, arguments)])


def test_a_model_is_fitted_and_checked(model: Path, shapes: Path, tmp_path: Path) -> None:
    files = ("--captions", shapes / "captions.jsonl", "--features", shapes / "features")
    before = run("check", model, *files, "--split", "test")
    assert before.exit_code == 1
    assert "not calibrated" in str(before.exception)

    fitted = run("fit", model, *files, "--split", "train", "--limit", 300)
    assert fitted.exit_code == 0, fitted.output
    assert "captions of train; people use" in fitted.output
    assert Captioner.from_pretrained(model).judge.calibration is not None

    checked = run("check", model, *files, "--split", "train", "--json", "-o", tmp_path / "page.html")
    assert checked.exit_code == 0, checked.output
    found = json.loads(checked.stdout)
    assert found["words"]["error"] < 0.06  # a model that knows nothing is right as often as it says
    assert (tmp_path / "page.html").read_text().count("<figure") == 2


def test_a_model_without_calibration_is_told_before_anything_is_captioned(model: Path, tmp_path: Path) -> None:
    result = run("check", model, "--captions", tmp_path / "none.jsonl", "--features", tmp_path / "none")
    assert "model: is not calibrated; fit it first: xlan confidence fit" in str(result.exception)


def test_a_split_without_pictures_is_told(model: Path, shapes: Path) -> None:
    files = ("--captions", shapes / "captions.jsonl", "--features", shapes / "features")
    result = run("fit", model, *files, "--split", "holiday")
    assert result.exit_code == 1
    assert "holiday" in str(result.exception)


def test_too_few_pictures_are_told_before_any_is_captioned(
    model: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Captioner, "caption_regions", None)
    files = ("--captions", shapes / "captions.jsonl", "--features", shapes / "features")
    result = run("fit", model, *files, "--split", "train", "--limit", 20)
    assert "expected at least 200 pictures of the split 'train' with features, got 20" in str(result.exception)


def test_features_of_another_width_are_refused(model: Path, shapes: Path, tmp_path: Path) -> None:
    with FeatureStoreWriter(tmp_path / "store") as writer:
        writer.add("1", Regions(np.ones((2, 7), np.float32), np.zeros((2, 4), np.float32), width=9, height=9))
    files = ("--captions", shapes / "captions.jsonl", "--features", tmp_path / "store")
    result = run("fit", model, *files, "--split", "train")
    assert f"features are 7 wide, the model expects {_width(shapes)}" in str(result.exception)


def test_odd_pictures_are_the_same_for_the_same_seed_and_of_every_kind() -> None:
    first = [np.asarray(image) for image in odd_pictures(2 * len(KINDS), seed=4)]
    again = [np.asarray(image) for image in odd_pictures(2 * len(KINDS), seed=4)]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not all((a == b).all() for a, b in zip(first[: len(KINDS)], first[len(KINDS) :], strict=True))


def test_features_of_another_network_are_refused(model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "captions.jsonl").write_text('{"image": "1", "caption": "a dog", "split": "test"}\n')
    with FeatureStoreWriter(tmp_path / "store", extractor={"extractor": "grid", "weights": "sha256:dead"}) as writer:
        writer.add("1", Regions(np.ones((2, 1280), np.float32), np.zeros((2, 4), np.float32), width=9, height=9))
    files = ("--captions", tmp_path / "captions.jsonl", "--features", tmp_path / "store")
    for command, directory in (("fit", model_directory), ("check", SHIPPED)):  # only what is calibrated is checked
        result = run(command, directory, *files, "--split", "test")
        assert isinstance(result.exception, FeatureError)
        assert "comes from another network than this model was trained with" in str(result.exception)
