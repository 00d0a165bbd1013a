"""Everything that may be an input, and what is said about inputs that cannot be used."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batch.conftest import drawn

from xlan.batch.items import Item
from xlan.batch.plan import difference, listing_hash, read_plan, read_shard, write_plan
from xlan.batch.read import ShardPictures
from xlan.batch.sources import list_items
from xlan.batch.storage import Storage
from xlan.errors import DataError, ImageError
from xlan.vision.sources import find_pictures


def contents(*inputs: str | Path, **options: Any) -> list[bytes]:
    """The bytes of all pictures of inputs, as a worker reads them."""
    items = list(list_items([str(one) for one in inputs], **options))
    with ShardPictures(items) as shard:
        return [picture.read() for picture in shard.pictures]


def ids(*inputs: str | Path, **options: Any) -> list[str]:
    return [item.id for item in list_items([str(one) for one in inputs], **options)]


PICTURES = [drawn(number) for number in range(70)]


def test_a_folder_is_listed_to_the_bottom_with_the_ids_of_the_feature_store(pictures: Path) -> None:
    (pictures / "notes.txt").touch()
    (pictures / ".hidden.png").touch()
    (pictures / "loop").symlink_to(pictures, target_is_directory=True)
    assert ids(pictures) == [picture.id for picture in find_pictures([pictures])]
    assert [item.name for item in list_items([str(pictures)])][:2] == [
        str(pictures / "a" / "00.png"),
        str(pictures / "a" / "01.png"),
    ]


def test_globs_single_pictures_and_several_inputs_keep_their_order(pictures: Path) -> None:
    assert ids(pictures / "b" / "07.png", pictures / "a" / "*.png") == ["07", "00", "01", "02", "03", "04"]
    assert ids(pictures / "**" / "0[6-9].png") == ["b/06", "b/07", "b/08", "b/09"]


def tar_of(path: Path, count: int) -> bytes:
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            for name, data in ((f"{number:03d}.png", PICTURES[number]), (f"{number:03d}.txt", b"a caption")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path.read_bytes()


def test_tars_are_read_at_their_offsets_and_numbered_names_expand(tmp_path: Path) -> None:
    tar_of(tmp_path / "shard-08.tar", 3)
    tar_of(tmp_path / "shard-09.tar", 2)
    assert contents(tmp_path / "shard-{08..09}.tar") == [*PICTURES[:3], *PICTURES[:2]]
    assert ids(tmp_path / "shard-08.tar") == ["000", "001", "002"]


def test_a_list_of_paths_and_addresses(pictures: Path) -> None:
    (pictures / "list.txt").write_text(f"a/00.png\n\n{pictures}/a/01.png\nfile://{pictures}/b/05.png\n")
    assert contents(pictures / "list.txt") == [PICTURES[0], PICTURES[1], PICTURES[5]]


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
@pytest.mark.parametrize("struct", [False, True], ids=["bytes", "struct"])
def test_tables_with_bytes(form: str, struct: bool, tmp_path: Path) -> None:
    values: list[Any] = [{"bytes": data, "path": "x"} for data in PICTURES] if struct else list(PICTURES)
    table = pa.table({"id": [f"n{i}" for i in range(70)], "image": values})
    path = tmp_path / ("t.parquet" if form == "parquet" else "t.arrow")
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=30)
    else:
        kind = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
        with kind(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=40)
    assert contents(path) == PICTURES
    assert ids(path)[:2] == ["n0", "n1"]


def test_rows_of_a_table_may_be_asked_for_in_any_order(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"jpg": PICTURES}), tmp_path / "t.parquet", row_group_size=9)
    items = list(list_items([str(tmp_path / "t.parquet")]))
    with ShardPictures(items[40:60]) as shard:
        order = [5, 4, 19, 0, 7, *(i for i in range(20) if i not in (5, 4, 19, 0, 7))]
        assert [shard.pictures[i].read() for i in order] == [PICTURES[40 + i] for i in order]


def test_a_table_of_paths_with_a_column_by_name(pictures: Path) -> None:
    parquet.write_table(pa.table({"where": ["a/00.png", "b/05.png"], "n": [7, 8]}), pictures / "t.parquet")
    assert contents(pictures / "t.parquet", column="where") == [PICTURES[0], PICTURES[5]]
    assert ids(pictures / "t.parquet", column="where", id_column="n") == ["7", "8"]


def test_every_input_at_an_address(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({"/box/a/0.png": PICTURES[0], "/box/1.png": PICTURES[1], "/box/s.tar": tar_of(tmp_path / "s.tar", 2)})
    memory.pipe("/box/list.txt", b"1.png\nmemory://box/a/0.png\n")
    assert contents("memory://box") == [PICTURES[1], PICTURES[0]]
    assert contents("memory://box/*.png", "memory://box/s.tar") == [PICTURES[1], *PICTURES[:2]]
    assert contents("memory://box/list.txt") == [PICTURES[1], PICTURES[0]]


def test_what_is_wrong_with_an_input_is_one_line(pictures: Path, tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "cut.tar", 3)
    (tmp_path / "cut.tar").write_bytes(whole[:2000])
    parquet.write_table(pa.table({"n": [1, 2], "caption": ["a", "b"]}), tmp_path / "t.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense")
    (tmp_path / "bad.txt").write_text("a.png\nsimplecache::s3://x/y\n")
    (tmp_path / "empty").mkdir()
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("cut.tar", {}, "cut.tar: is truncated inside '000.png'"),
        (
            "t.parquet",
            {},
            "cannot tell which column holds the pictures; choose with --column: caption (columns: n, cap",
        ),
        ("t.parquet", {"column": "n"}, "column 'n' is int64, expected bytes or paths"),
        ("t.parquet", {"column": "image"}, "column 'image' is missing"),
        ("t.parquet", {"column": "caption", "id_column": "key"}, "has no column 'key' for the ids; it has n, caption"),
        ("bad.parquet", {}, "bad.parquet: is not a readable table"),
        ("bad.txt", {}, "bad.txt: line 2: expected a path or an address of a picture"),
        ("empty", {}, "empty: no pictures here; for tar or Parquet files name them"),
        ("none", {}, "none: no such file or folder"),
        ("none/*.png", {}, "none/*.png: no pictures here"),
        ("a-{9..1}.tar", {}, "expected {LOW..HIGH}"),
        ("nosuch://x", {}, "this kind of address (nosuch) cannot be opened"),
    ]
    for name, options, expected in cases:
        with pytest.raises(DataError) as caught:
            contents(name if "://" in name else tmp_path / name, **options)
        assert expected in str(caught.value), name
        assert "\n" not in str(caught.value)


def test_a_picture_that_cannot_be_read_is_an_error_of_its_own(pictures: Path, tmp_path: Path) -> None:
    tar_of(tmp_path / "s.tar", 2)
    parquet.write_table(pa.table({"image": pa.array([None, PICTURES[1]], pa.binary())}), tmp_path / "t.parquet")
    inputs = [str(pictures / "a" / "00.png"), str(tmp_path / "s.tar"), str(tmp_path / "t.parquet")]
    items = list(list_items(inputs))
    (pictures / "a" / "00.png").unlink()
    os.truncate(tmp_path / "s.tar", 600)
    with ShardPictures(items) as shard:
        for number, expected in ((0, "no such file"), (1, "is truncated"), (3, "holds no picture in this row")):
            with pytest.raises(ImageError, match=expected):
                shard.pictures[number].read()
        assert shard.pictures[4].read() == PICTURES[1]


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
places = st.builds(lambda text, bad: text + ("\udcff" if bad else ""), names, st.booleans())
items_of = st.builds(
    Item, names, names, places, st.integers(-1, 9), st.integers(-1, 9), st.integers(-1, 9), names, names
)


@given(st.lists(items_of, min_size=1, max_size=9), st.integers(1, 4))
def test_a_plan_gives_back_what_was_planned(planned: list[Item], size: int) -> None:
    storage = Storage("memory://plans")
    pictures, shards, listing = write_plan(storage, iter(planned), shard_size=size, unique_ids=False)
    assert (pictures, listing) == (len(planned), listing_hash(planned))
    assert list(read_plan(storage)) == planned
    assert [item for number in range(shards) for item in read_shard(storage, number)] == planned
    assert all(len(read_shard(storage, number)) == size for number in range(shards - 1))


def test_a_difference_is_told_by_names() -> None:
    before = [Item(name, name, name, version="1") for name in "abc"]
    now = [Item("a", "a", "a", version="2"), *(Item(name, name, name, version="1") for name in "bdefg")]
    assert difference(before, now) == "4 added (d, e, f, …), 1 removed (c), 1 changed (a)"
    assert difference(before, before[::-1]) == "their order changed"
