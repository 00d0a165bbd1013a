"""`xlan features`: import, info and verify, as a user sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from xlan.cli.features import app
from xlan.errors import FeatureError
from xlan.types import Regions
from xlan.vision.store import FeatureStore, FeatureStoreWriter


def run(*arguments: Any, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "npz"
    folder.mkdir()
    for i in range(3):
        np.savez(folder / f"{i}.npz", feat=np.full((60, 4), i, np.float32))
    return folder


def test_import(source: Path, tmp_path: Path) -> None:
    text = run("import", source, "-o", tmp_path / "store", "--max-regions", 50, "--dtype", "float32")
    assert f"imported    3 images into {tmp_path / 'store'} (npz folder)" in text
    assert "boxes       3 images have no usable ones" in text
    store = FeatureStore(tmp_path / "store")
    assert store.dtype == "float32"
    assert store["2"].features.shape == (50, 4)


def test_import_goes_on(source: Path, tmp_path: Path) -> None:
    run("import", source, "-o", tmp_path / "store")
    assert "kept        3 images that were already in the store" in run("import", source, "-o", tmp_path / "store")


def test_import_with_bad_entries_is_status_3_and_on_record(source: Path, tmp_path: Path) -> None:
    (source / "bad.npz").write_bytes(b"x")
    text = run("import", source, "-o", tmp_path / "store", status=3)
    assert f"left out    1 entries, all listed in {tmp_path / 'store' / 'import-report.json'}" in text
    assert "bad.npz: not a valid .npz file" in text
    assert "bad.npz" in (tmp_path / "store" / "import-report.json").read_text()


def test_import_names_captioned_images_without_features(source: Path, tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("file,caption\n0.jpg,A dog\n9.jpg,A cat\n")
    text = run("import", source, "-o", tmp_path / "store", "--captions", tmp_path / "captions.csv", status=3)
    assert "without     1 images with captions have no features: 9" in text


def test_info(source: Path, tmp_path: Path) -> None:
    run("import", source, "-o", tmp_path / "store")
    text = run("info", tmp_path / "store")
    assert "images      3\n" in text
    assert "regions     180 (60.0 an image)" in text
    assert "features    float16, 4 wide" in text
    assert "complete    yes" in text
    assert '"form": "npz folder"' in text


def test_verify_finds_a_changed_byte(source: Path, tmp_path: Path) -> None:
    run("import", source, "-o", tmp_path / "store")
    assert "3 images in 1 shards, all intact" in run("verify", tmp_path / "store")
    shard = tmp_path / "store" / "features-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(FeatureError, match="1 of 1 shards are damaged"):
        run("verify", tmp_path / "store")


def test_verify_says_when_the_writer_was_interrupted(tmp_path: Path) -> None:
    writer = FeatureStoreWriter(tmp_path / "store")
    writer.add("a", Regions(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32)))
    writer.flush()
    with pytest.raises(FeatureError, match=r"incomplete \(1 images so far are whole\): its writer was interrupted"):
        run("verify", tmp_path / "store")
    assert "complete    no" in run("info", tmp_path / "store")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "nowhere"], "error: nowhere: not a feature store (no such folder); make one with"),
        (["import", "nowhere", "-o", "out"], "error: nowhere: no such file or folder"),
        (["import", "npz", "-o", "npz"], "error: npz: expected an empty folder or a feature store, but it holds"),
        (["import", "npz", "-o", "file/out"], "error: file/out: cannot be written: Not a directory"),
        (["import", "npz", "-o", "out", "--format", "hdf5"], "not a valid HDF5 file"),
    ],
)
def test_bad_input_gives_one_line_and_status_1(
    source: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    error_of: Callable[..., str],
) -> None:
    (source.parent / "file").touch()
    monkeypatch.chdir(source.parent)
    assert message in error_of("features", *arguments)
