"""Indexes follow their folders, whatever happens to either."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.search.conftest import photo

from xlan.errors import SearchError
from xlan.files import open_locked
from xlan.pipeline import Captioner
from xlan.search import PhotoSearch
from xlan.search import index as indexes
from xlan.search import update as updates
from xlan.search.index import BusyIndexError, Index, forget
from xlan.search.update import Update

Photos = Callable[..., Path]


def counts(done: Update) -> tuple[int, int, int, int]:
    return done.added, done.changed, done.removed, done.kept


def names(search: PhotoSearch) -> list[str]:
    return sorted(os.fsdecode(search.ranker.name(place)) for place in range(len(search)))


def shards(search: PhotoSearch) -> list[Path]:
    return sorted(search.place.glob("photos-*"))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Names of the pictures that were opened."""
    seen: list[bytes] = []
    real = updates._Reader.__call__

    def spy(self: updates._Reader, name: bytes) -> object:
        seen.append(name)
        return real(self, name)

    monkeypatch.setattr(updates._Reader, "__call__", spy)
    return seen


def test_an_update_costs_what_changed(photos: Photos, captioner: Captioner, looked_at: list[bytes]) -> None:
    folder = photos(8)
    search = PhotoSearch.open(folder, captioner)
    steps: list[tuple[int, int]] = []
    assert counts(search.update(progress=lambda *step: steps.append(step))) == (8, 0, 0, 0)
    assert steps[0] == (0, 8)
    assert steps[-1] == (8, 8)
    assert len(looked_at) == 8
    assert counts(search.update()) == (0, 0, 0, 8)
    photo(folder / "more" / "new.png", 30)
    photo(folder / "3.png", 31)
    (folder / "5.png").unlink()
    looked_at.clear()
    assert counts(search.update()) == (1, 1, 1, 6)
    assert sorted(looked_at) == [b"3.png", b"more/new.png"]
    assert names(search) == ["0.png", "1.png", "2.png", "3.png", "4.png", "6.png", "7.png", "more/new.png"]
    again = PhotoSearch.open(folder, captioner)  # from the disk
    assert names(again) == names(search)
    assert [one.name for one in again.search("a dog").found] == [one.name for one in search.search("a dog").found]
    (folder / "0.png").rename(folder / "renamed.png")
    assert counts(search.update()) == (1, 0, 1, 7)


def test_the_folder_itself_is_only_read(photos: Photos, captioner: Captioner, cache: Path) -> None:
    folder = photos(2)
    before = sorted(folder.rglob("*"))
    search = PhotoSearch.open(folder, captioner)
    search.update()
    assert sorted(folder.rglob("*")) == before
    assert search.place.is_relative_to(cache)
    assert PhotoSearch.open(folder / ".." / folder.name, captioner).place == search.place


def test_small_shards_are_joined_and_empty_ones_dropped(
    photos: Photos, captioner: Captioner, looked_at: list[bytes]
) -> None:
    folder = photos(1)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    for number in range(1, 9):
        photo(folder / f"{number}.png", number)
        search.update()
        assert len(search) == number + 1
    assert len(shards(search)) == 2  # 8 + 1, as a counter carries
    assert len(looked_at) == 9  # joining looks at no picture
    best = search.search("a dog", count=9).found
    for number in range(1, 8):
        (folder / f"{number}.png").unlink()
    search.update()
    assert names(search) == ["0.png", "8.png"]
    assert len(looked_at) == 9
    left = {one.name for one in search.search("a dog").found}
    assert left == {"0.png", "8.png"} <= {one.name for one in best}
    index = Index.read(search.place, search.identity, search.folder)
    assert sum(shard.count for shard in index.shards) <= 3
    assert {path.name for path in shards(search)} == {shard.path.name for shard in index.shards}


def test_a_picture_that_cannot_be_read_is_listed_and_not_tried_again(
    photos: Photos, captioner: Captioner, looked_at: list[bytes]
) -> None:
    folder = photos(2)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff but nothing behind")
    (folder / "page.png").write_bytes(b"<!doctype html>")
    (folder / "gone.jpg").symlink_to(folder / "nothing")
    search = PhotoSearch.open(folder, captioner)
    done = search.update()
    assert counts(done) == (2, 0, 0, 0)
    assert sorted(done.fresh) == [b"broken.jpg", b"gone.jpg", b"page.png"]
    assert done.fresh[b"gone.jpg"] == "cannot be read: No such file or directory"
    assert "web page" in done.fresh[b"page.png"]
    looked_at.clear()
    done = search.update()
    assert looked_at == [b"gone.jpg"]  # nobody can tell whether a dangling link still dangles
    assert len(done.skipped) == 3
    assert done.fresh == {}
    photo(folder / "page.png", 5)
    assert counts(search.update()) == (1, 0, 0, 2)
    (folder / "broken.jpg").unlink()
    assert set(search.update().skipped) == {b"gone.jpg"}


