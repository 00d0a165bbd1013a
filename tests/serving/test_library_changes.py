"""A library that changes under a running server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.search.conftest import photo

from xlan.files import open_locked

GOES_ON = "searches go on with"


class Library:
    """A server, its folder of photos, and what a client sees of them."""

    def __init__(self, server: Any, folder: Path, place: Path) -> None:
        self.server, self.folder, self.place = server, folder, place
        self.client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def found(self) -> dict[str, str]:
        """Name → key of all photos."""
        answer = self.client.get("/v1/search", params={"q": "a dog", "count": 100})
        assert answer.status_code == 200, answer.text
        return {one["name"]: one["photo"] for one in answer.json()["found"]}

    def said(self, text: str) -> int:
        return self.server.log.read_text().count(text)

    def wait(self, so: Callable[[], object]) -> None:
        until = time.monotonic() + 60
        while not so():
            assert time.monotonic() < until, self.server.log.read_text()
            assert self.server.process.poll() is None, self.server.log.read_text()
            time.sleep(0.05)


def make(folder: Path, count: int) -> Path:
    for number in range(count):
        photo(folder / f"{number}.png", number)
    return folder


@pytest.fixture(scope="module")
def library(start_for_module: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """A server that looks at its folder several times a second."""
    home = tmp_path_factory.mktemp("changing")
    folder, place = make(home / "photos", 3), home / "index"
    arguments = ("--library", str(folder), "--index", str(place), "--library-rescan", "0.2")
    with Library(start_for_module(*arguments), folder, place) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_it_was(library: Library) -> Iterator[None]:
    """Every test leaves three photos."""
    yield
    for path in library.folder.iterdir():
        if path.name not in ("0.png", "1.png", "2.png"):
            path.unlink()
    library.wait(lambda: sorted(library.found()) == ["0.png", "1.png", "2.png"])


def test_a_new_photo_is_found_and_one_that_is_removed_is_not(library: Library) -> None:
    photo(library.folder / "new.png", 7)
    library.wait(lambda: "new.png" in library.found())
    assert library.said(f"library: 4 photos of {library.folder}: 1 new") == 1
    key = library.found()["new.png"]
    assert library.client.get(f"/v1/photos/{key}").status_code == 200
    (library.folder / "new.png").unlink()
    library.wait(lambda: "new.png" not in library.found())
    answer = library.client.get(f"/v1/photos/{key}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "the library has no such photo; it may have been removed"


def test_a_broken_photo_is_one_line(library: Library) -> None:
    (library.folder / "bro\nken.jpg").write_bytes(b"\xff\xd8\xff and no more")
    (library.folder / "dangling.jpg").symlink_to("nowhere")
    library.wait(lambda: library.said("bro\\nken.jpg") and library.said("dangling.jpg"))
    photo(library.folder / "next.png", 8)
    library.wait(lambda: "next.png" in library.found())
    time.sleep(1)  # further looks at it
    assert library.said("bro\\nken.jpg") == library.said("dangling.jpg") == 1
    assert library.said("Traceback") == 0


def test_a_folder_that_is_gone_leaves_the_index_as_it_is(library: Library) -> None:
    aside = library.folder.with_name("unplugged")
    before = library.found()
    library.folder.rename(aside)
    try:
        library.wait(lambda: library.said(f"{library.folder}: no such folder; {GOES_ON} 3 photos"))
        time.sleep(0.5)
        assert library.found() == before
        answer = library.client.get(f"/v1/photos/{before['0.png']}")
        assert answer.status_code == 404
        assert answer.json()["detail"] == "this photo was removed or cannot be read"
        library.folder.mkdir()  # a mount point without its drive
        library.wait(lambda: library.said(f"To remove the index, use --forget; {GOES_ON} 3 photos"))
        assert library.found() == before
    finally:
        aside.replace(library.folder)
    library.wait(lambda: library.said(f"library: 3 photos of {library.folder}: can be read again"))
    assert library.said("no such folder; ") == 1
    assert library.client.get(f"/v1/photos/{before['0.png']}").status_code == 200


def test_an_index_that_is_gone_is_made_again(library: Library) -> None:
    library.place.rename(library.place.with_name("old index"))
    library.wait(lambda: (library.place / "index.json").exists())
    library.wait(lambda: len(library.found()) == 3)


def test_requests_are_answered_while_the_library_grows(library: Library, picture: Callable[..., bytes]) -> None:
    """Also those that began with the photos of before."""
    stop, failed = threading.Event(), list[str]()

    def ask(method: str, path: str, **options: Any) -> None:
        with httpx.Client(base_url=library.server.url, timeout=60, trust_env=False) as client:
            while not stop.is_set():
                answer = client.request(method, path, **options)
                if answer.status_code != 200:
                    failed.append(answer.text)

    sent = {"content": picture(1), "headers": {"Content-Type": "image/png"}}
    asking = [
        threading.Thread(target=ask, args=("GET", "/v1/search?q=a+dog+on+the+grass")),
        threading.Thread(target=ask, args=("POST", "/v1/captions"), kwargs=sent),
    ]
    for thread in asking:
        thread.start()
    try:
        for number in range(10, 22):
            photo(library.folder / f"{number}.png", number)
            (library.folder / f"{number - 3}.png").unlink(missing_ok=number < 13)
        library.wait(lambda: sorted(library.found()) == ["0.png", "1.png", "19.png", "2.png", "20.png", "21.png"])
    finally:
        stop.set()
        for thread in asking:
            thread.join()
    assert failed == []


def test_what_another_process_indexes_is_found(
    start_server: Callable[..., Any], model_directory: Path, tmp_path: Path
) -> None:
    folder, place = make(tmp_path / "photos", 2), tmp_path / "index"
    arguments = ("--library", str(folder), "--index", str(place), "--library-rescan", "0")
    with Library(start_server(*arguments), folder, place) as library:
        photo(folder / "new.png", 7)
        (folder / "0.png").unlink()
        time.sleep(1.5)
        assert sorted(library.found()) == ["0.png", "1.png"]  # nobody has looked
        command = ["search", str(folder), "--index", str(place), "--model", str(model_directory)]
        done = subprocess.run([sys.executable, "-m", "xlan", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        library.wait(lambda: sorted(library.found()) == ["1.png", "new.png"])
        good = (place / "index.json").read_text()
        (place / "index.json").write_text(good[:-50])
        library.wait(lambda: library.said(f"{GOES_ON} 2 photos"))
        assert sorted(library.found()) == ["1.png", "new.png"]
        (place / "index.json").write_text(good)
        assert library.server.stop() == 0


def is_locked(path: Path) -> bool:
    try:
        os.close(open_locked(path))
    except BlockingIOError:
        return True
    return False


def test_the_server_ends_while_it_indexes(start_server: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder, place = make(tmp_path / "photos", 1), tmp_path / "index"
    arguments = ("--library", str(folder), "--index", str(place), "--library-rescan", "0.2")
    with Library(start_server(*arguments), folder, place) as library:
        make(folder, 200)
        library.wait(lambda: is_locked(place / ".writing.lock"))
        assert library.server.stop() == 0
        assert library.said("Traceback") == 0


def test_the_option_needs_a_library(model_directory: Path) -> None:
    command = [sys.executable, "-m", "xlan", "serve", "--model", str(model_directory), "--library-rescan", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "has an effect only together with --library" in done.stderr
