"""Captions are read from every form people have; what cannot be read is explained in one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.data import readers
from xlan.data.captions import build_vocabulary, load_captions, write_captions
from xlan.data.records import CaptionedImage, CaptionSet, feature_names
from xlan.errors import DataError
from xlan.karpathy import id_of_file
from xlan.text.vocab import Vocabulary


def put(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def facts(captions: CaptionSet) -> list[tuple[str, str, str, tuple[str, ...]]]:
    return [(image.id, image.split, image.file, image.captions) for image in captions]


KARPATHY = {
    "images": [
        {
            "filepath": "val2014",
            "filename": "COCO_val2014_000000000042.jpg",
            "cocoid": 42,
            "split": "restval",
            "sentences": [{"raw": "A dog. ", "tokens": ["a", "dog"]}, {"raw": "Two  DOGS!"}],
        },
        {"filename": "7.jpg", "split": "val", "sentences": [{"raw": "A cat-nap."}]},
    ]
}
COCO = {
    "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
    "annotations": [{"image_id": 2, "id": 9, "caption": "A cat."}, {"image_id": 1, "id": 8, "caption": "A dog."}],
}
TOKENS = "1000.jpg#0\tA dog runs .\n1000.jpg#1\tA running dog .\n2000.jpg#0\tA cat .\n"


def test_karpathy(tmp_path: Path) -> None:
    captions = load_captions(put(tmp_path / "dataset_coco.json", KARPATHY))
    assert captions.form == "karpathy"
    assert facts(captions) == [
        ("42", "train", "val2014/COCO_val2014_000000000042.jpg", ("A dog.", "Two DOGS!")),
        ("7", "val", "7.jpg", ("A cat-nap.",)),
    ]
    assert captions.images[0].words == (("a", "dog"), ("two", "dogs"))


def test_words_the_file_brings_are_kept_as_they_are(tmp_path: Path) -> None:
    image = {"filename": "1.jpg", "split": "train", "sentences": [{"raw": "a T-shirt", "tokens": ["a", "T-shirt"]}]}
    captions = load_captions(put(tmp_path / "dataset.json", {"images": [image]}))
    assert captions.images[0].words == (("a", "t-shirt"),)


def test_coco_annotations_take_their_split_from_the_file_name(tmp_path: Path) -> None:
    captions = load_captions(put(tmp_path / "captions_val2014.json", COCO))
    assert captions.form == "coco"
    assert facts(captions) == [("1", "val", "1.jpg", ("A dog.",)), ("2", "val", "2.jpg", ("A cat.",))]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("minival2014", "val"),
        ("cocoval", "val"),
        ("annotations-test", "test"),
        ("latest", "train"),
        ("interval", "train"),
    ],
)
def test_a_split_is_a_word_of_the_file_name(tmp_path: Path, name: str, split: str) -> None:
    assert load_captions(put(tmp_path / f"{name}.json", COCO)).splits == {split: 2}


def test_a_folder_of_coco_annotations_is_one_set(tmp_path: Path) -> None:
    put(tmp_path / "captions_train2014.json", COCO)
    other = {"images": [{"id": 3, "file_name": "3.jpg"}], "annotations": [{"image_id": 3, "caption": "A cow."}]}
    put(tmp_path / "captions_val2014.json", other)
    put(tmp_path / "instances_val2014.json", {"images": []})
    assert load_captions(tmp_path).splits == {"train": 2, "val": 1}


def test_one_image_in_two_annotation_files_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "captions_train2014.json", COCO)
    put(tmp_path / "captions_val2014.json", COCO)
    with pytest.raises(DataError, match=r"image 1 is in .*captions_train2014.json too"):
        load_captions(tmp_path)


def test_flickr_tokens_without_lists_are_for_training(tmp_path: Path) -> None:
    captions = load_captions(put(tmp_path / "results_20130124.token", TOKENS))
    assert captions.form == "tokens"
    assert facts(captions) == [
        ("1000", "train", "1000.jpg", ("A dog runs .", "A running dog .")),
        ("2000", "train", "2000.jpg", ("A cat .",)),
    ]


def test_flickr8k_folder_with_its_own_lists(tmp_path: Path) -> None:
    put(tmp_path / "Flickr8k.token.txt", TOKENS + "3000.jpg#0\tA cow .\n3000.jpg#1\tOne cow .\n")
    put(tmp_path / "Flickr8k.lemma.token.txt", TOKENS)
    put(tmp_path / "Flickr_8k.trainImages.txt", "1000.jpg\n")
    put(tmp_path / "Flickr_8k.devImages.txt", "2000.jpg\n")
    captions = load_captions(tmp_path)
    assert captions.splits == {"train": 1, "val": 1}
    assert [entry.reason for entry in captions.skipped] == ["image 3000.jpg is in no split list"] * 2


def test_split_lists_given_by_hand(tmp_path: Path) -> None:
    token = put(tmp_path / "a" / "results.token", TOKENS)
    lists = {"train": put(tmp_path / "t.ids", "2000\n"), "dev": put(tmp_path / "v.ids", "1000.jpg\n")}
    captions = load_captions(token, split_lists=lists)
    assert {image.id: image.split for image in captions} == {"1000": "val", "2000": "train"}


def test_an_image_in_two_lists_is_refused(tmp_path: Path) -> None:
    token = put(tmp_path / "a" / "results.token", TOKENS)
    lists = {"train": put(tmp_path / "t.ids", "1000\n"), "val": put(tmp_path / "v.ids", "1000.jpg\n")}
    with pytest.raises(DataError, match=r"'1000.jpg' is in the list of another split too"):
        load_captions(token, split_lists=lists)


def test_lists_of_other_images_are_refused(tmp_path: Path) -> None:
    token = put(tmp_path / "a" / "results.token", TOKENS)
    with pytest.raises(DataError, match="none of the 1 names in the split lists"):
        load_captions(token, split_lists={"train": put(tmp_path / "t.ids", "77\n")})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.csv", 'file,caption,split\na.jpg,"A dog, running.",train\nb.jpg,A cat.,val\n'),
        ("captions.csv", '\ufefffile;caption;split\r\na.jpg;"A dog, running.";train\r\nb.jpg;A cat.;val\r\n'),
        ("captions.tsv", "image\ttext\tsplit\na.jpg\tA dog, running.\ttrain\nb.jpg\tA cat.\tvalidation\n"),
        ("captions.txt", 'image,caption,split\na.jpg,"A dog, running.",\nb.jpg,A cat.,dev\n'),
        (
            "results.csv",
            "image_name| comment_number| comment|split\na.jpg| 0| A dog, running.|\nb.jpg| 0|A cat.|val\n",
        ),
        (
            "captions.jsonl",
            '{"file": "a.jpg", "caption": "A dog, running."}\n\n'
            '{"file": "b.jpg", "caption": ["A cat."], "split": "val"}\n',
        ),
    ],
)
def test_tables(tmp_path: Path, name: str, content: str) -> None:
    put(tmp_path / name, content)
    captions = load_captions(tmp_path)
    assert captions.form == "table"
    assert facts(captions) == [
        ("a", "train", "a.jpg", ("A dog, running.",)),
        ("b", "val", "b.jpg", ("A cat.",)),
    ]


def test_files_that_would_share_an_id_need_ids(tmp_path: Path) -> None:
    path = put(tmp_path / "captions.csv", "file,caption\na.jpg,A dog\na.png,A cat\n")
    captions = load_captions(path)
    assert [image.file for image in captions] == ["a.jpg"]
    assert "add an 'id' column" in captions.skipped[0].reason
    put(tmp_path / "captions.csv", "id,file,caption\n1,a.jpg,A dog\n2,a.png,A cat\n")
    assert [image.id for image in load_captions(path)] == ["1", "2"]


def test_flickr30ks_table_with_its_broken_row_and_stray_quotes(tmp_path: Path) -> None:
    rows = 'a.jpg| 0| "Stop" signs .\nb.jpg| 4   A dog runs across the grass .\nc.jpg| 0| A 6" plank .\n'
    captions = load_captions(put(tmp_path / "results.csv", "image_name| comment_number| comment\n" + rows))
    assert [image.captions[0] for image in captions] == ['"Stop" signs .', 'A 6" plank .']
    assert [(entry.where, entry.reason) for entry in captions.skipped] == [("row 3", "has no 'comment'")]


def test_a_caption_over_two_lines_in_quotes(tmp_path: Path) -> None:
    path = put(tmp_path / "captions.csv", 'file,caption\na.jpg,"A dog\nruns"\n')
    assert load_captions(path).images[0].captions == ("A dog runs",)


text = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=30)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.tuples(st.integers(0, 4), text), min_size=1, max_size=12))
def test_every_form_gives_the_same_captions(rows: list[tuple[int, str]]) -> None:
    """The same captions written in each form are read back equal, or refused in each."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        table = io.StringIO()
        csv.writer(table).writerows([("file", "caption"), *((f"{i}.jpg", caption) for i, caption in rows)])
        put(root / "csv" / "captions.csv", table.getvalue())
        lines = [json.dumps({"file": f"{i}.jpg", "caption": caption}) for i, caption in rows]
        put(root / "jsonl" / "captions.jsonl", "\n".join(lines))
        ids = dict.fromkeys(i for i, _ in rows)
        images = [{"id": i, "file_name": f"{i}.jpg"} for i in ids]
        annotations = [{"image_id": i, "caption": caption} for i, caption in rows]
        put(root / "coco" / "captions_train.json", {"images": images, "annotations": annotations})
        grouped = [
            {
                "cocoid": i,
                "filename": f"{i}.jpg",
                "split": "train",
                "sentences": [{"raw": c} for j, c in rows if j == i],
            }
            for i in ids
        ]
        put(root / "karpathy" / "dataset.json", {"images": grouped})
        results = set()
        for form in ("csv", "jsonl", "coco", "karpathy"):
            try:
                results.add(tuple(load_captions(root / form).images))
            except DataError as error:
                assert "no captions in it" in str(error)  # noqa: PT017
                results.add(())
        assert len(results) == 1