def test_a_photo_that_became_unreadable_is_found_no_more(photos: Photos, captioner: Captioner) -> None:
    folder = photos(2)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    (folder / "1.png").write_bytes(b"oops")
    assert list(search.update().fresh) == [b"1.png"]
    assert names(search) == ["0.png"]


def test_links_to_folders_lead_in_no_circles(photos: Photos, captioner: Captioner) -> None:
    folder = photos(2)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "self.png").symlink_to(folder / "self.png")
    (folder / "linked.png").symlink_to(folder / "0.png")
    search = PhotoSearch.open(folder, captioner)
    done = search.update()
    assert done.added == 3
    assert names(search) == ["0.png", "1.png", "linked.png"]
    assert "symbolic links" in done.fresh[b"self.png"].lower()


def test_names_may_be_any_bytes(photos: Photos, captioner: Captioner) -> None:
    folder = photos(1)
    odd = os.fsencode(folder) + b"/caf\xe9\n.png"
    shutil.copy(folder / "0.png", odd)
    search = PhotoSearch.open(folder, captioner)
    assert search.update().added == 2
    assert search.update().kept == 2
    assert odd in {os.fsencode(one.path) for one in search.search("a dog").found}


def test_a_photo_replaced_while_it_is_being_read_is_read_again(
    photos: Photos, captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(1)
    new = photo(folder.parent / "elsewhere" / "new.png", 77)
    real = updates.read_path
    calls = []

    def read(path: Path, *rest: object) -> bytes:
        data = real(path, *rest)  # type: ignore[arg-type]
        calls.append(path)
        if len(calls) == 1:
            os.replace(new, path)  # noqa: PTH105
        return data

    monkeypatch.setattr(updates, "read_path", read)
    search = PhotoSearch.open(folder, captioner)
    assert search.update().added == 1
    assert len(calls) == 2
    assert search.search("a dog").found[0].caption == captioner.caption(folder / "0.png").text
    assert search.update().kept == 1


def test_a_photo_that_never_rests_is_skipped_until_it_does(
    photos: Photos, captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(2)
    real = updates.read_path

    def read(path: Path, *rest: object) -> bytes:
        data = real(path, *rest)  # type: ignore[arg-type]
        if path.name == "1.png":
            path.write_bytes(data + b"\0")
        return data

    monkeypatch.setattr(updates, "read_path", read)
    search = PhotoSearch.open(folder, captioner)
    done = search.update()
    assert done.fresh == {b"1.png": "changed while it was being read; the next update tries it again"}
    monkeypatch.setattr(updates, "read_path", real)
    assert search.update().added == 1


def test_an_empty_folder_does_not_empty_the_index(photos: Photos, captioner: Captioner) -> None:
    """As when a drive is not mounted."""
    folder = photos(2)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(
        SearchError, match="contains no pictures, but its index has 2; is a drive not mounted"
    ) as caught:
        search.update()
    assert "\n" not in str(caught.value)
    assert len(PhotoSearch.open(folder, captioner)) == 2


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_not_forgotten(photos: Photos, captioner: Captioner) -> None:
    folder = photos(1)
    photo(folder / "closed" / "a.png", 9)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    (folder / "closed").chmod(0)
    lines: list[str] = []
    try:
        assert counts(search.update(problem=lines.append)) == (0, 0, 0, 2)
    finally:
        (folder / "closed").chmod(0o755)
    assert len(lines) == 1


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "damaged: expected"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "damaged: the header is longer than the file"),
        (lambda path: path.unlink(), "missing, although the index lists it"),
    ],
    ids=["short", "overwritten", "missing"],
)
def test_a_damaged_shard_is_made_again(
    photos: Photos, captioner: Captioner, harm: Callable[[Path], object], said: str
) -> None:
    folder = photos(3)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    before = [one.name for one in search.search("a dog").found]
    harm(shards(search)[0])
    fresh = PhotoSearch.open(folder, captioner)
    with pytest.raises(SearchError, match=said) as caught:
        fresh.search("a dog")
    assert str(caught.value).endswith("; search without --no-update to repair the index")
    assert "\n" not in str(caught.value)
    lines: list[str] = []
    assert counts(fresh.update(problem=lines.append)) == (3, 0, 0, 0)
    assert len(lines) == 1
    assert said in lines[0]
    assert lines[0].endswith("; its pictures are indexed again")
    assert [one.name for one in fresh.search("a dog").found] == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "other"}', None])
