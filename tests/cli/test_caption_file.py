"""The file that only grows: whole lines, torn ends, other people's files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.cli.caption_file import CaptionFile, as_json, coco_ids
from xlan.errors import DataError
from xlan.types import Caption, Word

DOG = Caption("a dog", -1.5, 0.47, (Word("a", 0.9), Word("dog", 0.25)), others=(Caption("a cat", -2.0, 0.3, ()),))
NAMES = ["a.jpg", 'we"ird, name.png', "new\nline.png", "bytes\udcff.png", "ünï.png"]


def fill(path: Path, names: list[str], *, samples: int = 0) -> None:
    with CaptionFile(path, samples=samples) as file:
        for name in names:
            file.add(name, DOG)


@pytest.fixture(params=[".jsonl", ".csv"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / "new" / f"out{request.param}"


def test_a_second_run_knows_what_the_first_wrote(path: Path) -> None:
    fill(path, NAMES[:3])
    with CaptionFile(path) as file:
        assert set(file.done) == set(NAMES[:3])
        file.add(NAMES[3], DOG)
        file.add(NAMES[4], DOG)
    assert set(CaptionFile(path).done) == set(NAMES)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_cut_anywhere_it_goes_on(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject) -> None:
    """Whatever byte the file ends at: no line is lost before it, and the finished file is as if nothing happened."""
    path = tmp_path_factory.mktemp("cut") / f"out{suffix}"
    fill(path, NAMES)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    with CaptionFile(path) as file:
        for name in NAMES:
            if name not in file.done:
                file.add(name, DOG)
    assert path.read_bytes() == whole


def test_zeros_after_a_power_failure_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    fill(path, ["a.jpg"])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"image": "b.j' + bytes(500))
    with CaptionFile(path) as file:
        assert file.done == {"a.jpg": "a dog"}
    assert path.read_bytes() == whole


def test_lines_are_there_before_the_file_is_closed(path: Path) -> None:
    with CaptionFile(path) as file:
        file.add("a.jpg", DOG)
        assert b"a dog" in path.read_bytes()


def test_a_line_of_json(tmp_path: Path) -> None:
    record = json.loads(as_json("é.jpg", DOG))
    unknown = {"confidence": None, "runners_up": [], "spatial": None, "channel": None, "looked_at": None}
    assert record == {
        "image": "é.jpg",
        "version": 1,
        "caption": "a dog",
        "confidence": 0.47,
        "score": -1.5,
        "words": [{"text": "a", "probability": 0.9, **unknown}, {"text": "dog", "probability": 0.25, **unknown}],
        "others": [{"caption": "a cat", "confidence": 0.3, "score": -2.0}],
        "boxes": None,
        "things": [],
    }
    assert "é.jpg" in as_json("é.jpg", DOG)


def test_csv_has_a_column_for_every_sample(tmp_path: Path) -> None:
    fill(tmp_path / "one.csv", ["a.jpg"])
    fill(tmp_path / "two.csv", ["a.jpg"], samples=2)
    with (tmp_path / "one.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["image", "caption", "confidence", "score"],
            ["a.jpg", "a dog", "0.470000", "-1.500000"],
        ]
    with (tmp_path / "two.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["caption_2"] == "a cat"
    with pytest.raises(
        DataError,
        match="expected the columns image,caption,confidence,score, got",
    ):
        CaptionFile(tmp_path / "two.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", None, "expected a file name that ends in .jsonl or .csv"),
        (
            "x.jsonl",
            "[1]\n[2]\n",
            "line 1 was not written by xlan caption: expected an object with 'image'",
        ),
        ("x.jsonl", '{"image": "a", "caption": "b"}\nhello\n{}\n', "line 2 was not written by xlan caption"),
        ("x.jsonl", '{"mine": 1}', "line 1 was not written by xlan caption"),
        ("x.jsonl", '{"image": "a", "caption": "b"}\nhello\n', "line 2 was not written by xlan caption"),
        (
            "x.csv",
            "image,caption,confidence,score\na,b\n",
            "line 2 was not written by xlan caption: expected 4",
        ),
        ("x.csv", "a,b\n1,2\n", "line 1 was not written by xlan caption: expected the columns"),
        ("x.csv", "a,b", "line 1 was not written by xlan caption: expected the columns"),
        (
            "x.csv",
            "image,caption,confidence,score\na,b,c,d\ne,f,1,2\n",
            "line 2 was not written by xlan caption: could not convert",
        ),
        ("x.jsonl", "x" * (5 << 20), "has a line of more than 4,194,304 bytes"),
    ],
)
def test_files_of_others_are_refused_and_left_alone(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        CaptionFile(tmp_path / name)
    assert message in str(caught.value)
    if content is not None:
        assert (tmp_path / name).read_text() == content


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(DataError, match=r"x\.csv: cannot be written: Is a directory"):
        CaptionFile(tmp_path / "x.csv")


def test_two_writers_do_not_mix(path: Path) -> None:
    pytest.importorskip("fcntl")
    with CaptionFile(path), pytest.raises(DataError, match="another process is writing to this file"):
        CaptionFile(path)


def test_a_full_disk_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with CaptionFile(path) as file:
        monkeypatch.setattr("os.write", full)
        with pytest.raises(DataError, match="cannot be written: No space left on device"):
            file.add("a.jpg", DOG)
        monkeypatch.undo()


def test_a_header_alone_is_no_beginning(tmp_path: Path) -> None:
    """A run that was stopped before its first caption does not rule out other options."""
    path = tmp_path / "out.csv"
    CaptionFile(path, samples=3, made_with={"beams": 3}).close()
    with CaptionFile(path, made_with={"beams": 5}) as file:
        file.add("a.jpg", DOG)
    with pytest.raises(DataError, match="was made with beams 5 and not 3"):
        CaptionFile(path, made_with={"beams": 3})


def test_two_pictures_of_one_folder_that_share_a_coco_id_can_be_told_apart_by_the_user() -> None:
    with pytest.raises(DataError, match=r"a/1\.jpg and a/1\.png have the same image_id 1; rename one, or use two runs"):
        coco_ids(Path("out.json"), ["a/1.jpg", "a/1.png"])
