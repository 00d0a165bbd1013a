"""What a user types → pictures."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from xlan.cli.pictures import count_pictures, find_pictures
from xlan.cli.text import printable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("b.JPG", "a.png", "notes.txt", ".hidden.jpg", "a/z.webp", "a/c/d.gif", ".git/x.png", "[1].jpg"):
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names(*arguments: str) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    found = [name for name, _ in find_pictures(arguments, problems.append)]
    assert count_pictures(arguments) == len(found)
    return found, problems


def test_folders_are_searched_to_the_bottom_in_order(folder: Path) -> None:
    assert names("p") == (["p/[1].jpg", "p/a/c/d.gif", "p/a/z.webp", "p/a.png", "p/b.JPG"], [])


def test_a_named_file_is_taken_whatever_it_is_called(folder: Path) -> None:
    assert names("./p/notes.txt", "none.jpg", "p/[1].jpg") == (["p/notes.txt", "none.jpg", "p/[1].jpg"], [])


def test_globs(folder: Path) -> None:
    assert names("p/*") == (["p/[1].jpg", "p/a.png", "p/b.JPG"], [])
    assert names("p/**/*.gif") == (["p/a/c/d.gif"], [])
    assert names(str(folder / "p" / "?.png")) == ([str(folder / "p" / "a.png")], [])


def test_what_is_no_picture_is_one_line_and_the_rest_goes_on(folder: Path) -> None:
    found, problems = names("empty", "*.bmp", "https://example.org/a.jpg", "FILE:///etc/passwd", "p/a.png")
    assert found == ["p/a.png"]
    assert problems == [
        "empty: no pictures in this folder",
        "*.bmp: no picture matches",
        "https://example.org/a.jpg: addresses are not fetched; download the picture and give its path",
        "FILE:///etc/passwd: addresses are not fetched; download the picture and give its path",
    ]


def test_links_that_lead_in_circles_end(folder: Path) -> None:
    (folder / "p" / "a" / "loop").symlink_to(folder / "p")
    assert len(names("p")[0]) == 5


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_folder_that_may_not_be_read(folder: Path) -> None:
    (folder / "p" / "a").chmod(0)
    found, problems = names("p")
    (folder / "p" / "a").chmod(0o755)
    assert found == ["p/[1].jpg", "p/a.png", "p/b.JPG"]
    assert problems == ["p/a: cannot be read: Permission denied"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"picture")))
    assert list(find_pictures(["-"], print)) == [("-", b"picture")]


def test_a_terminal_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    problems: list[str] = []
    assert list(find_pictures(["-"], problems.append)) == []
    assert "expected a picture on standard input, which is a terminal" in problems[0]


def test_names_cannot_command_a_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\udcff é") == "a\\x1b[2Jb\\nc\\udcff é"
