"""`xlan data`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xlan.cli.data import app
from xlan.data.captions import load_captions
from xlan.data.shapes import make_shapes, write_shapes
from xlan.errors import DataError
from xlan.text.vocab import Vocabulary


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    write_shapes(tmp_path / "shapes", 40, pictures=True)
    return tmp_path / "shapes"


def test_inspect_says_what_is_there(shapes: Path) -> None:
    text = run("inspect", shapes)
    assert "images      40\n" in text
    assert "captions    200 (captions per image: 5 on 40)" in text
    assert "train            30       150" in text
    assert "pictures    none missing" in text
    assert "left out    0 entries" in text


def test_inspect_as_json_counts_words_at_thresholds(shapes: Path) -> None:
    summary = json.loads(run("inspect", shapes, "--json", "--features", shapes / "features"))
    captions, _ = make_shapes(40)
    for entry in summary["vocabulary"]:
        if entry["words"]:
            assert entry["words"] == len(Vocabulary.build(captions.words("train"), threshold=entry["threshold"])) - 4
    assert summary["vocabulary"][0]["coverage"] == 1
    assert summary["missing_features"] == []


def test_inspect_names_missing_pictures_and_features(shapes: Path, tmp_path: Path) -> None:
    (shapes / "shapes-000003.png").unlink()
    write_shapes(tmp_path / "few", 39)
    text = run("inspect", shapes, "--features", tmp_path / "few" / "features")
    assert "pictures    1 of 40 missing: shapes-000003" in text
    assert "features    1 of 40 missing: shapes-000039" in text


def test_inspect_without_pictures_says_how_to_name_them(tmp_path: Path) -> None:
    write_shapes(tmp_path, 8)
    assert "pictures    not looked for: name their folder with --images" in run("inspect", tmp_path)
    (tmp_path / "pictures").mkdir()
    assert "pictures    8 of 8 missing" in run("inspect", tmp_path, "--images", tmp_path / "pictures")


def test_pictures_in_tar_files_are_found(tmp_path: Path) -> None:
    images = [
        {"cocoid": n, "filename": f"{n:012d}.webp", "shard": "a.tar", "split": "train", "sentences": [{"raw": "A dog"}]}
        for n in (1, 2, 3)
    ]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("000000000001.webp", "2.webp"):
            archive.addfile(tarfile.TarInfo(name))
    # The second is named after its number alone.
    assert "pictures    2 of 3 missing: 2, 3" in run("inspect", tmp_path)


def test_inspect_shows_what_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("file,caption\na.jpg,A dog\nb.jpg,...\n")
    text = run("inspect", tmp_path)
    assert "left out    2 entries of the file" in text
    assert "row 3: the caption has no words" in text


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("file,caption\na\x1b[31m.jpg,A dog\n")
    (tmp_path / "pictures").mkdir()
    text = run("inspect", tmp_path, "--images", tmp_path / "pictures")
    assert "\x1b" not in text
    assert "missing: a\\x1b[31m" in text


def test_pictures_in_a_folder_of_their_own_are_found(tmp_path: Path) -> None:
    write_shapes(tmp_path, 8, pictures=True)
    (tmp_path / "images").mkdir()
    for path in tmp_path.glob("*.png"):
        path.rename(tmp_path / "images" / path.name)
    assert "pictures    none missing" in run("inspect", tmp_path)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    assert "pictures    none missing" in run("inspect", tmp_path, "--images", tmp_path)


def test_split_lists(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("file,caption\na.jpg,A dog\nb.jpg,A cat\n")
    (tmp_path / "val.ids").write_text("b.jpg\n")
    (tmp_path / "train.ids").write_text("a.jpg\n")
    lists = ("--split-list", f"train={tmp_path / 'train.ids'}", "--split-list", f"val={tmp_path / 'val.ids'}")
    assert {"train", "val"} == set(json.loads(run("inspect", tmp_path, *lists, "--json"))["splits"])


def test_vocab_is_written(shapes: Path, tmp_path: Path) -> None:
    text = run("vocab", shapes, "-o", tmp_path / "vocab.json", "--threshold", 2)
    vocab = Vocabulary.load(tmp_path / "vocab.json")
    assert vocab.words[4] == "a"
    assert f"{len(vocab)} entries ({len(vocab) - 4} words and pad, bos, eos, unk)" in text


def test_split_writes_what_can_be_read(tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,A dog\n" for i in range(200))
    (tmp_path / "captions.csv").write_text("file,caption\n" + rows)
    text = run("split", tmp_path / "captions.csv", "-o", tmp_path / "out.jsonl", "--val", 0.2, "--test", 0.1)
    splits = load_captions(tmp_path / "out.jsonl").splits
    assert set(splits) == {"train", "val", "test"}
    assert "out.jsonl: train 140, val 40, test 20" in text


def test_split_replaces_nothing_unasked(tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,A dog\n" for i in range(100))
    (tmp_path / "captions.csv").write_text("file,caption\n" + rows)
    out = tmp_path / "out.jsonl"
    assert "train 85, val 10, test 5" in run("split", tmp_path / "captions.csv", "-o", out, "--val", 0.1)
    with pytest.raises(DataError, match=r"out\.jsonl: already exists; choose another name or use --overwrite"):
        run("split", tmp_path / "captions.csv", "-o", out)
    with pytest.raises(DataError, match=r"already has splits \(train 85, val 10, test 5\); --overwrite gives"):
        run("split", out, "-o", tmp_path / "again.jsonl")
    (tmp_path / "captions.csv").write_text("file,caption\n" + rows + "x.jpg,A dog\n")
    run("split", tmp_path / "captions.csv", "-o", tmp_path / "more.jsonl", "--keep", out)
    old = {image.id: image.split for image in load_captions(out)}
    new = {image.id: image.split for image in load_captions(tmp_path / "more.jsonl")}
    assert old == {name: split for name, split in new.items() if name != "x"}


def test_shapes_are_written(tmp_path: Path) -> None:
    run("shapes", "-o", tmp_path / "s", "--images", 8, "--pictures")
    assert len(list((tmp_path / "s").glob("*.png"))) == 8
    run("shapes", "-o", tmp_path / "s", "--images", 12)  # more of the same
    assert len(load_captions(tmp_path / "s")) == 12


def test_shapes_are_not_drawn_over_captions_of_somebody_else(tmp_path: Path, error_of: Callable[..., str]) -> None:
    mine = tmp_path / "captions.jsonl"
    mine.write_text('{"image": "1.jpg", "caption": "a dog"}\n')
    message = error_of("data", "shapes", "-o", str(tmp_path), "--images", "8")
    assert f"{mine}: already exists and would be lost; choose another folder" in message
    assert mine.read_text() == '{"image": "1.jpg", "caption": "a dog"}\n'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere.json"], "error: nowhere.json: no such file"),
        (["inspect", "."], "error: .: no captions found; looked for dataset*.json"),
        (["vocab", "captions.csv", "-o", "v.json"], "error: no word occurs 6 times or more (the most frequent: 1)"),
        (["vocab", "captions.csv", "-o", "v.json", "--split", "val"], "split 'val' has no images; there are: train"),
        (["vocab", "captions.csv", "-o", "captions.csv/v.json", "--threshold", "1"], "cannot be written"),
        (["inspect", "captions.csv", "--images", "nowhere"], "error: nowhere: no such folder of pictures"),
        (["inspect", "captions.csv", "--split-list", "x"], "error: --split-list takes SPLIT=FILE, got 'x'"),
        (["split", "captions.csv", "-o", "out.jsonl", "--val", "1"], "error: val and test are fractions that leave"),
        (["shapes", "-o", "captions.csv"], "cannot be written"),
        (["shapes", "-o", "s", "--images", "1"], "error: make_shapes needs at least 4 images"),
    ],
)
def test_bad_input_gives_one_line_and_status_1(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    error_of: Callable[..., str],
) -> None:
    if arguments[1] != ".":
        (tmp_path / "captions.csv").write_text("file,caption\na.jpg,A dog\n")
    monkeypatch.chdir(tmp_path)
    assert message in error_of("data", *arguments)
