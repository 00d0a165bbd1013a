"""Where pictures come from, honest and hostile."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlan.errors import DataError, ImageError
from xlan.vision.image import ImageLimits, open_image
from xlan.vision.sources import Picture, find_pictures, karpathy_pictures, tar_members


def make_tar(path: Path, members: dict[str, bytes], *, mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def make_dataset(path: Path, images: list[Any]) -> Path:
    path.write_text(json.dumps({"dataset": "test", "images": images}))
    return path


def test_a_folder_is_searched_to_the_bottom(folder: Path) -> None:
    pictures = find_pictures([folder])
    assert [picture.id for picture in pictures] == ["a0", "a1", "a2", "a3", "a4", "broken", "more/b"]


def test_single_files_need_no_known_suffix(folder: Path) -> None:
    (picture,) = find_pictures([folder / "notes.txt"])
    assert (picture.id, picture.read()) == ("notes", b"no picture")


def test_a_tar_is_read_in_place(tmp_path: Path, draw: Callable[..., bytes]) -> None:
    members = {f"x/{i}.png": draw(i) for i in range(3)} | {"readme.txt": b"hello"}
    make_tar(tmp_path / "a.tar", members)
    pictures = find_pictures([tmp_path / "a.tar"])
    assert [picture.id for picture in pictures] == ["x/0", "x/1", "x/2"]
    assert [picture.read() for picture in pictures] == [members[f"x/{i}.png"] for i in range(3)]
    assert pictures[0].name == f"{tmp_path / 'a.tar'}:x/0.png"


def test_number_ids(tmp_path: Path, draw: Callable[..., bytes]) -> None:
    (tmp_path / "COCO_val2014_000000391895.png").write_bytes(draw())
    assert find_pictures([tmp_path], number_ids=True)[0].id == "391895"
    (tmp_path / "cat.png").write_bytes(draw())
    with pytest.raises(DataError, match=r"cat\.png: has no number at the end of its name"):
        find_pictures([tmp_path], number_ids=True)


def test_the_same_id_twice_is_refused(tmp_path: Path, draw: Callable[..., bytes]) -> None:
    (tmp_path / "a.png").write_bytes(draw())
    (tmp_path / "a.jpg").write_bytes(draw())
    with pytest.raises(DataError, match="two pictures would get the id 'a'"):
        find_pictures([tmp_path])


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: no such file or folder"):
        find_pictures([tmp_path / "gone"])


def test_a_table_of_captions_is_not_taken_for_a_picture(tmp_path: Path) -> None:
    table = tmp_path / "captions.csv"
    table.write_text("image,caption\n1.jpg,a dog\n")
    with pytest.raises(DataError, match=r"captions\.csv: is a table, not a picture; expected the folder"):
        find_pictures([table])


def test_names_in_a_tar_lead_nowhere(tmp_path: Path, draw: Callable[..., bytes]) -> None:
    outside = tmp_path / "outside.png"
    path = tmp_path / "in" / "evil.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as archive:
        for name in ("../outside.png", "/outside2.png"):
            info = tarfile.TarInfo(name)
            info.size = len(draw())
            archive.addfile(info, io.BytesIO(draw()))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        device = tarfile.TarInfo("device.png")
        device.type = tarfile.CHRTYPE
        archive.addfile(device)
    pictures = find_pictures([path])
    assert len(pictures) == 2  # links and devices are no pictures
    assert all(open_image(picture.read()).size == (80, 60) for picture in pictures)
    assert not outside.exists()


def test_a_member_larger_than_its_tar_is_refused(tmp_path: Path, draw: Callable[..., bytes]) -> None:
    make_tar(tmp_path / "a.tar", {"a.png": draw(0), "b.png": draw(1)})
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:700])
    with pytest.raises(DataError, match=r"cut\.tar: is (truncated inside 'a\.png'; copy it again|not a readable)"):
        tar_members(tmp_path / "cut.tar")


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2"])
def test_compressed_tars_are_refused(tmp_path: Path, mode: str) -> None:
    make_tar(tmp_path / "a.tar", {"a.png": b"x" * 1000}, mode=mode)
    with pytest.raises(DataError, match="is not a readable, uncompressed tar file"):
        tar_members(tmp_path / "a.tar")


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "big.png").write_bytes(b"x" * 1000)
    (picture,) = find_pictures([tmp_path])
    assert len(picture.read(ImageLimits(max_bytes=10))) == 11
    make_tar(tmp_path / "a.tar", {"big.png": b"x" * 1000})
    (picture,) = find_pictures([tmp_path / "a.tar"])
    assert len(picture.read(ImageLimits(max_bytes=10))) == 11


def test_a_vanished_picture(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"^gone: no such file$"):
        Picture("1", "gone", tmp_path / "gone.jpg").read()


def test_karpathy_names_files_and_shards(tmp_path: Path, draw: Callable[..., bytes]) -> None:
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "a.png").write_bytes(draw(0))
    (tmp_path / "b.png").write_bytes(draw(1))
    make_tar(tmp_path / "s.tar", {"c.png": draw(2)})
    sentences = [{"raw": "A cat."}, {"tokens": ["x"]}, {"raw": "A dog."}]
    path = make_dataset(
        tmp_path / "d.json",
        [
            {"filename": "a.png", "filepath": "val", "cocoid": 7, "split": "val", "sentences": sentences},
            {"filename": "b.png", "filepath": "elsewhere", "imgid": 8},
            {"filename": "c.png", "shard": "s.tar", "split": "train"},
        ],
    )
    pictures = karpathy_pictures(path)
    assert [(picture.id, picture.split) for picture in pictures] == [("7", "val"), ("b", ""), ("c", "train")]
    assert pictures[0].captions == ("A cat.", "A dog.")
    assert [picture.read() for picture in pictures] == [draw(0), draw(1), draw(2)]
    assert [picture.id for picture in karpathy_pictures(path, splits=["train"])] == ["c"]
    assert find_pictures([path]) == pictures


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([{"cocoid": 1}], r"images\[0\] has no 'filename'"),
        ([{"filename": "a.png", "sentences": 3}], r"images\[0\]: has 'sentences' that are not a list"),
        ([{"filename": "../../etc/passwd"}], "leads out of the dataset's folder"),
        ([{"filename": "/etc/passwd"}], "leads out of the dataset's folder"),
        ([{"filename": "a.png", "filepath": "../x"}], "leads out of the dataset's folder"),
        ([{"filename": "a.png", "shard": "../x.tar"}], "leads out of the dataset's folder"),
        ([{"filename": "a.png", "shard": "x.tar"}], r"lies in shard 'x\.tar', but .* does not exist"),
        ([{"filename": "a.png", "shard": "s.tar"}], "which has no such member"),
    ],
)
def test_karpathy_files_that_cannot_be_used(tmp_path: Path, images: list[Any], message: str) -> None:
    make_tar(tmp_path / "s.tar", {})
    with pytest.raises(DataError, match=message):
        karpathy_pictures(make_dataset(tmp_path / "d.json", images))


def test_restval_is_training_data(tmp_path: Path) -> None:
    images = [{"filename": f"{name}.png", "split": name} for name in ("train", "restval", "val")]
    path = make_dataset(tmp_path / "d.json", images)
    assert [picture.id for picture in karpathy_pictures(path, splits=["train"])] == ["train", "restval"]
    assert {picture.split for picture in karpathy_pictures(path)} == {"train", "val"}


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed_dataset_files(tmp_path: Path, pack: Callable[[bytes], bytes], draw: Callable[..., bytes]) -> None:
    (tmp_path / "a.png").write_bytes(draw())
    suffix = "gz" if pack is gzip.compress else "xz"
    path = tmp_path / f"dataset.json.{suffix}"
    path.write_bytes(pack(json.dumps({"images": [{"filename": "a.png", "cocoid": 7}]}).encode()))
    assert [(picture.id, picture.read()) for picture in find_pictures([path])] == [("7", draw())]


COCO = {
    "filename": "COCO_val2014_000000000042.jpg",
    "filepath": "val2014",
    "cocoid": 42,
    "split": "val",
    "picture": True,
}


@pytest.mark.parametrize("name", ["val2014/COCO_val2014_000000000042.jpg", "x/000000000042.jpg", "42.png"])
def test_pictures_in_a_folder_are_found_by_name_or_number(tmp_path: Path, name: str) -> None:
    path = tmp_path / "photos" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"42")
    images = [COCO, {"filename": "b.jpg", "cocoid": 43, "shard": "gone.tar"}]
    missing: list[str] = []
    dataset = make_dataset(tmp_path / "d.json", images)
    pictures = find_pictures([dataset], folder=tmp_path / "photos", on_missing=missing.append)
    assert [(picture.id, picture.path, picture.split) for picture in pictures] == [("42", path, "val")]
    assert missing == ["43"]


def test_two_pictures_that_could_be_meant_are_named(tmp_path: Path) -> None:
    for name in ("a/000000000042.jpg", "b/000000000042.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"42")
    dataset = make_dataset(tmp_path / "d.json", [COCO])
    with pytest.raises(DataError, match=r"image 42 could be .*a/000000000042\.jpg or .*b/000000000042\.jpg"):
        karpathy_pictures(dataset, folder=tmp_path)


def test_an_exact_path_settles_which_picture_is_meant(tmp_path: Path) -> None:
    for folder in ("train2014", "val2014"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / COCO["filename"]).write_bytes(b"42")
    dataset = make_dataset(tmp_path / "d.json", [COCO])
    (picture,) = karpathy_pictures(dataset, folder=tmp_path)
    assert picture.path == tmp_path / "val2014" / COCO["filename"]


def test_what_cannot_be_read_is_found_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "phone.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(20))
    pictures = find_pictures([tmp_path])
    assert [picture.id for picture in pictures] == ["dangling", "phone", "pipe"]
    with pytest.raises(ImageError, match=r"dangling\.jpg: no such file \(a dangling link\)"):
        pictures[0].read()
    with pytest.raises(ImageError, match=r"pipe\.png: cannot be read: it is a pipe, a socket or a device"):
        pictures[2].read()


def test_other_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text("[]")
    with pytest.raises(DataError, match="expected Karpathy's format"):
        karpathy_pictures(path)
