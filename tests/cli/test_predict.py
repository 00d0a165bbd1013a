from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from xlan import Captioner, CaptionOptions
from xlan.cli import progress
from xlan.cli.main import app
from xlan.data.captions import load_captions
from xlan.data.shapes import write_shapes
from xlan.errors import FeatureError
from xlan.model.build import build_model
from xlan.pretrained import from_pretrained, save_pretrained
from xlan.text.vocab import Vocabulary
from xlan.vision.store import FeatureStore, FeatureStoreWriter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn shapes and an untrained model that knows their words."""
    path = tmp_path_factory.mktemp("predict")
    write_shapes(path / "shapes", 32)
    vocabulary = Vocabulary.build(load_captions(path / "shapes").words("train"), threshold=1)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = build_model("xlan-tiny", vocab_size=len(vocabulary), feature_dim=32, dim=16, heads=2)
    save_pretrained(path / "model", model.spec, model.state_dict(), vocabulary)
    return path


def predict(folder: Path, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app,
        [
            "predict",
            str(folder / "model"),
            f"--captions={folder / 'shapes'}",
            f"--features={folder / 'shapes' / 'features'}",
            f"--output={folder / 'out.json'}",
            *more,
        ],
    )
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_every_image_of_the_split_gets_a_caption(folder: Path) -> None:
    status, output = predict(folder, "--split=val", "--beams=2", "--batch-size=3")
    assert status == 0, output
    wanted = [image.id for image in load_captions(folder / "shapes").split("val")]
    rows = json.loads((folder / "out.json").read_text())
    assert [row["image_id"] for row in rows] == wanted
    assert all(isinstance(row["caption"], str) for row in rows)


def test_a_graph_needs_boxes(folder: Path, tmp_path: Path) -> None:
    """An import of features without boxes gives every region the whole picture."""
    store = FeatureStore(folder / "shapes" / "features")
    with FeatureStoreWriter(tmp_path / "store", dtype="float32", extractor=store.extractor) as writer:
        for image in store.ids:
            regions = store[image]
            writer.add(image, replace(regions, boxes=np.tile(np.float32([0, 0, 1, 1]), (len(regions), 1))))
    vocabulary = from_pretrained(folder / "model").vocabulary
    graph = build_model("gcn-lstm-spatial-tiny", vocab_size=len(vocabulary), feature_dim=32, dim=16)
    save_pretrained(tmp_path / "model", graph.spec, graph.state_dict(), vocabulary)
    arguments = ["predict", str(tmp_path / "model"), f"--captions={folder / 'shapes'}", f"-o{tmp_path / 'out.json'}"]
    done = CliRunner().invoke(app, [*arguments, f"--features={store.path}"])
    assert done.exit_code == 0, done.exception
    error = CliRunner().invoke(app, [*arguments, f"--features={tmp_path / 'store'}"]).exception
    assert isinstance(error, FeatureError)
    assert "its regions have no boxes of their own, from which this model builds a graph" in str(error)


def test_as_caption_says_what_the_captioner_says(folder: Path) -> None:
    status, output = predict(folder, "--split=val", "--beams=4", "--batch-size=3", "--as-caption")
    assert status == 0, output
    captioner, store = Captioner.from_pretrained(folder / "model"), FeatureStore(folder / "shapes" / "features")
    wanted = load_captions(folder / "shapes").split("val")
    said = captioner.caption_regions([store[image.id] for image in wanted], CaptionOptions(beams=4, max_length=17))
    rows = json.loads((folder / "out.json").read_text())
    assert [(row["image_id"], row["caption"]) for row in rows] == [
        (image.id, caption.text) for image, caption in zip(wanted, said, strict=True)
    ]
    predict(folder, "--split=val", "--beams=4")
    assert json.loads((folder / "out.json").read_text()) != rows  # this model's likeliest sentences say a word twice


def test_images_without_features_are_refused_or_skipped(folder: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (folder / "shapes" / "captions.jsonl").read_text().splitlines()]
    absent = {**next(row for row in rows if row["split"] == "val"), "id": "absent", "file": "absent.png"}
    captions = tmp_path / "captions.jsonl"
    captions.write_text("".join(json.dumps(row) + "\n" for row in [*rows, absent]))
    status, output = predict(folder, "--split=val", f"--captions={captions}")
    assert status == 1
    assert "absent" in output
    status, output = predict(folder, "--split=val", f"--captions={captions}", "--skip-missing")
    assert status == 0, output
    assert "absent" not in {row["image_id"] for row in json.loads((folder / "out.json").read_text())}


def test_features_of_another_network_are_refused(folder: Path, tmp_path: Path) -> None:
    here, there = ({"extractor": "grid", "weights": f"sha256:{name}"} for name in ("aaaa", "bbbb"))
    write_shapes(tmp_path / "shapes", 16)
    loaded = from_pretrained(folder / "model")
    spec, weights = loaded.model.spec, loaded.model.state_dict()
    save_pretrained(tmp_path / "model", spec, weights, loaded.vocabulary, features=here)
    index = tmp_path / "shapes" / "features" / "index.json"
    for extractor, status in ((here, 0), (there, 1)):
        index.write_text(json.dumps({**json.loads(index.read_text()), "extractor": extractor}))
        code, output = predict(tmp_path, "--split=val")
        assert code == status, output
    assert "comes from another network than" in output
    assert "(weights sha256:bbbb instead of sha256:aaaa)" in output


def test_an_unknown_split_is_named(folder: Path) -> None:
    status, output = predict(folder, "--split=validation-2")
    assert status == 1
    assert "split 'validation-2' has no images" in output


def test_a_device_that_is_not_there_is_refused_in_words(folder: Path) -> None:
    status, output = predict(folder, "--device=no-such-device")
    assert status == 1
    assert "device 'no-such-device' cannot be used here" in output
    assert predict(folder, "--split=val", "--device=cpu")[0] == 0


def test_a_log_says_how_many_images_are_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    status, output = predict(folder, "--split=val", "--batch-size=3")
    assert status == 0
    assert "val: 3 of 4 (75%)" in output
