from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from xlan.errors import DataError
from xlan.metrics import submission
from xlan.metrics.submission import check_archive, write_submission

VAL = [{"image_id": 2, "caption": "a dog"}, {"image_id": 1, "caption": "a cat"}]
TEST = [{"image_id": 7, "caption": "a bus"}]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setattr(submission, "IMAGES", {"val2014": 2, "test2014": 1})
    return {"val2014": write(tmp_path / "v.json", VAL), "test2014": write(tmp_path / "t.json", TEST)}


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_the_real_sets_have_the_size_that_the_server_expects() -> None:
    assert submission.IMAGES == {"val2014": 40_504, "test2014": 40_775}


def test_files_and_zip_have_the_names_and_content_that_the_server_expects(
    files: dict[str, Path], tmp_path: Path
) -> None:
    written = write_submission(files, name="xlan", folder=tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "captions_val2014_xlan_results.json",
        "captions_test2014_xlan_results.json",
        "captions_xlan_results.zip",
    }
    with zipfile.ZipFile(written.archive) as archive:
        assert json.loads(archive.read("captions_val2014_xlan_results.json")) == sorted(
            VAL, key=lambda e: e["image_id"]
        )
        assert json.loads(archive.read("captions_test2014_xlan_results.json")) == TEST
    assert written.captions == {"val2014": 2, "test2014": 1}
    assert written.ids_checked == ()


def test_the_same_captions_give_the_same_zip(files: dict[str, Path], tmp_path: Path) -> None:
    first = write_submission(files, name="xlan", folder=tmp_path / "a").archive.read_bytes()
    assert write_submission(files, name="xlan", folder=tmp_path / "b").archive.read_bytes() == first


def test_ids_are_checked_against_the_lists(files: dict[str, Path], tmp_path: Path) -> None:
    lists = {"val2014": write(tmp_path / "l.json", {"images": [{"id": 1}, {"id": 2}]})}
    assert write_submission(files, name="x", folder=tmp_path, image_lists=lists).ids_checked == ("val2014",)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([{"id": 1}, {"id": 2}, {"id": 3}], "1 images of val2014 have no caption: 3"),
        ([{"id": 1}], "expected images of val2014, got 1 others: 2"),
        ([{"id": "1"}], "expected a COCO file with images that have a number as id"),
    ],
)
def test_ids_that_do_not_match_are_named(
    files: dict[str, Path], tmp_path: Path, images: list[dict[str, Any]], message: str
) -> None:
    lists = {"val2014": write(tmp_path / "l.json", {"images": images})}
    with pytest.raises(DataError, match=message):
        write_submission(files, name="x", folder=tmp_path / "out", image_lists=lists)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("val", "message"),
    [
        (VAL[:1], "val2014 has 2 images, got captions of 1"),
        ([*VAL, VAL[0]], "several for image 2"),
        ([VAL[0], {"image_id": 1, "caption": "  "}], "expected a caption for every image, got 1 empty: image 1"),
        ([VAL[0], {"image_id": "a.jpg", "caption": "a"}], "the server expects image numbers, got a.jpg"),
    ],
)
def test_what_the_server_would_refuse_is_refused(
    files: dict[str, Path], tmp_path: Path, val: list[dict[str, Any]], message: str
) -> None:
    files["val2014"] = write(tmp_path / "v.json", val)
    with pytest.raises(DataError, match=message):
        write_submission(files, name="x", folder=tmp_path / "out")


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 65, ".x"])
def test_names_that_cannot_be_file_names_are_refused(files: dict[str, Path], tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="is used in file names"):
        write_submission(files, name=name, folder=tmp_path / "out")


def test_a_zip_with_something_else_in_it_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    written = write_submission(files, name="x", folder=tmp_path)
    with zipfile.ZipFile(written.archive, "a") as archive:
        archive.writestr("extra.txt", "hello")
    with pytest.raises(DataError, match="expected exactly captions_val2014_x_results"):
        check_archive(written.archive, name="x")


def test_something_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("hello")
    with pytest.raises(DataError, match="cannot be read as a submission"):
        check_archive(tmp_path / "x.zip", name="x")