def test_written_captions_are_read_back_with_their_own_words(tmp_path: Path) -> None:
    image = {"filename": "1.jpg", "split": "train", "sentences": [{"raw": "a T-shirt", "tokens": ["a", "t-shirt"]}]}
    captions = load_captions(put(tmp_path / "dataset.json", {"images": [*KARPATHY["images"], image | {"cocoid": 1}]}))
    write_captions(tmp_path / "captions.jsonl", captions)
    assert load_captions(tmp_path / "captions.jsonl").images == captions.images


BAD = {
    "nothing": ("x.json", None, "no such file"),
    "empty": ("captions.csv", "", "the file is empty, expected captions"),
    "empty jsonl": ("captions.jsonl", "\n", "the file is empty, expected captions"),
    "not json": ("a.json", "{", "not valid JSON"),
    "other json": ("a.json", {"info": 1}, r"expected 'images' with 'sentences' \(Karpathy\) or with 'annotations'"),
    "list": ("a.json", [1, 2], "expected 'images'"),
    "images only": ("a.json", {"images": [{"id": 1}]}, "neither 'annotations' nor 'sentences'"),
    "no captions": (
        "a.json",
        {"images": [{"id": 1}], "annotations": []},
        "no captions in it .coco form, 1 entries left out",
    ),
    "no words": ("captions.csv", "file,caption\na.jpg,...\n", "no captions in it .*row 2: the caption has no words"),
    "no columns": (
        "captions.csv",
        "name,words\na,b\n",
        "expected the columns 'file' and 'caption'.*got 'name', 'words'",
    ),
    "bad line": ("captions.jsonl", '{"file": "a.jpg"\n', "line 1 is not valid JSON"),
    "bad record": ("captions.jsonl", "[1]\n", "line 1 must be an object with 'file' and 'caption'"),
    "deep": ("a.json", "[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_explained(tmp_path: Path, case: str) -> None:
    name, content, message = BAD[case]
    if content is not None:
        put(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as caught:
        load_captions(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_captions_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no captions found; looked for dataset\*.json"):
        load_captions(tmp_path)


def test_two_candidates_in_a_folder_are_not_guessed(tmp_path: Path) -> None:
    put(tmp_path / "dataset_coco.json", KARPATHY)
    put(tmp_path / "dataset_flickr8k.json", KARPATHY)
    with pytest.raises(DataError, match=r"more than one file .*dataset_coco.json, dataset_flickr8k.json.*name one"):
        load_captions(tmp_path)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_bytes("file,caption\na.jpg,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8 text"):
        load_captions(tmp_path)


def test_files_above_the_limit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_TEXT_BYTES", 10)
    with pytest.raises(DataError, match="more than the limit of 10"):
        load_captions(put(tmp_path / "captions.csv", "file,caption\na.jpg,A dog\n"))


SOME_BAD = {
    "images": [
        {
            "cocoid": 1,
            "filename": "1.jpg",
            "split": "train",
            "sentences": [{"raw": "A dog"}, {"raw": 5}, "x", {"raw": "!"}],
        },
        {"cocoid": 1, "filename": "1.jpg", "split": "train", "sentences": [{"raw": "A dog"}]},
        {"cocoid": 2, "filename": "2.jpg", "split": "train", "sentences": []},
        {"cocoid": True, "split": "train", "sentences": [{"raw": "A dog"}]},
        {"cocoid": 3, "sentences": [{"raw": "A dog"}]},
        "not an image",
        {"cocoid": 4, "filename": 9, "split": "train", "sentences": [{"raw": "a " * 6000}]},
    ]
}


def test_entries_that_cannot_be_used_are_all_listed(tmp_path: Path) -> None:
    captions = load_captions(put(tmp_path / "dataset.json", SOME_BAD))
    assert facts(captions) == [("1", "train", "1.jpg", ("A dog",))]
    assert [(entry.where, entry.reason) for entry in captions.skipped] == [
        ("images[0].sentences[1]", "the caption must be text, got int"),
        ("images[0].sentences[2]", "must be an object with 'raw'"),
        ("images[0].sentences[3]", "the caption has no words"),
        ("images[1]", "image 1 is listed twice"),
        ("images[3]", "has no cocoid, filename or imgid"),
        ("images[4]", "has no 'split'"),
        ("images[5]", "must be an object, got str"),
        ("images[6].sentences[0]", "a caption of 12,000 characters, the limit is 10,000"),
        ("image 2", "has no captions"),
        ("image 4", "has no captions"),
    ]


@settings(deadline=None, max_examples=150)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "images",
                        "annotations",
                        "sentences",
                        "raw",
                        "tokens",
                        "id",
                        "image_id",
                        "caption",
                        "split",
                        "cocoid",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_is_read_or_refused_in_one_line(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder) / "dataset.json", value)
        try:
            captions = load_captions(path)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert all(image.captions and all(image.words) for image in captions)


@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(["captions.csv", "a.token", "captions.jsonl", "a.json"]),
    start=st.sampled_from([b"", b"file,caption\n", b"1.jpg#0\tA dog\n", b'{"file": "a", "caption": "b"}\n', b"a|b\n"]),
    rest=st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "ignore")),
)
def test_any_bytes_are_read_or_refused_in_one_line(name: str, start: bytes, rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(start + rest)
        try:
            captions = load_captions(path)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert all(image.captions and all(image.words) for image in captions)


# --- the set itself ------------------------------------------------------------------------------------------------


def small_set(n: int = 200) -> CaptionSet:
    return CaptionSet(tuple(CaptionedImage(str(i), "train", "", ("A",), (("a",),)) for i in range(n)), "here", "table")


def test_an_empty_split_names_those_there_are() -> None:
    with pytest.raises(DataError, match=r"here: split 'val' has no images; there are: train \(200 images\)"):
        small_set().split("val")


@pytest.mark.parametrize(("images", "counts"), [(2000, (1400, 200, 400)), (100, (70, 10, 20)), (3, (1, 1, 1))])
def test_random_splits_have_the_shares_asked_for(images: int, counts: tuple[int, int, int]) -> None:
    found = small_set(images).with_random_splits(val=0.1, test=0.2)
    assert tuple(found.splits[name] for name in ("train", "val", "test")) == counts
    assert found == small_set(images).with_random_splits(val=0.1, test=0.2)
    assert images == 3 or found != small_set(images).with_random_splits(val=0.1, test=0.2, seed=1)


def test_a_set_may_grow_without_moving_old_images() -> None:
    first = small_set(2000).with_random_splits(val=0.1, test=0.2)
    old = {image.id: image.split for image in first}
    more = small_set(3000).with_random_splits(val=0.1, test=0.2, keep=old)
    assert [image.split for image in more][:2000] == [image.split for image in first]
    assert more.splits == {"train": 2100, "test": 600, "val": 300}


def test_a_tiny_set_cannot_be_split_three_ways() -> None:
    with pytest.raises(DataError, match="2 images are too few to leave something to train on"):
        small_set(2).with_random_splits(val=0.1, test=0.2)


def test_a_vocabulary_knows_how_it_was_counted(tmp_path: Path) -> None:
    sentences = [{"raw": "A dog's bowl.", "tokens": ["a", "dog", "'s", "bowl"]}]
    images = [{"cocoid": i, "split": split, "sentences": sentences} for i, split in enumerate(("train", "val"))]
    path = put(tmp_path / "dataset.json", {"images": images})
    own = build_vocabulary(load_captions(path), None, threshold=2, tokens="file")
    plain = build_vocabulary(load_captions(path, tokens="plain"), None, threshold=2, tokens="plain")
    assert (set(own.words[4:]), set(plain.words[4:])) == ({"a", "dog", "'s", "bowl"}, {"a", "dogs", "bowl"})
    with pytest.raises(DataError, match="no word occurs 2 times"):
        build_vocabulary(load_captions(path), "train", threshold=2, tokens="file")
    plain.save(tmp_path / "vocab.json")
    again = Vocabulary.load(tmp_path / "vocab.json")
    assert (again, again.origin) == (plain, "words that occur 2 times or more in all splits (plain tokens)")


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_folder_may_hold_a_compressed_dataset(tmp_path: Path, suffix: str) -> None:
    text = json.dumps({"images": [{"cocoid": 7, "split": "restval", "sentences": [{"raw": "A dog"}]}]}).encode()
    packed = {"": text, ".gz": gzip.compress(text), ".xz": lzma.compress(text)}[suffix]
    (tmp_path / f"dataset_coco.json{suffix}").write_bytes(packed)
    assert facts(load_captions(tmp_path)) == [("7", "train", "", ("A dog",))]


@pytest.mark.parametrize(("val", "test"), [(-0.1, 0), (0.5, 0.5), (float("nan"), 0)])
def test_random_splits_leave_something_to_train_on(val: float, test: float) -> None:
    with pytest.raises(DataError, match="leave something to train on"):
        small_set().with_random_splits(val=val, test=test)


def test_names_features_are_looked_up_by() -> None:
    image = CaptionedImage("42", "val", "val2014/COCO_val2014_000000000042.jpg", ("A",), (("a",),))
    assert list(feature_names(image)) == [
        "42",
        "val2014/COCO_val2014_000000000042.jpg",
        "val2014/COCO_val2014_000000000042",
        "COCO_val2014_000000000042.jpg",
        "COCO_val2014_000000000042",
        "000000000042",
    ]


@pytest.mark.parametrize(
    ("file", "image_id"), [("a.jpg", "a"), ("d/a.b.jpg", "d/a.b"), ("d\\a.jpg", "d/a"), ("12", "12")]
)
def test_ids_of_files(file: str, image_id: str) -> None:
    assert id_of_file(file) == image_id
