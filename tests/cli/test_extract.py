"""`xlan features extract` and `xlan adapt`, from the command line to the files they leave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from typer.testing import CliRunner, Result

from xlan.cli.main import app
from xlan.errors import DataError, FeatureError
from xlan.vision import efficientnet
from xlan.vision.efficientnet import EfficientNetLite
from xlan.vision.grid import GridExtractor
from xlan.vision.grid_settings import GridSettings
from xlan.vision.lite import SPECS, LiteSpec
from xlan.vision.store import FeatureStore


@pytest.fixture
def vision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a small adapted network."""
    spec = LiteSpec("tiny", width=0.25, depth=0.25, input_size=64, head=24)
    monkeypatch.setitem(SPECS, "tiny", spec)
    torch.manual_seed(0)
    path = tmp_path / "vision.safetensors"
    GridExtractor(EfficientNetLite(spec), GridSettings("tiny", input_size=64)).save(path)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Sixteen pictures in a folder with a Karpathy file that names them."""
    root = tmp_path / "data"
    root.mkdir()
    images = []
    random = np.random.default_rng(0)
    for i in range(16):
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(root / f"{i}.png")
        split = "val" if i % 4 == 3 else "train"
        sentences = [{"raw": f"a dog with number {'abc'[i % 3]}x on grass"}, {"raw": "the dog runs"}]
        images.append({"filename": f"{i}.png", "cocoid": 100 + i, "split": split, "sentences": sentences})
    path = root / "dataset.json"
    path.write_text(json.dumps({"images": images}))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_folder_becomes_a_store(dataset: Path, vision: Path, tmp_path: Path) -> None:
    result = run("features", "extract", dataset.parent, "-o", tmp_path / "store", "--vision", vision, "--batch", "4")
    assert result.exit_code == 0
    assert "16 pictures extracted, 0 already there, 0 skipped" in result.stdout
    assert "pictures/s, features of width 24" in result.stdout
    store = FeatureStore(tmp_path / "store")
    assert len(store) == 16
    assert store["0"].features.shape == (5, 24)
    assert store.complete
    assert store.extractor["network"] == "tiny"


def test_a_dataset_gives_its_ids_and_splits(dataset: Path, vision: Path, tmp_path: Path) -> None:
    result = run("features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision, "--split", "val")
    assert result.exit_code == 0
    assert list(FeatureStore(tmp_path / "store")) == ["103", "107", "111", "115"]


def test_restval_belongs_to_the_training_split(dataset: Path, vision: Path, tmp_path: Path) -> None:
    dataset.write_text(dataset.read_text().replace('"train"', '"restval"', 1))
    arguments = ("features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision)
    assert run(*arguments, "--split", "train").exit_code == 0
    assert len(FeatureStore(tmp_path / "store")) == 12
    with pytest.raises(DataError, match=r"no pictures found in .* \(split tset\); splits found: train, val"):
        run(*arguments, "--split", "tset")


def test_pictures_may_be_in_another_folder(dataset: Path, vision: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(15):
        (dataset.parent / f"{i}.png").rename(tmp_path / "photos" / f"{100 + i:012d}.png")
    arguments = ("--vision", vision, "--pictures", tmp_path / "photos")
    result = run("features", "extract", dataset, "-o", tmp_path / "store", *arguments)
    assert result.exit_code == 0
    assert f"1 images have no picture in {tmp_path / 'photos'}; they are skipped" in result.stderr
    assert list(FeatureStore(tmp_path / "store")) == [str(100 + i) for i in range(15)]


def test_bad_pictures_are_listed_and_the_status_says_so(dataset: Path, vision: Path, tmp_path: Path) -> None:
    (dataset.parent / "3.png").write_bytes(b"PK\x03\x04")
    bad = tmp_path / "bad.txt"
    arguments = ("features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision, "--bad-list", bad)
    result = run(*arguments)
    assert result.exit_code == 3
    assert "3.png: is not a picture but a ZIP archive" in result.stderr
    assert "15 pictures extracted, 0 already there, 1 skipped" in result.stdout
    assert bad.read_text().splitlines() == [f"{dataset.parent / '3.png'}: is not a picture but a ZIP archive"]
    again = run(*arguments)
    assert "0 pictures extracted, 15 already there, 1 skipped" in again.stdout


def test_settings_reach_the_extractor(dataset: Path, vision: Path, tmp_path: Path) -> None:
    options = ("--input-size", "96", "--levels", "16+32", "--cells", "2", "--no-image-region", "--dtype", "float32")
    run("features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision, *options)
    store = FeatureStore(tmp_path / "store")
    assert store.dtype == "float32"
    assert store["100"].features.shape == (4, 32 + 24)
    assert (store.extractor["input_size"], store.extractor["levels"]) == (96, [16, 32])


def test_another_extractor_cannot_continue_a_store(dataset: Path, vision: Path, tmp_path: Path) -> None:
    run("features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision, "--split", "val")
    with pytest.raises(FeatureError, match="was made with extractor"):
        run("features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision, "--input-size", "96")


def test_limits_are_options(dataset: Path, vision: Path, tmp_path: Path) -> None:
    result = run(
        "features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision, "--max-megapixels", "0.001"
    )
    assert result.exit_code == 3
    assert result.stderr.count("claims 50×40 pixels, more than the limit of 1,000 pixels") == 16


def test_a_detector_from_an_onnx_file(dataset: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    # Features: the mean colour of the whole picture, `[1, 3]`; boxes: 8 by 4 pixels of an input of 16 by 16.
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["features"], axes=[2, 3], keepdims=0),
        helper.make_node("Identity", ["box"], ["boxes"]),
    ]
    image = helper.make_tensor_value_info("image", kind, [1, 3, "h", "w"])
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in ("boxes", "features")]
    box = onnx.numpy_helper.from_array(np.array([[0, 0, 8, 4]], dtype=np.float32), "box")
    graph = helper.make_graph(nodes, "detector", [image], outputs, [box])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), tmp_path / "d.onnx")
    options = ("--onnx", tmp_path / "d.onnx", "--onnx-pixels", "--input-size", "16")
    assert run("features", "extract", dataset, "-o", tmp_path / "store", *options).exit_code == 0
    store = FeatureStore(tmp_path / "store")
    assert store["100"].boxes.tolist() == [[0, 0, 0.5, 0.25]]
    assert store["100"].features.shape == (1, 3)


@pytest.mark.parametrize(("option", "value"), [("--levels", "many"), ("--dtype", "int4"), ("--batch", "0")])
def test_wrong_options_are_usage_errors(dataset: Path, tmp_path: Path, option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["features", "extract", str(dataset), "-o", str(tmp_path / "s"), option, value])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "options",
    [
        *(f"--detector d {option}" for option in ("--input-size 64", "--cells 2", "--levels 16", "--no-image-region")),
        *(f"--detector d {option}" for option in ("--network efficientnet-lite0", "--onnx-pixels")),
        *(f"--onnx d {option}" for option in ("--vision v", "--cells 2", "--levels 16", "--image-region")),
        "--onnx d --network efficientnet-lite2",
        "--vision v --network efficientnet-lite0",
        "--vision v --onnx-pixels",
        "--onnx-pixels",
        "--number-ids",
    ],
)
def test_options_without_effect_are_usage_errors(dataset: Path, tmp_path: Path, options: str) -> None:
    command = ["features", "extract", str(dataset), "-o", str(tmp_path / "s"), *options.split()]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "has no effect" in " ".join(result.stderr.replace("│", " ").split())


def test_a_folder_of_pictures_for_no_dataset_is_a_usage_error(dataset: Path, tmp_path: Path) -> None:
    options = ("-o", tmp_path / "s", "--pictures", tmp_path)
    result = run("features", "extract", dataset.parent, *options)
    assert result.exit_code == 2
    assert "has no effect without a dataset" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_a_name_that_is_no_text_is_listed_and_the_others_are_extracted(
    dataset: Path, vision: Path, tmp_path: Path
) -> None:
    odd = os.fsdecode(bytes(dataset.parent) + b"/\xff.png")
    shutil.copy(dataset.parent / "0.png", odd)
    options = ("-o", tmp_path / "store", "--vision", vision, "--bad-list", tmp_path / "bad.txt")
    result = run("features", "extract", dataset.parent, *options)
    assert result.exit_code == 3
    assert "16 pictures extracted, 0 already there, 1 skipped" in result.stdout
    assert "\\udcff.png: its name is not Unicode text" in (tmp_path / "bad.txt").read_text()


def test_a_term_signal_saves_what_was_extracted(
    dataset: Path, vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract, calls = GridExtractor.extract, []

    def stopped_in_the_second_batch(self: GridExtractor, images: Any) -> Any:
        calls.append(len(images))
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return extract(self, images)

    monkeypatch.setattr(GridExtractor, "extract", stopped_in_the_second_batch)
    before = signal.getsignal(signal.SIGTERM)
    result = run("features", "extract", dataset, "-o", tmp_path / "store", "--vision", vision, "--batch", "4")
    assert result.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(FeatureStore(tmp_path / "store")) == 4


def test_a_folder_without_pictures(tmp_path: Path, vision: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no pictures found in"):
        run("features", "extract", tmp_path / "empty", "-o", tmp_path / "store", "--vision", vision)


TINY_RUN = ("--network", "tiny", "--input-size", "64", "--test-size", "64", "--words", "3", "--batch", "4")


def test_adapt_leaves_a_network_that_extract_reads(
    dataset: Path, vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EfficientNetLite(SPECS["tiny"])
    monkeypatch.setattr(efficientnet, "load_imagenet", lambda name: (made, None))
    options = (*TINY_RUN, "--epochs", "1")
    result = run("adapt", dataset, "-o", tmp_path / "run", *options)
    assert result.exit_code == 0
    assert "starting: 12 pictures, 3 steps, 3 words" in result.stderr
    assert "val_map" in result.stderr
    adapted = tmp_path / "run" / "vision.safetensors"
    assert result.stdout.strip() == str(adapted)
    assert run("features", "extract", dataset, "-o", tmp_path / "store", "--vision", adapted).exit_code == 0
    again = run("adapt", dataset, "-o", tmp_path / "run", *options)
    assert "continuing after step 3" in again.stderr


def test_a_term_signal_makes_adapt_save_and_end(
    dataset: Path, vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EfficientNetLite(SPECS["tiny"])
    monkeypatch.setattr(efficientnet, "load_imagenet", lambda name: (made, None))
    monkeypatch.setattr("xlan.cli.single_run._show", lambda record: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    options = (*TINY_RUN, "--epochs", "2")
    result = CliRunner().invoke(app, ["adapt", str(dataset), "-o", str(tmp_path / "run"), *options])
    assert result.exit_code != 0
    assert signal.getsignal(signal.SIGTERM) is before
    with safe_open(tmp_path / "run" / "checkpoint.safetensors", framework="pt") as file:
        assert file.metadata()["step"] == "3"  # the end of the first epoch, where the first line is shown


def test_adapt_takes_a_table_of_captions(
    dataset: Path, vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EfficientNetLite(SPECS["tiny"])
    monkeypatch.setattr(efficientnet, "load_imagenet", lambda name: (made, None))
    images = json.loads(dataset.read_text())["images"]
    rows = [(image["filename"], line["raw"], image["split"]) for image in images for line in image["sentences"]]
    table = dataset.with_name("captions.csv")
    table.write_text("".join(",".join(row) + "\n" for row in [("file", "caption", "split"), *rows]))
    (dataset.parent / "0.png").unlink()
    result = run("adapt", table, "-o", tmp_path / "run", *TINY_RUN, "--epochs", "1")
    assert "1 image without a picture beside the captions; skipped" in result.stderr
    assert "starting: 11 pictures, 2 steps, 3 words" in result.stderr


def test_adapt_needs_both_splits(dataset: Path, tmp_path: Path) -> None:
    value = json.loads(dataset.read_text())
    value["images"] = [image for image in value["images"] if image["split"] == "train"]
    dataset.write_text(json.dumps(value))
    with pytest.raises(DataError, match="needs pictures of the splits train and val, has 12 and 0"):
        run("adapt", dataset, "-o", tmp_path / "run")
