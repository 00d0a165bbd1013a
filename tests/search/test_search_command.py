"""`xlan search` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.search.conftest import photo
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.errors import SearchError
from xlan.files import open_locked

Photos = Callable[..., Path]


@pytest.fixture
def search(model_directory: Path) -> Callable[..., object]:
    def run(*arguments: object) -> object:
        return CliRunner().invoke(app, ["search", *map(str, arguments), "--model", str(model_directory)])

    return run


def test_a_table_best_first(photos: Photos, search: Callable[..., object]) -> None:
    folder = photos(4)
    done = search(folder, "a labradog on grass", "-n", "3")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert all(line.split()[1].startswith(str(folder)) for line in lines)
    said = done.stderr.splitlines()
    assert said[0] == "4 photos in the index: 4 new"
    assert said[1] == "unknown word 'labradog'"
    assert said[2].startswith("4 photos, 4 compared word by word, ")
    again = search(folder, "a dog", "-n", "3")
    assert "new" not in again.stderr


def test_json_and_a_page(photos: Photos, search: Callable[..., object], tmp_path: Path) -> None:
    folder = photos(3)
    done = search(folder, "a dgo & dog", "--json", "--page", tmp_path / "found.html")
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["rank"] for record in records] == [1, 2, 3]
    assert set(records[0]) == {"rank", "photo", "score", "words", "caption"}
    assert [word["word"] for word in records[0]["words"]] == ["a", "dog"]
    page = (tmp_path / "found.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 3
    assert "<h1>a dgo &amp; dog</h1>" in page
    assert "unknown word &#x27;dgo&#x27;" in page
    assert records[0]["caption"] in page


def test_only_bringing_the_index_up_to_date(photos: Photos, search: Callable[..., object], tmp_path: Path) -> None:
    folder = photos(2)
    (folder / "bad.jpg").write_bytes(b"GIF?")
    done = search(folder, "--index", tmp_path / "index")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"{folder / 'bad.jpg'}: ")
    assert lines[1] == "2 photos in the index: 2 new, 1 cannot be indexed"
    assert lines[2].startswith(f"2 photos indexed in {tmp_path / 'index'} (")
    assert str(folder / "bad.jpg") not in search(folder, "a dog", "--index", tmp_path / "index").stderr
    assert str(folder / "bad.jpg") in search(folder, "--index", tmp_path / "index", "--skipped").stderr


def test_without_an_update_the_index_is_taken_as_it_is(photos: Photos, search: Callable[..., object]) -> None:
    folder = photos(2)
    search(folder)
    photo(folder / "2.png", 2)
    assert len(search(folder, "a dog", "--no-update").stdout.splitlines()) == 2
    assert len(search(folder, "a dog").stdout.splitlines()) == 3
    assert "3 new" in search(folder, "a dog", "--rebuild").stderr


def test_while_another_process_indexes_the_rest_is_searched(
    photos: Photos, search: Callable[..., object], cache: Path
) -> None:
    pytest.importorskip("fcntl")
    folder = photos(2)
    search(folder)
    (place,) = cache.glob("search/*/*")
    lock = open_locked(place / ".writing.lock")
    try:
        done = search(folder, "a dog")
    finally:
        os.close(lock)
    assert done.exit_code == 0, done.output
    assert "another process is indexing this folder; searching the photos indexed so far" in done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_forgetting(photos: Photos, search: Callable[..., object], cache: Path) -> None:
    folder = photos(1)
    search(folder)
    done = search(folder, "--forget")
    assert done.stderr == f"1 index of {folder} removed\n"
    assert not list(cache.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "a dog"), "nowhere: no such folder of photos"),
        (("{folder}/0.png", "a dog"), "0.png: is a file, expected a folder of photos"),
        (("{folder}", "dog " * 10_000), "query: expected at most 500 characters, got 40,000"),
        (("{folder}", "собака на траве"), "query: the model knows none of its words: unknown word 'собака'; "),
        (("{folder}", "a dog", "--index", "{folder}/0.png"), "0.png: cannot be read: Not a directory"),
        (("{folder}", "a dog", "--index", "{loop}"), "links; choose another place with --index"),
        (("{folder}", "--forget", "--index", "{folder}"), "not removed: expected an index, but it holds '0.png'"),
        (("{folder}", "zzz"), "query: the model knows none of its words: unknown word 'zzz'"),
        (("{folder}", "..."), "query: expected a sentence such as 'a dog on the beach', got '...'"),
        (("{folder}", "a dog", "--no-update"), "has no index for this model yet; search without --no-update"),
        (("{empty}", "a dog"), "empty: no photos to search; expected files such as .jpg, .png or .webp in it"),
    ],
)
def test_what_cannot_be_is_one_line(
    photos: Photos, search: Callable[..., object], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    folder = photos(1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    filled = [one.format(folder=folder, empty=tmp_path / "empty", loop=tmp_path / "loop") for one in arguments]
    done = search(*filled)
    assert isinstance(done.exception, SearchError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)


def test_only_the_own_index_is_forgotten_and_only_while_nobody_writes(
    photos: Photos, search: Callable[..., object], tmp_path: Path
) -> None:
    pytest.importorskip("fcntl")
    folder, other, place = photos(1), photos(1, "other"), tmp_path / "index"
    search(folder, "--index", place)
    done = search(other, "--forget", "--index", place)
    assert "is the index of another folder" in str(done.exception)
    lock = open_locked(place / ".writing.lock")
    try:
        done = search(folder, "--forget", "--index", place)
    finally:
        os.close(lock)
    assert "another process is changing this index; wait for it" in str(done.exception)
    assert (place / "index.json").exists()
    assert search(folder, "--forget", "--index", place).exit_code == 0
    assert not place.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only there may names be any bytes")
def test_names_that_are_no_text_survive_json(photos: Photos, search: Callable[..., object]) -> None:
    folder = photos(1)
    strange = b"new\nline \xff \x1b[31m.png"
    (folder / "0.png").rename(os.fsdecode(os.fsencode(folder) + b"/" + strange))
    (line,) = search(folder, "a dog", "--json").stdout.splitlines()
    assert os.fsencode(json.loads(line)["photo"]) == os.fsencode(folder) + b"/" + strange
    table = search(folder, "a dog").stdout
    assert "new\\nline \\udcff \\x1b[31m.png" in table
    assert len(table.splitlines()) == 1


def xlan(*arguments: object, most_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own; no file may have more than `most_bytes`, as on a full disk."""
    code = "import resource, sys; from xlan.cli.main import main; n = int(sys.argv.pop(1))\n"
    code += "n < 0 or resource.setrlimit(resource.RLIMIT_FSIZE, (n, resource.RLIM_INFINITY)); main()"
    command = [sys.executable, "-c", code, str(-1 if most_bytes is None else most_bytes), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit there")
@pytest.mark.parametrize("room", [0, 100, 2000])
def test_a_disk_that_is_full_is_one_line(photos: Photos, model_directory: Path, tmp_path: Path, room: int) -> None:
    folder = photos(2)
    command = ("search", folder, "--index", tmp_path / "index", "--model", model_directory)
    assert xlan(*command).returncode == 0
    for number in range(2, 6):
        photo(folder / f"{number}.png", number)
    done = xlan(*command, most_bytes=room)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {tmp_path / 'index'}: cannot be written: File too large; photos indexed so far are kept: free some "
        "space and search again, or choose another place with --index\n"
    )
    assert len(xlan(*command, "a dog", "--no-update").stdout.splitlines()) == 2
    assert xlan(*command).stderr.startswith("6 photos in the index: 4 new\n")
    assert not list((tmp_path / "index").glob(".*.tmp"))


