"""Features of the field are imported; what is damaged or hostile is left out, with its reason on record."""

from __future__ import annotations

import base64
import io
import json
import struct
import sys
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.data.importers.arrays import read_npy, read_npz
from xlan.data.importers.run import import_features
from xlan.errors import FeatureError
from xlan.vision.store import FeatureStore

WIDTH = 5


def features(count: int = 3, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def pixels(count: int = 3) -> npt.NDArray[np.float32]:
    """Boxes in a picture of 100 × 50 pixels."""
    return np.tile(np.array([[10, 10, 90, 40]], np.float32), (count, 1))


FRACTIONS = [[0.1, 0.2, 0.9, 0.8]]
WHOLE = [[0, 0, 1, 1]]


def tsv_line(
    image_id: str, feats: npt.NDArray[np.float32], boxes: npt.NDArray[np.float32], count: int | None = None
) -> str:
    arrays_ = [base64.b64encode(array.tobytes()).decode() for array in (boxes, feats)]
    return "\t".join([image_id, "100", "50", str(len(feats) if count is None else count), *arrays_]) + "\n"


def npz(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **content)


def npy(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, content)


def load(source: Path, **options: Any) -> tuple[Any, FeatureStore]:
    with tempfile.TemporaryDirectory() as folder:
        report = import_features(source, Path(folder) / "store", **({"dtype": "float32"} | options))
        assert json.loads((Path(folder) / "store" / "import-report.json").read_text())["imported"] == report.imported
        return report, FeatureStore(Path(folder) / "store")


def reasons(report: Any) -> list[str]:
    return [bad.reason for bad in report.left_out]


# --- every form ----------------------------------------------------------------------------------------------------


def test_bottom_up_tsv_with_any_number_of_boxes(tmp_path: Path) -> None:
    path = tmp_path / "trainval_36.tsv"
    path.write_text("".join(tsv_line(str(n), features(n, n), pixels(n)) for n in (2, 36, 100)))
    report, store = load(path)
    assert (report.imported, report.form, report.left_out) == (3, "bottom-up TSV", [])
    for n in (2, 36, 100):
        np.testing.assert_array_equal(store[str(n)].features, features(n, n))
        np.testing.assert_allclose(store[str(n)].boxes, FRACTIONS * n)
        assert (store[str(n)].width, store[str(n)].height) == (100, 50)


def test_tsv_in_parts(tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"karpathy_train.tsv.{part}").write_text(tsv_line(str(part), features(), pixels()))
    _, store = load(tmp_path)
    assert list(store) == ["0", "1", "2"]


def test_lxmerts_tsv_has_scores(tmp_path: Path) -> None:
    confidence = np.array([0.9, 0.8, 0.7], np.float32)
    code = [base64.b64encode(array.tobytes()).decode() for array in (confidence, pixels(), features())]
    columns = ["COCO_1", "50", "100", "", code[0], "", "", "3", code[1], code[2]]
    (tmp_path / "train2014_obj36.tsv").write_text("\t".join(columns) + "\n")
    _, store = load(tmp_path / "train2014_obj36.tsv")
    np.testing.assert_array_equal(store["COCO_1"].scores, confidence)
    np.testing.assert_allclose(store["COCO_1"].boxes, FRACTIONS * 3)


def test_the_authors_layout(tmp_path: Path) -> None:
    for n in (1, 4):
        npz(tmp_path / f"{n}.npz", feat=features(n, n))
    report, store = load(tmp_path)
    assert (report.imported, report.without_boxes) == (2, 2)
    np.testing.assert_array_equal(store["4"].features, features(4, 4))
    np.testing.assert_array_equal(store["4"].boxes, WHOLE * 4)


@pytest.mark.parametrize(
    "content",
    [
        {"x": features(), "bbox": pixels(), "image_w": 100, "image_h": 50, "num_bbox": 3},
        {"x": features().T, "bbox": pixels(), "image_w": 100, "image_h": 50},
        {"features": features().astype(np.float64), "boxes": np.tile(np.array(FRACTIONS), (3, 1))},
        {"x": features(), "bbox": pixels(), "image_w": 100, "image_h": 50, "info": np.array({"pickled": 1}, object)},
        {
            "x": np.concatenate([features(), np.zeros((4, WIDTH), np.float32)]),
            "bbox": np.concatenate([pixels(), np.zeros((4, 4), np.float32)]),
            "num_bbox": 3,
            "image_w": 100,
            "image_h": 50,
        },
        {"feat": np.asfortranarray(features()), "bbox": pixels().astype(np.int64), "width": 100, "height": 50},
    ],
    ids=["milvlg", "transposed", "float64", "object beside", "padded", "fortran"],
)
def test_npz_as_tools_write_it(tmp_path: Path, content: dict[str, Any]) -> None:
    npz(tmp_path / "9.npz", **content)
    report, store = load(tmp_path)
    assert (report.imported, report.without_boxes) == (1, 0)
    np.testing.assert_array_equal(store["9"].features, features())
    np.testing.assert_allclose(store["9"].boxes, FRACTIONS * 3)


def test_uncompressed_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "9.npz", feat=features())
    np.testing.assert_array_equal(load(tmp_path)[1]["9"].features, features())


