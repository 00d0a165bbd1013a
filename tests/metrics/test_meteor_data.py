from __future__ import annotations

import gzip
import multiprocessing
import zipfile
from pathlib import Path

import numpy as np
import pytest

from xlan.errors import MetricError
from xlan.metrics import meteor_data
from xlan.metrics.meteor import Meteor
from xlan.metrics.meteor_data import HASH_FACTOR, Resources, load_data, word_hash


@pytest.fixture
def resources(tmp_path: Path) -> Resources:
    """A package's files in small: two synsets, one irregular form, three paraphrases."""
    jar, table = tmp_path / "meteor-1.5.jar", tmp_path / "paraphrase-en.gz"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("function/english.words", "the\na\n")
        archive.writestr("nonbreaking/english.prefixes", "#comment\nv\npp #NUMERIC_ONLY#\n")
        archive.writestr("synonym/english.synsets", "goose\n00000002 00000001\nfowl\n00000001\n")
        archive.writestr("synonym/english.exceptions", "goose\ngeese gooses\n")
    with gzip.open(table, "wt", encoding="utf-8") as file:
        file.write("0.5\nbig dog\nhound\n0.4\ncat\ntom\n0.3\nbig dog\nlarge dog\n")
    return Resources(jar, table)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XLAN_CACHE_DIR", str(folder))
    monkeypatch.setattr(meteor_data.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    return folder


def phrase_hash(phrase: str) -> int:
    value = 0
    for word in phrase.split():
        value = (value * HASH_FACTOR + word_hash(word)) % 2**64
    return value


def test_the_index_holds_what_the_files_say(resources: Resources) -> None:
    data = load_data(resources)
    assert data.paraphrases.get(phrase_hash("big dog")) == [phrase_hash("hound"), phrase_hash("large dog")]
    assert data.paraphrases.get(phrase_hash("dog")) == []
    assert data.synsets.get(word_hash("goose")) == [2, 1]
    assert data.exceptions.get(word_hash("geese")) == [word_hash("goose")]
    assert data.function_words == {"the", "a"}
    assert (data.prefixes, data.numeric_prefixes) == ({"v"}, {"pp"})


def test_rows_of_many_keys(resources: Resources) -> None:
    table = load_data(resources).paraphrases
    wanted = np.array([phrase_hash("cat"), 5, phrase_hash("big dog")], dtype=np.uint64)
    rows = table.rows(wanted)
    assert rows[1] == -1
    assert table.keys[rows[[0, 2]]].tolist() == wanted[[0, 2]].tolist()


def test_the_index_is_built_once(resources: Resources, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_data(resources)
    monkeypatch.setattr(meteor_data, "_read_resources", lambda *_: pytest.fail("built again"))
    assert isinstance(load_data(resources).paraphrases.keys.base, np.memmap)
    assert [path.suffix for path in cache.iterdir()] == [".index"]


def test_changed_resources_get_a_new_index(resources: Resources, cache: Path) -> None:
    load_data(resources)
    with gzip.open(resources.table, "wt", encoding="utf-8") as file:
        file.write("0.5\nblue sky\nazure\n")
    assert load_data(resources).paraphrases.get(phrase_hash("blue sky")) == [phrase_hash("azure")]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "header"])
def test_a_damaged_index_is_rebuilt(resources: Resources, cache: Path, damage: str) -> None:
    load_data(resources)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    broken = {
        "cut": whole[:-16],
        "flip": whole[:-12] + bytes([whole[-12] ^ 1]) + whole[-11:],
        "empty": b"",
        "foreign": b"something else entirely, and long enough to be read",
        "header": whole[:20] + b"\xff" * 8 + whole[28:],
    }[damage]
    path.unlink()
    path.write_bytes(broken)
    assert load_data(resources).paraphrases.get(phrase_hash("cat")) == [phrase_hash("tom")]
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_gives_way_to_a_temporary_one(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XLAN_CACHE_DIR", str(tmp_path / "file"))
    assert load_data(resources).synsets.get(word_hash("fowl")) == [1]
    assert list((tmp_path / "temporary").rglob("*.index"))


def test_nowhere_to_write_says_what_to_set(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XLAN_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(meteor_data.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    with pytest.raises(MetricError, match="set XLAN_CACHE_DIR to a folder that can be written to"):
        load_data(resources)


@pytest.mark.parametrize("which", ["jar", "table"])
def test_damaged_resources_say_how_to_get_them_again(resources: Resources, which: str) -> None:
    path: Path = getattr(resources, which)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(MetricError, match=r"cannot be read .* pip install --force-reinstall"):
        load_data(resources)


def _build(resources: Resources) -> list[int]:
    return load_data(resources).paraphrases.get(phrase_hash("cat"))


def test_two_processes_may_build_at_once(resources: Resources, cache: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_build, [resources] * 4) == [[phrase_hash("tom")]] * 4
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("caption", "reference", "matched"),
    [("geese", "fowl", True), ("hound", "big dog", True), ("big dog", "hound", True), ("cat", "fowl", False)],
)
def test_small_resources_score(resources: Resources, caption: str, reference: str, matched: bool) -> None:
    pytest.importorskip("snowballstemmer")
    score = Meteor(load_data(resources)).score({0: [reference]}, {0: caption})[0]
    assert (score > 0) is matched
