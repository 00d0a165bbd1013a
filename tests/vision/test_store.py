"""The feature store keeps what it is given, survives a kill at any point, and says what is wrong with a bad
one."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors import safe_open

from xlan.errors import FeatureError
from xlan.types import Regions
from xlan.vision import store as store_module
from xlan.vision.shards import _convert, from_8_bits, to_8_bits
from xlan.vision.store import FeatureStore, FeatureStoreWriter


def regions(count: int = 3, width: int = 4, *, seed: int = 0, scores: bool = False, size: int = 0) -> Regions:
    random = np.random.default_rng(seed)
    corners = np.sort(random.random((count, 2, 2)), axis=1).reshape(count, 4)
    return Regions(
        features=random.standard_normal((count, width)).astype(np.float32),
        boxes=corners.astype(np.float32),
        scores=random.random(count).astype(np.float32) if scores else None,
        width=size,
        height=size // 2,
    )


def write(path: Path, items: dict[str, Regions], **options: Any) -> FeatureStore:
    with FeatureStoreWriter(path, **options) as writer:
        for image_id, item in items.items():
            writer.add(image_id, item)
    return FeatureStore(path)


def assert_same(got: Regions, given_: Regions, dtype: str) -> None:
    np.testing.assert_array_equal(got.features, given_.features.astype(dtype))
    np.testing.assert_array_equal(got.boxes, given_.boxes)
    assert (got.scores is None) == (given_.scores is None)
    if got.scores is not None:
        np.testing.assert_array_equal(got.scores, given_.scores)
    assert (got.width, got.height) == (given_.width, given_.height)


ids = st.lists(st.text(min_size=1, max_size=12), unique=True, min_size=1, max_size=8)


@settings(deadline=None, max_examples=40)
@given(
    ids=ids,
    counts=st.lists(st.integers(1, 6), min_size=8, max_size=8),
    dtype=st.sampled_from(["float16", "float32"]),
    shard_bytes=st.sampled_from([1, 60, 1 << 20]),
    scores=st.booleans(),
)
def test_what_is_written_is_read(ids: list[str], counts: list[int], dtype: Any, shard_bytes: int, scores: bool) -> None:
    surrogates = [i for i in ids if not i.isprintable() and any("\ud800" <= c <= "\udfff" for c in i)]
    ids = [i for i in ids if i not in surrogates]
    items = {i: regions(n, seed=k, scores=scores, size=k) for k, (i, n) in enumerate(zip(ids, counts, strict=False))}
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder) / "s", items, dtype=dtype, shard_bytes=shard_bytes)
        assert list(store) == list(items)
        assert store.complete
        for image_id, item in items.items():
            assert_same(store[image_id], item, dtype)
            assert store.region_count(image_id) == len(item)
        assert [fault for _, fault in store.verify()] == [None] * len(store.shards)


@settings(deadline=None, max_examples=100)
@given(
    features=arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 9)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False) | st.floats(0, 6, width=32),
    )
)
def test_8_bits_are_off_by_half_a_step_at_most(features: npt.NDArray[np.float32]) -> None:
    codes, steps = to_8_bits(features)
    assert codes.dtype == np.uint8
    low, high = features.min(axis=1, keepdims=True), features.max(axis=1, keepdims=True)
    half_a_step = (high.astype(np.float64) - low) / 510
    rounding = 8 * np.finfo(np.float32).eps * np.maximum(np.abs(low), np.abs(high)) + 1e-36
    assert (np.abs(from_8_bits(codes, steps).astype(np.float64) - features) <= half_a_step + rounding).all()
    assert (from_8_bits(codes, steps)[features == low] == np.broadcast_to(low, features.shape)[features == low]).all()


def test_a_store_of_8_bits(tmp_path: Path) -> None:
    items = {str(i): regions(3 + i, width=64, seed=i, scores=True) for i in range(4)}
    store = write(tmp_path / "s", dict(list(items.items())[:2]), dtype="int8", shard_bytes=1)
    assert store.shards[0].bytes < write(tmp_path / "half", items, dtype="float16", shard_bytes=1).shards[0].bytes
    store = write(tmp_path / "s", dict(list(items.items())[2:]), dtype="int8")  # resumed
    assert [fault for _, fault in store.verify()] == [None] * 3
    assert (store.dtype, store["0"].features.dtype) == ("int8", np.float32)
    for image_id, item in items.items():
        reach = item.features.max(axis=1, keepdims=True) - item.features.min(axis=1, keepdims=True)
        assert (np.abs(store[image_id].features - item.features) <= reach / 509).all()
        assert_same(replace(store[image_id], features=item.features), item, "float32")
    with pytest.raises(FeatureError, match="holds int8 features"):
        FeatureStoreWriter(tmp_path / "s", dtype="float16")
    with pytest.raises(FeatureError, match=r"a feature of 3e\+38 does not fit int8; use float32"):
        write(tmp_path / "big", {"a": Regions(np.full((1, 2), 3e38, np.float32), items["0"].boxes[:1])}, dtype="int8")


def test_facts_of_a_store(tmp_path: Path) -> None:
    store = write(tmp_path / "s", {"a": regions(), "b": regions(5)}, extractor={"name": "test", "grid": [7, 7]})
    assert (len(store), store.feature_dim, store.dtype, list(store.ids)) == (2, 4, "float16", ["a", "b"])
    assert store.extractor == {"name": "test", "grid": [7, 7]}
    assert "a" in store
    assert "c" not in store
    assert not store["a"].features.flags.writeable


def test_any_safetensors_reader_opens_a_shard(tmp_path: Path) -> None:
    item = regions(3)
    store = write(tmp_path / "s", {"a": item}, dtype="float32")
    with safe_open(tmp_path / "s" / store.shards[0].file, framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("features"), item.features)
        np.testing.assert_array_equal(file.get_tensor("offsets"), [0, 3])
        assert json.loads(file.metadata()["ids"]) == ["a"]


def test_the_writer_keeps_its_own_copy(tmp_path: Path) -> None:
    item = regions()
    before = item.features.copy()
    with FeatureStoreWriter(tmp_path / "s", dtype="float32") as writer:
        writer.add("a", item)
        item.features[:] = 0
    np.testing.assert_array_equal(FeatureStore(tmp_path / "s")["a"].features, before)


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    store = write(tmp_path / "s", {"a": regions()})
    with pytest.raises(FeatureError, match="no features for image 'z' among 1 images"):
        store["z"]


BAD = {
    "one dimension": (Regions(np.zeros(4, np.float32), np.zeros((4, 4), np.float32)), r"floats \[regions, width\]"),
    "integers": (Regions(np.zeros((2, 4), np.int32), np.zeros((2, 4), np.float32)), "got int32"),  # type: ignore[arg-type]
    "no regions": (Regions(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)), "has no regions"),
    "other width": (regions(2, 5), "features are 5 wide, expected 4"),
    "nan": (Regions(np.full((1, 4), np.nan, np.float32), np.zeros((1, 4), np.float32)), "not finite"),
    "too big": (
        Regions(np.full((1, 4), 1e6, np.float32), np.zeros((1, 4), np.float32)),
        "1e\\+06 does not fit float16",
    ),
    "box count": (Regions(np.zeros((2, 4), np.float32), np.zeros((1, 4), np.float32)), r"finite numbers \[2, 4\]"),
    "box pixels": (
        Regions(np.zeros((1, 4), np.float32), np.full((1, 4), 90.0, np.float32)),
        "fractions of the picture",
    ),
    "box order": (Regions(np.zeros((1, 4), np.float32), np.array([[0.5, 0, 0.1, 1]], np.float32)), "x0 ≤ x1"),
    "scores": (Regions(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32), np.zeros(3, np.float32)), "scores"),
    "size": (Regions(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32), None, -1, 5), "-1 × 5 is impossible"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_regions_are_refused_and_leave_the_store_as_it_was(tmp_path: Path, case: str) -> None:
    item, message = BAD[case]
    with FeatureStoreWriter(tmp_path / "s") as writer:
        writer.add("good", regions())
        with pytest.raises(FeatureError, match=f"image 'bad': .*{message}"):
            writer.add("bad", item)
        assert "bad" not in writer
    assert list(FeatureStore(tmp_path / "s")) == ["good"]


def test_an_id_is_added_once(tmp_path: Path) -> None:
    with FeatureStoreWriter(tmp_path / "s") as writer:
        writer.add("a", regions())
        with pytest.raises(FeatureError, match="'a' is already in the store"):
            writer.add("a", regions())


@pytest.mark.parametrize("bad", ["", 7, None])
def test_an_id_is_text(tmp_path: Path, bad: Any) -> None:
    with FeatureStoreWriter(tmp_path / "s") as writer, pytest.raises(FeatureError, match="not empty"):
        writer.add(bad, regions())


def test_a_closed_writer_refuses(tmp_path: Path) -> None:
    writer = FeatureStoreWriter(tmp_path / "s")
    writer.close()
    writer.close()
    with pytest.raises(FeatureError, match="closed"):
        writer.add("a", regions())


def test_boxes_that_leave_the_picture_by_rounding_are_clipped(tmp_path: Path) -> None:
    item = Regions(np.zeros((1, 4), np.float32), np.array([[-0.0005, 0, 1.0005, 1]], np.float32))
    store = write(tmp_path / "s", {"a": item})
    np.testing.assert_array_equal(store["a"].boxes, [[0, 0, 1, 1]])


# --- going on after an interruption
# --------------------------------------------------------------------------------


def test_a_second_writer_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "s", {"a": regions(seed=1)})
    with FeatureStoreWriter(tmp_path / "s") as writer:
        assert writer.done_ids == {"a"}
        writer.add("b", regions(seed=2))
    store = FeatureStore(tmp_path / "s")
    assert list(store) == ["a", "b"]
    assert len(store.shards) == 2


def test_an_exception_keeps_what_was_added_and_leaves_the_store_incomplete(tmp_path: Path) -> None:
    def fail() -> None:
        with FeatureStoreWriter(tmp_path / "s") as writer:
            writer.add("a", regions())
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    store = FeatureStore(tmp_path / "s")
    assert list(store) == ["a"]
    assert not store.complete


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "holds float16 features, cannot continue with float32"),
        ({"extractor": {"name": "other"}}, "was made with extractor"),
    ],
)
def test_going_on_differently_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write(tmp_path / "s", {"a": regions()})
    with pytest.raises(FeatureError, match=message):
        FeatureStoreWriter(tmp_path / "s", **options)


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    with (
        FeatureStoreWriter(tmp_path / "s"),
        pytest.raises(FeatureError, match="another process is writing to this store"),
    ):
        FeatureStoreWriter(tmp_path / "s")


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(FeatureError, match=r"holds 'holiday.jpg'"):
        FeatureStoreWriter(tmp_path)


class Killed(BaseException):
    """Stands for the process ending at this instruction."""


def test_a_kill_at_any_write_loses_at_most_the_open_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die before or after each write of the writer in turn; the next writer ends with the same store."""
    items = {str(k): regions(2, seed=k) for k in range(5)}
    points = 0
    for point in range(100):
        path = tmp_path / str(point)
        calls = 0

        def dying(real: Any, *, point: int = point) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal calls
                if calls == point:
                    raise Killed
                calls += 1
                result = real(*args, **options)
                if calls == point:
                    raise Killed
                calls += 1
                return result

            return call

        with monkeypatch.context() as patch:
            for name in ("write_shard", "write_json"):
                patch.setattr(store_module, name, dying(getattr(store_module, name)))
            writer = None
            try:
                writer = FeatureStoreWriter(path, shard_bytes=20)
                for image_id, item in items.items():
                    writer.add(image_id, item)
                writer.close()
                break
            except Killed:
                points += 1
                if writer is not None:
                    writer._release()  # the system does this when a process ends
        if (path / "index.json").exists():
            assert all(fault is None for _, fault in FeatureStore(path).verify())
        with FeatureStoreWriter(path, shard_bytes=20) as second:
            done = second.done_ids
            for image_id in items.keys() - done:
                second.add(image_id, items[image_id])
        store = FeatureStore(path)
        assert set(store) == set(items)
        for image_id, item in items.items():
            assert_same(store[image_id], item, "float16")
    assert points >= 10