def test_npy_with_boxes_beside(tmp_path: Path) -> None:
    npy(tmp_path / "7.npy", features())
    npy(tmp_path / "7_boxes.npy", np.array(FRACTIONS * 3))
    report, store = load(tmp_path)
    assert list(store) == ["7"]
    assert report.without_boxes == 0
    np.testing.assert_allclose(store["7"].boxes, FRACTIONS * 3)


def test_boxes_in_a_folder_of_their_own(tmp_path: Path) -> None:
    npz(tmp_path / "cocobu_att" / "7.npz", feat=features())
    npz(tmp_path / "cocobu_att" / "8.npz", feat=features())
    npy(tmp_path / "cocobu_box" / "7.npy", np.array(FRACTIONS * 3))
    report, store = load(tmp_path / "cocobu_att", boxes=tmp_path / "cocobu_box")
    np.testing.assert_allclose(store["7"].boxes, FRACTIONS * 3)
    assert reasons(report) == [f"no boxes for it: {tmp_path / 'cocobu_box' / '8.npy'} is missing"]


def test_a_grid_gets_the_boxes_of_its_cells(tmp_path: Path) -> None:
    grid = np.arange(2 * 3 * WIDTH, dtype=np.float32).reshape(2, 3, WIDTH)
    npy(tmp_path / "7.npy", grid)
    _, store = load(tmp_path)
    np.testing.assert_array_equal(store["7"].features, grid.reshape(6, WIDTH))
    np.testing.assert_allclose(store["7"].boxes[4], [1 / 3, 1 / 2, 2 / 3, 1])


def test_sub_folders_give_ids_that_stay_apart(tmp_path: Path) -> None:
    for folder, name in (("train2014", "1"), ("val2014", "2")):
        npz(tmp_path / "a" / folder / f"{name}.npz", feat=features())
        npz(tmp_path / "b" / folder / "1.npz", feat=features())
    assert list(load(tmp_path / "a")[1]) == ["1", "2"]
    assert list(load(tmp_path / "b")[1]) == ["train2014/1", "val2014/1"]


@pytest.mark.parametrize("layout", ["pairs", "groups", "plain"])
def test_hdf5(tmp_path: Path, layout: str) -> None:
    with h5py.File(tmp_path / "coco_detections.hdf5", "w") as file:
        for n in (2, 3):
            names = {
                "pairs": (f"{n}_features", f"{n}_boxes"),
                "groups": (f"{n}/features", f"{n}/boxes"),
                "plain": (f"{n}", ""),
            }
            features_name, boxes_name = names[layout]
            file[features_name] = features(n, n)
            if boxes_name:
                file[boxes_name] = np.array(FRACTIONS * n)
    report, store = load(tmp_path / "coco_detections.hdf5")
    assert (report.form, list(store)) == ("HDF5", ["2", "3"])
    np.testing.assert_array_equal(store["3"].features, features(3, 3))
    np.testing.assert_allclose(store["3"].boxes, (WHOLE if layout == "plain" else FRACTIONS) * 3)


