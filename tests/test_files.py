"""Files are whole or not there; JSON from anywhere is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from xlan.errors import DataError
from xlan.files import atomic_path, read_json, write_json, write_text


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