WRITER = """
import sys, numpy as np
from xlan.types import Regions
from xlan.vision.store import FeatureStoreWriter
writer = FeatureStoreWriter(sys.argv[1], shard_bytes=4000)
k = len(writer)
while True:
    item = Regions(np.full((10, 64), k % 7, np.float32), np.zeros((10, 4), np.float32))
    writer.add(str(k), item)
    k += 1
    print(k, flush=True)
"""


@pytest.mark.slow
def test_a_real_kill_leaves_a_whole_store(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for stop in (7, 20):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process:
            for _ in range(stop):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    store = FeatureStore(path)
    assert list(store) == [str(k) for k in range(len(store))]
    assert len(store) >= 9
    assert all(fault is None for _, fault in store.verify())
    assert (store["5"].features == 5).all()


def test_leftovers_of_a_killed_writer_go_away(tmp_path: Path) -> None:
    write(tmp_path / "s", {"a": regions()})
    (tmp_path / "s" / ".features-00001.safetensors.abc.tmp").write_bytes(b"half")
    (tmp_path / "s" / "features-00001.safetensors").write_bytes(b"renamed, but not yet in the index")
    FeatureStoreWriter(tmp_path / "s").close()
    assert sorted(item.name for item in (tmp_path / "s").iterdir()) == [
        ".writing.lock",
        "features-00000.safetensors",
        "index.json",
    ]


def test_a_full_disk_gives_one_line_and_keeps_the_shards_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = FeatureStoreWriter(tmp_path / "s", shard_bytes=1)
    writer.add("a", regions())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "write_shard", full)
    with pytest.raises(FeatureError, match="cannot be written: No space left on device"):
        writer.add("b", regions())
    assert list(FeatureStore(tmp_path / "s")) == ["a"]


