"""Pictures for pages, found by the names that captions use."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from xlan.cli.named_pictures import find_thumbnails
from xlan.errors import DataError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "val").mkdir()
    for name in ("val/COCO_val2014_000000000042.jpg", "b.png", "7.webp"):
        Image.new("RGB", (30, 20), "red").save(tmp_path / name)
    (tmp_path / "c.jpg").write_bytes(b"no picture")
    (tmp_path / "7.txt").write_text("a caption")
    return tmp_path


def test_pictures_are_found_by_number_by_name_and_by_the_name_of_the_references(photos: Path) -> None:
    notes: list[str] = []
    names = {42: [], "7": [], "x": ["elsewhere/b.jpg"]}
    found = find_thumbnails(photos, names, note=notes.append)
    assert set(found) == set(names)
    assert all(address.startswith("data:image/jpeg;base64,") for address in found.values())
    assert notes == []


def test_missing_and_broken_pictures_are_one_note(photos: Path) -> None:
    notes: list[str] = []
    assert find_thumbnails(photos, {"c": [], 9: [], 42: []}, note=notes.append).keys() == {42}
    assert notes == [f"{photos}: no usable picture for 2 images of 3"]


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder of pictures"):
        find_thumbnails(tmp_path / "none", {1: []}, note=print)