def test_a_damaged_manifest_is_put_together_again(
    photos: Photos, captioner: Captioner, looked_at: list[bytes], content: bytes | None
) -> None:
    folder = photos(3)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    manifest = search.place / "index.json"
    if content is None:
        manifest.unlink()
    else:
        manifest.write_bytes(content)
    looked_at.clear()
    lines: list[str] = []
    assert counts(search.update(problem=lines.append)) == (0, 0, 0, 3)
    assert len(lines) == 1
    assert lines[0].endswith("; it is rebuilt from the parts of the index")
    assert looked_at == []
    assert len(PhotoSearch.open(folder, captioner)) == 3


def test_nonsense_in_the_manifest_is_damage_too(photos: Photos, captioner: Captioner) -> None:
    folder = photos(2)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    manifest = search.place / "index.json"
    good = json.loads(manifest.read_text())
    for change in ({"shards": 3}, {"shards": [{}]}, {"next": None}, {"skipped": [1]}):
        manifest.write_text(json.dumps({**good, **change}))
        lines: list[str] = []
        assert search.update(problem=lines.append).kept == 2
        assert len(lines) == 1
    good["shards"][0]["file"] = "../../elsewhere.safetensors"
    manifest.write_text(json.dumps(good))
    assert search.update(problem=lines.append).kept == 2
    assert "is not the name of a shard" in lines[-1]
    manifest.write_text(json.dumps({**good, "version": 9}))
    with pytest.raises(SearchError, match="index version 9, expected 1; remove it with --forget, or update xlan"):
        search.update()


def test_a_damaged_record_is_one_line(photos: Photos, captioner: Captioner) -> None:
    folder = photos(2)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    (file,) = shards(search)
    data = bytearray(file.read_bytes())
    half = len(data) // 2
    data[half:] = bytes(len(data) - half)
    file.write_bytes(data)
    with pytest.raises(SearchError, match=r"the record of b'1\.png' is damaged.*--rebuild") as caught:
        PhotoSearch.open(folder, captioner).search("a dog")
    assert "\n" not in str(caught.value)
    assert search.update(rebuild=True).added == 2
    assert len(search.search("a dog").found) == 2


def test_what_another_process_indexed_is_taken_over(photos: Photos, captioner: Captioner) -> None:
    folder = photos(2)
    here, there = PhotoSearch.open(folder, captioner), PhotoSearch.open(folder, captioner)
    assert not here.refresh()  # there is no index yet
    there.update()
    assert here.refresh()
    began = here.ranker
    key = here.search("a dog").found[0].key
    assert not here.refresh()
    there.update()  # finds nothing new
    assert not here.refresh()
    for number in (0, 1):
        (folder / f"{number}.png").unlink()
    photo(folder / "2.png", 2)
    there.update()  # the shard of the others is gone
    assert here.refresh()
    assert names(here) == ["2.png"]
    assert here.photo(key) is None
    query = here.search("a dog").query
    assert len(began.rank(query, count=5)) == 2  # a search that began before
    before = here.ranker
    here.update()
    assert here.ranker is before  # nothing has changed
    shutil.rmtree(here.place)
    assert not here.refresh()
    assert names(here) == ["2.png"]
    here.update()
    (here.place / "index.json").write_text("{")
    with pytest.raises(SearchError, match="not valid JSON"):
        here.refresh()
    assert names(here) == ["2.png"]


def test_photos_of_a_drive_that_is_pulled_out_are_tried_again(
    photos: Photos, captioner: Captioner, tmp_path: Path
) -> None:
    folder = photos(3)
    search = PhotoSearch.open(folder, captioner)

    def pull_out(done: int, total: int) -> None:
        if not done:
            folder.rename(tmp_path / "elsewhere")

    done = search.update(progress=pull_out)
    assert sorted(done.fresh) == [b"0.png", b"1.png", b"2.png"]
    (tmp_path / "elsewhere").rename(folder)
    assert counts(search.update()) == (3, 0, 0, 0)