def test_a_folder_that_cannot_be_written_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FeatureError, match="cannot be written: Not a directory"):
        FeatureStoreWriter(tmp_path / "file" / "s")


# --- reading bad stores
# --------------------------------------------------------------------------------------------


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match=r"not a feature store .no such folder.; make one with: xlan features"):
        FeatureStore(tmp_path / "none")
    with pytest.raises(FeatureError, match=r"no index.json in it"):
        FeatureStore(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "zip"}, "not the index of a feature store"),
        ({"version": 9}, "store version 9, expected 1; update xlan"),
        ({"dtype": "int4"}, "dtype must be one of float16, float32, int8"),
        ({"dtype": 3}, "'dtype' must be a str, got 3"),
        ({"width": "wide"}, "'width' must be a int"),
        ({"shards": [{}]}, "each shard needs file, bytes, sha256, images, regions"),
        ({"width": 5}, "expected float16 features of width 5, got float16 of width 4"),
        ({"dtype": "float32"}, "expected float32 features of width 4, got float16"),
    ],
)
def test_a_bad_index_is_explained(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path / "s", {"a": regions()})
    index = tmp_path / "s" / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    with pytest.raises(FeatureError, match=message):
        FeatureStore(tmp_path / "s")


def test_a_shard_name_may_not_leave_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "s", {"a": regions()})
    index = tmp_path / "s" / "index.json"
    index.write_text(index.read_text().replace("features-00000", "../features-00000"))
    with pytest.raises(FeatureError, match="not a plain file name"):
        FeatureStore(tmp_path / "s")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    store = write(tmp_path / "s", {"a": regions()})
    (tmp_path / "s" / store.shards[0].file).unlink()
    with pytest.raises(FeatureError, match=r"features-00000.safetensors: the index names this shard, but"):
        FeatureStore(tmp_path / "s")


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_shard_of_any_other_bytes_is_refused_or_found_by_verify(data: st.DataObject) -> None:
    """Cut, or changed in one byte, or replaced: reading says so, or else `verify` does."""
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder) / "s", {"a": regions(), "b": regions(2)})
        shard = Path(folder) / "s" / store.shards[0].file
        whole = shard.read_bytes()
        kind = data.draw(st.sampled_from(["cut", "byte", "foreign"]))
        at = data.draw(st.integers(0, len(whole) - 1))
        del store
        if kind == "cut":
            shard.write_bytes(whole[:at])
        elif kind == "byte":
            shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        else:
            shard.write_bytes(data.draw(st.binary(min_size=len(whole), max_size=len(whole))))
        message = _complaint(Path(folder) / "s")
        assert str(shard) in message
        assert kind != "cut" or "bytes, got" in message


