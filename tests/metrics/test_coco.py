from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlan.errors import DataError
from xlan.metrics.coco import References, coco_number, load_references, load_results, pair, some


def write(folder: Path, value: Any, name: str = "file.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


KARPATHY = {
    "images": [
        {"cocoid": 1, "split": "test", "sentences": [{"raw": "A dog."}, {"raw": "One dog."}]},
        {"cocoid": 2, "split": "train", "sentences": [{"raw": "A cat."}]},
        {"cocoid": 3, "split": "test", "sentences": []},
    ]
}


def test_results_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [{"image_id": 1, "caption": "a"}, {"image_id": "2", "caption": "b"}, {"image_id": "x.jpg", "caption": ""}],
    )
    assert load_results(path) == {1: "a", 2: "b", "x.jpg": ""}


def test_half_of_a_surrogate_pair_becomes_the_replacement_character(tmp_path: Path) -> None:
    path = write(tmp_path, '[{"image_id": 1, "caption": "a \\ud800 dog \\ud83d\\ude00"}]')
    assert load_results(path) == {1: "a \ufffd dog \U0001f600"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[{", "not valid JSON: .* at line 1, column 3"),
        ({"images": []}, "this file holds references: give the results first"),
        ("[" + "9" * 5000 + "]", "not usable as JSON"),
        ('[{"image_id": "\\ud800", "caption": "a"}]', "needs 'image_id' to be a number or a text"),
        ("3", "expected a list of results .* got int"),
        ([], "there are no captions in this file"),
        ([1], "result 1 should be an object, got int"),
        (
            [{"image_id": 1, "caption": "a"}, {"caption": "a"}],
            "result 2 needs 'image_id' to be a number or a text, got None",
        ),
        ([{"image_id": True, "caption": "a"}], "result 1 needs 'image_id' to be a number or a text, got True"),
        ([{"image_id": 7, "caption": None}], r"result 1 \(image 7\) needs 'caption' to be a text, got None"),
        ([{"image_id": 7, "caption": "a"}] * 2, "got several for image 7$"),
        ([{"image_id": i % 9, "caption": "a"} for i in range(18)], "image 0, 1, 2, 3, 4 and 4 more"),
    ],
)
def test_bad_results_are_named(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_results(write(tmp_path, value))


def test_coco_annotations_are_read(tmp_path: Path) -> None:
    annotations = [{"image_id": 5, "caption": "a"}, {"image_id": 5, "caption": "b"}, {"image_id": 6, "caption": "c"}]
    found = load_references(write(tmp_path, {"images": [], "annotations": annotations}))
    assert found.captions == {5: ["a", "b"], 6: ["c"]}
    assert not found.splits


def test_karpathy_files_are_read(tmp_path: Path) -> None:
    found = load_references(write(tmp_path, KARPATHY))
    assert found.captions == {1: ["A dog.", "One dog."], 2: ["A cat."]}
    assert load_references(write(tmp_path, KARPATHY), split="train").captions == {2: ["A cat."]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected COCO annotations or Karpathy's dataset format; this looks like a result file"),
        ({"a": 1}, "expected COCO annotations or Karpathy's dataset format$"),
        ({"annotations": []}, "there are no reference captions"),
        (
            {"annotations": [{"image_id": 1, "caption": 3}]},
            r"annotation 1 \(image 1\) needs 'caption' to be a text, got 3",
        ),
        ({"images": [{"cocoid": 1}]}, "there are no reference captions in this file"),
        ({"images": [KARPATHY["images"][0]] * 2}, r"images\[1\]: image 1 is listed twice"),
        (
            {"images": [{"cocoid": 1, "sentences": [{"tokens": []}]}]},
            "the caption must be text, got NoneType",
        ),
    ],
)
def test_bad_references_are_named(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_references(write(tmp_path, value))


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no split 'val'; they have: test, train"):
        load_references(write(tmp_path, KARPATHY), split="val")


REFERENCES = References({1: ["a"], 2: ["b"], 3: ["c"]}, {1: "test", 2: "test", 3: "train"})


def test_results_are_paired_within_their_split() -> None:
    assert pair({2: "y", 1: "x"}, REFERENCES) == ({1: "x", 2: "y"}, {1: ["a"], 2: ["b"]})


def test_missing_captions_are_named_unless_a_part_is_wanted() -> None:
    with pytest.raises(DataError, match=r"1 of 2 images have no caption: 2; .*--subset"):
        pair({1: "x"}, REFERENCES)
    assert pair({1: "x"}, REFERENCES, subset=True) == ({1: "x"}, {1: ["a"]})


def test_unknown_images_are_named() -> None:
    with pytest.raises(DataError, match="2 of 3 captions are for images without references: 8, 9"):
        pair({1: "x", 9: "y", 8: "z"}, REFERENCES)


def test_some_lists_numbers_before_texts() -> None:
    assert some(["b", 3, 1, "a"]) == "1, 3, a, b"


FLICKR = {
    "images": [
        {"imgid": 0, "filename": "1000.jpg", "split": "train", "sentences": [{"raw": "A dog."}]},
        {"imgid": 1, "filename": "b_2.jpg", "split": "test", "sentences": [{"raw": "A cat."}]},
        {"imgid": 2, "filename": "c_3.jpg", "split": "test", "sentences": [{"raw": "A cow."}]},
    ]
}


@pytest.mark.parametrize("names", [(1, 2), ("b_2", "c_3")])
def test_flickrs_images_go_by_number_or_by_file_name(tmp_path: Path, names: tuple[Any, Any]) -> None:
    results = dict.fromkeys(names, "a cat")
    _, references = pair(results, load_references(write(tmp_path, FLICKR)))
    assert references == {names[0]: ["A cat."], names[1]: ["A cow."]}


def test_file_names_of_digits_mean_numbers_here_too(tmp_path: Path) -> None:
    references = load_references(write(tmp_path, FLICKR), split="train")
    assert pair({1000: "a dog"}, references)[1] == {1000: ["A dog."]}


CAPTIONED = {"train/COCO_val2014_000000000001.jpg": "a dog", "photos/b.png": "a cat"}


def jsonl(captions: dict[str, str]) -> str:
    return "".join(
        json.dumps({"image": name, "caption": text, "score": -1.5}) + "\n" for name, text in captions.items()
    )


def table(captions: dict[str, str]) -> str:
    return "image,caption,confidence\n" + "".join(f'{name},"{text}",0.5\n' for name, text in captions.items())


@pytest.mark.parametrize(("name", "form"), [("c.jsonl", jsonl), ("c.csv", table)])
def test_what_captioning_writes_is_read(tmp_path: Path, name: str, form: Any) -> None:
    assert load_results(write(tmp_path, form(CAPTIONED), name)) == CAPTIONED


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "c.jsonl",
            '{"image": "a", "caption": "b"}\n{"image": "b", "cap',
            "line 2 is not valid JSON; was the run",
        ),
        ("c.jsonl", '{"image": "a", \n{"image": "b", "caption": "c"}\n', r"line 1 is not valid JSON$"),
        ("c.jsonl", "[1]\n", "line 1 should be an object, got list"),
        ("c.jsonl", '{"image": "", "caption": "b"}\n', "line 1 needs 'image_id' to be a number or a text, got None"),
        ("c.jsonl", '{"image": "a", "caption": 3}\n', r"line 1 \(image a\) needs 'caption' to be a text, got 3"),
        ("c.jsonl", "\n", "there are no captions"),
        ("c.csv", "", "expected the columns image .* got nothing"),
        ("c.csv", "file,text\n", "expected the columns image .* got file,text"),
        ("c.csv", "image,caption\na\n", r"line 2 \(image a\) needs 'caption' to be a text, got None"),
        ("c.csv", "image,caption\na,b\na,c\n", "expected one caption for each image, got several for image a"),
        ("none.csv", None, "cannot be read: No such file"),
    ],
)
def test_bad_files_of_captions_are_named(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    path = tmp_path / name if text is None else write(tmp_path, text, name)
    with pytest.raises(DataError, match=message):
        load_results(path)


COCO = {
    "images": [{"id": 1, "file_name": "COCO_val2014_000000000001.jpg"}, {"id": 7, "file_name": "b.jpg"}, 3],
    "annotations": [{"image_id": 1, "caption": "A dog."}, {"image_id": 7, "caption": "A cat."}],
}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 7),
        ("COCO_val2014_000000000001.jpg", "b.jpg"),
        ("photos/COCO_val2014_000000000001.png", "photos/deep/b.webp"),
        ("C:\\photos\\COCO_val2014_000000000001.jpg", "b"),
        ("000000000001.jpg", "COCO_train2014_000000000007.jpg"),
    ],
)
def test_pictures_find_their_references(tmp_path: Path, first: Any, second: Any) -> None:
    captions, references = pair({second: "a cat", first: "a dog"}, load_references(write(tmp_path, COCO)))
    assert list(captions.items()) == [(first, "a dog"), (second, "a cat")]
    assert references == {first: ["A dog."], second: ["A cat."]}


def test_a_number_in_a_name_is_no_image_where_others_go_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of 2 captions .*: 000000000001.jpg; images are matched by"):
        pair({"000000000001.jpg": "a dog", "b.jpg": "a cat"}, load_references(write(tmp_path, COCO)))


def test_a_name_that_two_images_share_matches_neither() -> None:
    references = References({1: ["a"], 2: ["b"]}, files={1: "x/a.jpg", 2: "y/a.jpg"})
    assert references.ids_of(["a.jpg", "y/a.png"]) == {"y/a.png": 2}


def test_two_pictures_of_one_image_are_refused() -> None:
    with pytest.raises(DataError, match=r"x/a.jpg and y/a.jpg are both image 1 of the references"):
        References({1: ["a"]}, files={1: "a.jpg"}).ids_of(["x/a.jpg", "y/a.jpg"])


@given(number=st.integers(0, 10**12 - 1), folder=st.sampled_from(["", "val2014/", "a/b/"]))
def test_coco_numbers_come_back(number: int, folder: str) -> None:
    assert coco_number(f"{folder}COCO_val2014_{number:012d}.jpg") == number
    assert coco_number(f"{folder}IMG{number}.jpg") is None
