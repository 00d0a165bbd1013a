"""Files are whole or not there; JSON from anywhere is refused in words."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.errors import DataError
from xlan.files import (
    atomic_path,
    file_sha256,
    open_locked,
    read_json,
    read_json_lines,
    read_text,
    remove_leftovers,
    user_cache_dir,
    user_data_dir,
    write_json,
    write_text,
)


def fail_half_way(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError):
        fail_half_way(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("name", ["x" * 255, "\N{DOG FACE}" * 63], ids=["ascii", "4 bytes each"])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "text")
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_half_a_surrogate_pair_survives_a_json_file(tmp_path: Path) -> None:
    value = {"caf\udce9": ["\ud83d", "\N{DOG FACE}"]}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "not UTF-8 text (byte 0)"),
        (b"{", "not valid JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        (b"", "not valid JSON: Expecting value at line 1, column 1"),
        (b"[" * 100_000, "JSON is nested too deeply"),
        (b"1" * 5_000, "not usable as JSON: Exceeds the limit (4300"),
        (b"[" + b" " * 6_000 + b"]", "more than the limit of 6,000 bytes for such a file"),
    ],
)
def test_json_that_cannot_be_used_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    limit = 6_000 if len(content) < 100_000 else 200_000
    with pytest.raises(DataError) as error:
        read_json(path, max_bytes=limit)
    assert str(error.value).startswith(f"{path}: {message}")


def test_a_byte_order_mark_is_no_part_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]\r\n")
    assert read_json(tmp_path / "a.json") == [1]


def test_a_device_without_end_is_not_read_to_the_end():
    with pytest.raises(DataError, match=r"/dev/zero: more than the limit of 1,000 bytes"):
        read_json("/dev/zero", max_bytes=1000)


@given(content=st.binary(max_size=300))
def test_the_hash_of_a_file_is_that_of_its_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "hashed"
    path.write_bytes(content)
    assert file_sha256(path) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", ["folder", "x" * 256])
def test_errors_name_the_file_and_not_its_temporary_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as error:
        write_text(tmp_path / name, "1")
    assert error.value.filename == str(tmp_path / name)
    assert ".tmp" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_lock_keeps_others_out_until_it_is_closed(tmp_path: Path) -> None:
    first = open_locked(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        open_locked(tmp_path / "lock")
    os.close(first)
    os.close(open_locked(tmp_path / "lock"))


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"import os; from xlan.files import open_locked; open_locked({str(path)!r}); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    os.close(open_locked(path))


@pytest.mark.parametrize(("folder", "variable"), [(user_cache_dir, "XLAN_CACHE_DIR"), (user_data_dir, "XLAN_DATA_DIR")])
def test_user_folders_can_be_chosen(
    folder: Callable[[], Path], variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.delenv(variable)
    assert folder().name == "xlan"


@pytest.mark.skipif(sys.platform != "linux", reason="XDG names folders on Linux")
def test_user_folders_follow_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XLAN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_dir() == tmp_path / "xlan"


def test_json_lines_skip_what_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes('{"a": 1}\n[2]\nnothing\n{"b": "é"}\n{"c": "é'.encode()[:-1])
    assert list(read_json_lines(path)) == [{"a": 1}, {"b": "é"}]


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    for name in (".log.jsonl.ab12.tmp", ".tmpG79lIt", "log.jsonl", ".lock"):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log.jsonl"]


@settings(deadline=None, max_examples=40)
@given(parts=st.lists(st.binary(max_size=2000), min_size=1, max_size=3), limit=st.integers(0, 6000))
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed_text_is_that_of_the_plain_file(
    pack: Callable[[bytes], bytes], parts: list[bytes], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    parts = [part.hex().encode() for part in parts]
    path = tmp_path_factory.getbasetemp() / ("a.txt.gz" if pack is gzip.compress else "a.txt.xz")
    path.write_bytes(b"".join(map(pack, parts)))  # either format may hold several streams
    whole = b"".join(parts)
    if len(whole) <= limit:
        assert read_text(path, max_bytes=limit) == whole.decode()
    else:
        with pytest.raises(DataError, match=f"more than the limit of {limit:,} bytes"):
            read_text(path, max_bytes=limit)


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_a_bomb_is_unpacked_no_further_than_allowed(
    tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str
) -> None:
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(pack(b" " * (32 << 20)))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"more than the limit of 1,000 bytes"):
        read_json(path, max_bytes=1000)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20  # the dictionary of xz alone is 8 MiB
    tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", [lambda data: data[:-6], lambda data: b"x" + data])
def test_damaged_compressed_files_say_so(tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    pack = gzip.compress if suffix == ".gz" else lzma.compress
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(damage(pack(b"[" + b"1, " * 5000 + b"1]")))
    with pytest.raises(DataError, match=rf"a\.json\{suffix}: not a valid \{suffix} file: "):
        read_json(path)