def _complaint(path: Path) -> str:
    try:
        return next(fault for _, fault in FeatureStore(path).verify() if fault)
    except FeatureError as error:
        return str(error)


def test_an_image_in_two_shards_is_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "s", {"a": regions(), "b": regions()}, shard_bytes=1)
    first, second = (tmp_path / "s" / shard.file for shard in store.shards)
    second.write_bytes(first.read_bytes())
    with pytest.raises(FeatureError, match="an image is in more than one shard"):
        FeatureStore(tmp_path / "s")


# --- many readers
# --------------------------------------------------------------------------------------------------


def _sum(store: FeatureStore, image_id: str) -> float:
    return float(store[image_id].features.astype(np.float64).sum())


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes_read_the_same(tmp_path: Path, method: str) -> None:
    store = write(tmp_path / "s", {str(k): regions(seed=k) for k in range(6)}, shard_bytes=50)
    with multiprocessing.get_context(method).Pool(2) as pool:
        got = pool.starmap(_sum, [(store, image_id) for image_id in store])
    assert got == [_sum(store, image_id) for image_id in store]


def test_a_pickled_store_carries_no_features(tmp_path: Path) -> None:
    store = write(tmp_path / "s", {str(k): regions(50, 64, seed=k) for k in range(20)})
    assert len(pickle.dumps(store)) < 2000


def test_without_torch_the_same_numbers_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(0).lognormal(sigma=5, size=(40, 50)).astype(np.float32)
    with_torch = _convert(features, "float16")
    assert np.isinf(with_torch).any()  # some are too large for 16 bits
    monkeypatch.setitem(sys.modules, "torch", None)  # from here on, importing it fails
    np.testing.assert_array_equal(_convert(features, "float16"), with_torch)