def test_boxes_in_pixels_of_an_unknown_picture_are_counted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["1_features"] = features()
        file["1_boxes"] = pixels()
    report, store = load(tmp_path)
    assert report.without_boxes == 1
    np.testing.assert_array_equal(store["1"].boxes, WHOLE * 3)


def test_the_first_regions_are_kept(tmp_path: Path) -> None:
    npz(tmp_path / "1.npz", x=features(9), bbox=pixels(9), image_w=100, image_h=50)
    _, store = load(tmp_path, max_regions=4)
    np.testing.assert_array_equal(store["1"].features, features(9)[:4])
    assert store["1"].boxes.shape == (4, 4)


@settings(deadline=None, max_examples=8)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=5), threads=st.integers(1, 4))
def test_every_form_gives_the_same_store(counts: list[int], threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        items = {f"{i:02d}": features(n, i) for i, n in enumerate(counts)}
        (root / "a.tsv").write_text("".join(tsv_line(i, f, pixels(len(f))) for i, f in items.items()))
        with h5py.File(root / "a.h5", "w") as file:
            for i, f in items.items():
                file[f"{i}_features"], file[f"{i}_boxes"] = f, np.array(FRACTIONS * len(f))
                npz(root / "npz" / f"{i}.npz", x=f, bbox=pixels(len(f)), image_w=100, image_h=50)
                npy(root / "npy" / f"{i}.npy", f)
                npy(root / "npy" / f"{i}_boxes.npy", np.array(FRACTIONS * len(f)))
        for name in ("a.tsv", "a.h5", "npz", "npy"):
            report, store = load(root / name, threads=threads, shard_bytes=64)
            assert (list(store), report.left_out, report.without_boxes) == (list(items), [], 0)
            for i, f in items.items():
                np.testing.assert_array_equal(store[i].features, f)
                np.testing.assert_allclose(store[i].boxes, FRACTIONS * len(f))


# --- going on ------------------------------------------------------------------------------------------------------


def test_a_second_import_adds_what_is_new(tmp_path: Path) -> None:
    npz(tmp_path / "in" / "1.npz", feat=features(2, 1))
    first = import_features(tmp_path / "in", tmp_path / "out")
    npz(tmp_path / "in" / "2.npz", feat=features(3, 2))
    second = import_features(tmp_path / "in", tmp_path / "out")
    assert (first.imported, second.imported, second.already_there) == (1, 1, 1)
    assert set(FeatureStore(tmp_path / "out")) == {"1", "2"}


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    for i in range(5):
        npz(tmp_path / "in" / f"{i}.npz", feat=features())
    seen: list[tuple[int, int]] = []
    import_features(tmp_path / "in", tmp_path / "out", on_progress=lambda *step: seen.append(step))
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1] == sum(path.stat().st_size for path in (tmp_path / "in").iterdir())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_source(tmp_path: Path) -> None:
    def peak(images: int) -> int:
        for i in range(images):
            npy(tmp_path / f"in{images}" / f"{i}.npy", np.zeros((64, 256), np.float32))
        tracemalloc.start()
        import_features(tmp_path / f"in{images}", tmp_path / f"out{images}", shard_bytes=1 << 20)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(60)
    assert peak(600) < peak(120) + (1 << 20)


# --- damaged and hostile -------------------------------------------------------------------------------------------