def test_a_drive_that_goes_while_it_is_looked_at_takes_nothing_along(
    photos: Photos, captioner: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(3)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    real = updates._survey

    def survey(*arguments: Path) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        folder.rename(tmp_path / "elsewhere")
        photo(folder / "0.png", 0)
        return {b"0.png": found[b"0.png"]}

    with monkeypatch.context() as patch:
        patch.setattr(updates, "_survey", survey)
        with pytest.raises(SearchError, match="photos: was replaced while it was being read; try again"):
            search.update()
    assert len(PhotoSearch.open(folder, captioner)) == 3


def test_another_model_makes_the_index_anew(
    photos: Photos, captioner: Captioner, seeing: Captioner, tmp_path: Path
) -> None:
    folder = photos(2)
    first = PhotoSearch.open(folder, captioner, place=tmp_path / "index")
    first.update()
    other = PhotoSearch.open(folder, seeing, place=tmp_path / "index")
    with pytest.raises(SearchError, match="was made with another model"):
        other.search("a dog")
    lines: list[str] = []
    assert counts(other.update(problem=lines.append)) == (2, 0, 0, 0)
    assert lines == [f"{tmp_path / 'index'}: was made with another model and is rebuilt"]
    assert len(shards(other)) == 1
    assert PhotoSearch.open(folder, captioner).place != PhotoSearch.open(folder, seeing).place


def test_folders_of_others_are_not_written_to(photos: Photos, captioner: Captioner, tmp_path: Path) -> None:
    folder = photos(1)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis.txt").write_text("years of work")
    with pytest.raises(SearchError, match=r"expected an empty folder or an index, but it holds 'thesis\.txt'"):
        PhotoSearch.open(folder, captioner, place=tmp_path / "docs").update()
    with pytest.raises(SearchError, match=r"not removed: expected an index, but it holds 'thesis\.txt'"):
        forget(folder, tmp_path / "docs")
    search = PhotoSearch.open(folder, captioner, place=tmp_path / "index")
    search.update()
    with pytest.raises(SearchError, match="is the index of another folder; name another place with --index"):
        PhotoSearch.open(photos(1, "others"), captioner, place=tmp_path / "index").update()


def test_indexes_can_be_forgotten(photos: Photos, captioner: Captioner, seeing: Captioner, cache: Path) -> None:
    folder, other = photos(1), photos(1, "others")
    for place, model in ((folder, captioner), (folder, seeing), (other, captioner)):
        PhotoSearch.open(place, model).update()
    assert forget(folder) == 2
    assert forget(folder) == 0
    assert len(list(cache.rglob("index.json"))) == 1


def test_a_full_disk_is_one_line_and_nothing_is_lost(
    photos: Photos, captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(4)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    for number in range(4, 8):
        photo(folder / f"{number}.png", number)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(path: Path, *rest: object) -> int:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(indexes, "write_shard", write)
        with pytest.raises(
            SearchError, match="cannot be written: No space left on device; photos indexed so far are kept"
        ) as e:
            search.update()
    assert "\n" not in str(e.value)
    assert len(PhotoSearch.open(folder, captioner)) == 4
    assert counts(search.update()) == (4, 0, 0, 4)


def test_joining_needs_no_room(photos: Photos, captioner: Captioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small shards instead of a large one are as good."""
    folder = photos(1)
    search = PhotoSearch.open(folder, captioner)
    search.update()
    photo(folder / "1.png", 1)
    real, calls = indexes.write_shard, []

    def write(path: Path, *rest: object) -> int:
        calls.append(path)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(indexes, "write_shard", write)
    assert search.update().added == 1
    assert len(calls) == 2
    assert len(PhotoSearch.open(folder, captioner)) == 2


def test_two_writers_do_not_meet(photos: Photos, captioner: Captioner) -> None:
    pytest.importorskip("fcntl")
    search = PhotoSearch.open(photos(1), captioner)
    search.update()
    lock = open_locked(search.place / ".writing.lock")
    try:
        with pytest.raises(BusyIndexError, match="another process is changing this index; wait for it"):
            search.update()
    finally:
        os.close(lock)
    assert search.update().kept == 1


def test_an_interrupted_update_keeps_what_is_done(photos: Photos, captioner: Captioner, looked_at: list[bytes]) -> None:
    search = PhotoSearch.open(photos(6), captioner)

    def stop(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search.update(progress=stop, batch_size=2)
    assert len(PhotoSearch.open(search.folder, captioner)) == 4
    assert counts(search.update()) == (2, 0, 0, 4)


CHILD = """
import sys
from xlan.pipeline import Captioner
from xlan.search import PhotoSearch, update
update.PICTURES_PER_FLUSH = 2
model, folder, place = sys.argv[1:]
captioner = Captioner.from_pretrained(model, engine="onnx", threads=1)
def move(done, total):
    print(done, flush=True)
    if done >= 6:
        import time
        time.sleep(60)
PhotoSearch.open(folder, captioner, place=place).update(progress=move, batch_size=1, threads=1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_update_goes_on_where_it_was(
    photos: Photos, captioner: Captioner, model_directory: Path, tmp_path: Path, looked_at: list[bytes]
) -> None:
    folder, place = photos(9), tmp_path / "index"
    command = [sys.executable, "-c", CHILD, str(model_directory), str(folder), str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "6":
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
    search = PhotoSearch.open(folder, captioner, place=place)
    (place / ".photos-00099.safetensors.abc.tmp").write_bytes(b"half a shard")
    done = search.update()
    assert done.kept >= 4
    assert done.kept + done.added == 9
    assert len(looked_at) == done.added
    assert not list(place.glob(".*.tmp"))
    assert len(search.search("a dog").found) == 9