def test_two_updates_at_once(photos: Photos, model_directory: Path, tmp_path: Path) -> None:
    """Both answer, and what they leave is whole."""
    pytest.importorskip("fcntl")
    command = [sys.executable, "-m", "xlan", "search", str(photos(30)), "a dog", "--index", str(tmp_path / "index")]
    command += ["--model", str(model_directory), "--batch-size", "1"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(process.communicate(timeout=300), process.returncode) for process in both]
    for (_, errors), status in ended:
        assert "Traceback" not in errors
        assert status == 0 or "no photos to search" in errors  # the other one had none ready yet
    assert sum(status == 0 for _, status in ended) >= 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr.startswith("30 photos, ")


def test_errors_do_not_steer_the_terminal() -> None:
    done = xlan("search", "\x1b[31mred", "a dog")
    assert done.stderr == "error: \\x1b[31mred: no such folder of photos\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a dog", "--rebuild", "--no-update"), "cannot be combined with --no-update"),
        (("--no-update",), "expected a sentence too"),
        (("--page", "x.html"), "expected a sentence too"),
        (("--json",), "expected a sentence too"),
        (("a dog", "--skipped", "--no-update"), "cannot be combined with --no-update"),
        (("a dog", "--forget"), "does not search; leave out the sentence"),
        (("a dog", "-n", "0"), "greater than or equal to 1"),
    ],
)
def test_wrong_usage_is_status_2(
    photos: Photos, search: Callable[..., object], arguments: tuple[str, ...], message: str
) -> None:
    done = search(photos(1), *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_page_never_replaces_a_photo(photos: Photos, search: Callable[..., object]) -> None:
    folder = photos(1)
    [photo] = folder.iterdir()
    before = photo.read_bytes()
    done = search(folder, "a dog", "--page", str(photo))
    assert "expected a file name that ends in .html" in str(done.exception)
    assert photo.read_bytes() == before


def test_search_needs_no_torch(photos: Photos, model_directory: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from xlan.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert sys.modules['torch'] is None"
    )
    command = [sys.executable, "-c", code, "search", str(photos(2)), "a dog", "--model", str(model_directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