def test_bad_lines_of_a_tsv_are_listed(tmp_path: Path) -> None:
    good = tsv_line("good", features(), pixels())
    lines = [
        good,
        good,
        "only\tthree\tcolumns\n",
        tsv_line("count", features(), pixels(), count=2),
        tsv_line("zero", features(0), pixels(0)),
        tsv_line("cut", features(), pixels())[:-6] + "\n",
        "base\t100\t50\t1\t====\t!!!\n",
        "number\tx\t50\t1\t\t\n",
        "\t100\t50\t1\t\t\n",
        tsv_line("wide", np.zeros((3, 7), np.float32), pixels()),
        tsv_line("nan", np.full((3, WIDTH), np.nan, np.float32), pixels()),
        tsv_line("far", features(), pixels() * 5),
    ]
    path = tmp_path / "a.tsv"
    path.write_text("".join(lines))
    report, store = load(path)
    assert list(store) == ["good"]
    assert [bad.where for bad in report.left_out] == [f"{path}, line {n}" for n in range(2, 13)]
    expected = [
        "image 'good' appears twice in the source",
        "expected 6 columns (or LXMERT's 10), got 3",
        "says 2 boxes, but has 3 boxes and 15 numbers",
        "says 0 boxes, but has 0 boxes and 0 numbers",
        "features are ",
        "",
        "image_w, image_h and num_boxes must be whole numbers",
        "the image id is empty",
        "image 'wide': features are 7 wide, expected 5 as in the rest of the store",
        "image 'nan': features hold values that are not finite",
        "boxes reach 4.50 picture widths or heights; size 100 × 50 is wrong",
    ]
    for got, wanted in zip(reasons(report), expected, strict=True):
        assert got.startswith(wanted)


def bomb(size: int) -> bytes:
    """An .npz with one array of `size` zero bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, feat=np.zeros((1, size), np.float32))
    return buffer.getvalue()


def lying(data: bytes, size: int) -> bytes:
    """The same archive, declaring another unpacked size in its directory."""
    directory = data.rindex(b"PK\x01\x02")
    return data[: directory + 24] + struct.pack("<I", size) + data[directory + 28 :]


def test_bad_npz_files_are_listed(tmp_path: Path) -> None:
    whole = bomb(200)
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "flip.npz").write_bytes(whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])
    (tmp_path / "lie.npz").write_bytes(lying(whole, 500))
    npz(tmp_path / "names.npz", other=features())
    npz(tmp_path / "object.npz", feat=np.array([{"a": 1}], dtype=object))
    npz(tmp_path / "vector.npz", feat=np.zeros(7, np.float32))
    npz(tmp_path / "ints.npz", feat=np.zeros((2, WIDTH), np.int32))
    npz(tmp_path / "boxes.npz", feat=features(), bbox=np.zeros((2, 4), np.float32))
    npz(tmp_path / "good.npz", feat=features())
    report, store = load(tmp_path)
    assert list(store) == ["good"]
    found = {Path(bad.where).stem: bad.reason for bad in report.left_out}
    assert found["cut"] == found["text"] == "not a valid .npz file: File is not a zip file"
    assert found["empty"] == "not a valid .npz file: File is not a zip file"
    assert found["flip"].startswith("not a valid .npz file")
    assert found["lie"] == "not a valid .npz file: the contents of 'feat.npy' are damaged"
    assert found["names"] == "has no array named feat, x, features, feature, arr_0; it has: other"
    assert found["object"].startswith("has no array named feat")
    assert found["vector"].startswith("features must be [regions, width]")
    assert found["ints"] == "features must be floats, got int32"
    assert found["boxes"] == "expected 3 boxes of 4 numbers for 3 regions, got (2, 4)"


def test_odd_arrays_beside_the_features_cost_one_entry_not_the_import(tmp_path: Path) -> None:
    npz(tmp_path / "text.npz", feat=features(), bbox=np.full((3, 4), "a"))
    npz(tmp_path / "number.npz", feat=features(), bbox=np.float32(3))
    npz(tmp_path / "complex.npz", feat=features(), bbox=np.zeros((3, 4), np.complex64))
    npz(tmp_path / "scores.npz", feat=features(), scores=np.array(["a", "b", "c"]))
    npz(tmp_path / "size.npz", feat=features(), bbox=pixels(), image_w=1e30, image_h=50)
    (tmp_path / "link.npz").symlink_to(tmp_path / "nothing")
    npz(tmp_path / "nan.npz", feat=features(), bbox=pixels(), image_w=np.nan, image_h=np.inf)
    npz(tmp_path / "negative.npz", feat=features(), num_bbox=-1)
    report, store = load(tmp_path)
    assert {name: len(store[name]) for name in store} == {"nan": 3, "negative": 3}
    found = {Path(bad.where).stem: bad.reason for bad in report.left_out}
    assert found["text"] == "boxes must be numbers in 2 dimensions, got <U1 (3, 4)"
    assert found["number"] == "boxes must be numbers in 2 dimensions, got float32 ()"
    assert found["complex"] == "boxes must be numbers in 2 dimensions, got complex64 (3, 4)"
    assert found["scores"] == "scores must be numbers in 1 dimensions, got <U1 (3,)"
    assert found["size"].startswith("picture size 1000000000000000019884624838656 × 50 is impossible")
    assert found["link"] == "cannot be read: No such file or directory"


def test_a_tsv_with_an_impossible_size_and_a_byte_order_mark(tmp_path: Path) -> None:
    good = tsv_line("good", features(), pixels())
    huge = tsv_line("huge", features(), pixels()).replace("\t100\t", f"\t{10**30}\t")
    (tmp_path / "a.tsv").write_text("\ufeff" + good + huge, encoding="utf-8")
    report, store = load(tmp_path / "a.tsv")
    assert list(store) == ["good"]
    assert reasons(report) == [f"picture size {10**30} × 50 is impossible"]


def test_a_file_name_that_is_no_text_is_listed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    npz(source / "good.npz", feat=features())
    try:
        npz(source / "caf\udce9.npz", feat=features())
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    report = import_features(source, tmp_path / "store")
    assert list(FeatureStore(tmp_path / "store")) == ["good"]
    assert "is not Unicode text" in reasons(report)[0]
    written = json.loads((tmp_path / "store" / "import-report.json").read_text(encoding="utf-8"))
    assert written["left_out"][0]["where"] == str(source / "caf\udce9.npz")


def test_decompression_bombs_are_refused_unopened(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(bomb(25_000_000))
    assert path.stat().st_size < 200_000
    with pytest.raises(
        FeatureError, match="would unpack to 1 arrays of 100,000,128 bytes, the limit is 64 and 1,000,000"
    ):
        read_npz(path, max_bytes=1_000_000)
    path.write_bytes(lying(bomb(25_000_000), 1000))
    tracemalloc.start()
    with pytest.raises(FeatureError, match="damaged"):
        read_npz(path, max_bytes=1_000_000)
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert highest < 2_000_000


def test_archives_of_many_or_strange_members_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        for i in range(65):
            archive.writestr(f"{i}.npy", b"")
    with pytest.raises(FeatureError, match="65 arrays"):
        read_npz(tmp_path / "many.npz")
    with zipfile.ZipFile(tmp_path / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("feat.npy", b"x" * 100)
    with pytest.raises(FeatureError, match="unknown compression method 14"):
        read_npz(tmp_path / "lzma.npz")


def test_npy_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FeatureError, match="only pickle could read"):
        read_npy(tmp_path / "a.npy")


def test_npy_written_by_python_2(tmp_path: Path) -> None:
    npy(tmp_path / "a.npy", features(3))
    content = (tmp_path / "a.npy").read_bytes().replace(b"(3, 5), ", b"(3L, 5L)")
    (tmp_path / "a.npy").write_bytes(content)
    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), features(3))


def test_npy_above_the_limit(tmp_path: Path) -> None:
    npy(tmp_path / "a.npy", np.zeros(1000))
    with pytest.raises(FeatureError, match="8,128 bytes, the limit for one image is 100"):
        read_npy(tmp_path / "a.npy", max_bytes=100)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_damage_to_an_array_file_is_an_error_of_ours(data: st.DataObject) -> None:
    """Bytes cut or changed anywhere: the arrays come out whole, or a `FeatureError` says why not."""
    with tempfile.TemporaryDirectory() as folder:
        kind = data.draw(st.sampled_from(["npz", "npy"]))
        path = Path(folder) / f"a.{kind}"
        if kind == "npz":
            np.savez(path, feat=features(), bbox=pixels())
        else:
            np.save(path, features())
        whole = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        try:
            found = read_npz(path) if kind == "npz" else {"feat": read_npy(path)}
        except FeatureError as error:
            assert "\n" not in str(error).strip()  # noqa: PT017
        else:
            assert all(isinstance(array, np.ndarray) for array in found.values())


def test_bad_entries_of_hdf5_are_listed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = features()
    (tmp_path / "in").mkdir()
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        file["good_features"] = features()
        file["ints_features"] = np.zeros((2, WIDTH), np.int32)
        file["text_features"] = "hello"
        file["link_features"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "secret")
        file["soft_features"] = h5py.SoftLink("/good_features")
        file.create_group("group_features")
        file.create_dataset("huge_features", shape=(1 << 20, 1 << 10), dtype="f4", chunks=(1, 1 << 10))
        file.create_dataset("outside_features", shape=(1, 2), dtype="f4", external=[(str(tmp_path / "other.h5"), 0, 8)])
    report, store = load(tmp_path / "in")
    assert list(store) == ["good"]
    found = {bad.where.rpartition(":")[2]: bad.reason for bad in report.left_out}
    assert found == {
        "ints_features": "ints_features must be an array of floats",
        "text_features": "text_features must be an array of floats",
        "link_features": "is a link, not data of this file",
        "soft_features": "is a link, not data of this file",
        "group_features": "the group has no 'features', only: nothing",
        "huge_features": "huge_features has 1,073,741,824 numbers, too many for one image",
        "outside_features": "outside_features lies in other files; copy it into this one",
    }


def test_hdf5_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["1_features"] = features()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'HDF5 features needs packages .* pip install "xlan\[features\]"'):
        import_features(tmp_path / "a.h5", tmp_path / "out")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "none", "no such file or folder"),
        (lambda p: p, "no .tsv, .npz, .npy or HDF5 files in it"),
        (
            lambda p: npz(p / "a.npz", feat=features()) or npy(p / "a.npy", features()) or p,
            "holds npy and npz files; choose",
        ),
        (lambda p: (p / "a.zip").write_bytes(b"PK") and p / "a.zip", "expected a .tsv or HDF5 file, or a folder of"),
        (lambda p: (p / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n") and p / "a.h5", "not a valid HDF5 file"),
        (
            lambda p: (p / "a.npz").write_bytes(b"x") and p,
            r"none of the 1 entries could be imported; the first: .*a\.npz",
        ),
    ],
)
def test_a_source_that_is_no_good_as_a_whole(tmp_path: Path, make: Any, message: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(FeatureError, match=message):
        import_features(make(tmp_path / "in"), tmp_path / "out")


def test_a_failed_import_does_not_bind_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.npz").write_bytes(b"x")
    with pytest.raises(FeatureError):
        import_features(tmp_path / "in", tmp_path / "out")
    npz(tmp_path / "other" / "b.npz", feat=features())
    assert import_features(tmp_path / "other", tmp_path / "out", dtype="float32").imported == 1


@pytest.mark.parametrize(
    ("options", "message"), [({"max_regions": 0}, "at least 1, got 0"), ({"boxes": "nowhere"}, "nowhere")]
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    npz(tmp_path / "in" / "1.npz", feat=features())
    with pytest.raises(FeatureError, match=message):
        import_features(tmp_path / "in", tmp_path / "out", **options)


def test_float16_says_which_image_does_not_fit(tmp_path: Path) -> None:
    npz(tmp_path / "in" / "big.npz", feat=np.full((1, WIDTH), 1e6, np.float32))
    npz(tmp_path / "in" / "small.npz", feat=features())
    report, _ = load(tmp_path / "in", dtype="float16")
    assert reasons(report) == ["image 'big': a feature of 1e+06 does not fit float16; use float32"]
