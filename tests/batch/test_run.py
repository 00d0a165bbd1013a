"""`xlan batch` from the command line to the files it leaves; computed in this process (`--workers 0`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.batch.conftest import PictureServer, drawn, rows_of
from typer.testing import CliRunner, Result

from xlan import Captioner
from xlan.batch.job import Job
from xlan.batch.plan import read_plan
from xlan.batch.storage import Storage
from xlan.batch.worker import _extractor
from xlan.caption_json import caption_record
from xlan.cli.main import app
from xlan.errors import BatchError, DataError, ModelError
from xlan.exporting import export_model
from xlan.vision.store import FeatureStore


def run(command: str, *arguments: str | Path, model: Path, workers: int = 0) -> Result:
    typed = ["batch", command, *map(str, arguments), "--model", str(model), "--workers", str(workers)]
    return CliRunner().invoke(app, typed, catch_exceptions=False)


@pytest.fixture
def memory() -> Iterator[Any]:
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


def test_rows_are_the_captions_of_the_captioner(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    result = run(
        "caption", pictures, "-o", tmp_path / "out", "--shard-size", "4", "--beams", "2", model=model_directory
    )
    assert result.exit_code == 3, result.output
    assert "9 pictures captioned in 3 shards; 1 could not be used (see the column error)" in result.output
    rows = rows_of(tmp_path / "out")
    assert [row["id"] for row in rows] == [f"{'a' if i < 5 else 'b'}/{i:02d}" for i in range(10)]
    captioner = Captioner.from_pretrained(model_directory)
    for row in rows:
        if row["id"] == "a/03":
            assert row[
                "error"
            ] == f"{row['image']}: is not a picture of a known format; known are JPEG, PNG, WebP, " + ("GIF, BMP, TIFF")
            assert row["caption"] is None
            continue
        record = caption_record(captioner.caption(row["image"], beams=2), explained=False)
        assert row["error"] is None
        assert row["caption"] == record["caption"]
        assert row["confidence"] == pytest.approx(record["confidence"], abs=1e-5)
        assert [word["text"] for word in row["words"]] == [word["text"] for word in record["words"]]
        assert [other["caption"] for other in row["others"]] == [other["caption"] for other in record["others"]]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_export_captions_as_the_model_it_was_made_from(
    pictures: Path, model_directory: Path, tmp_path: Path, workers: int
) -> None:
    export_model(model_directory, tmp_path / "export")
    for name, model in (("ours", tmp_path / "export"), ("theirs", model_directory)):
        result = run("caption", pictures, "-o", tmp_path / name, model=model, workers=workers)
        assert result.exit_code == 3, result.output
        assert "9 pictures captioned" in result.output
    ours, theirs = (rows_of(tmp_path / name) for name in ("ours", "theirs"))
    assert [row["caption"] for row in ours] == [row["caption"] for row in theirs]


def test_an_export_with_fewer_bits_does_not_continue_the_job_of_its_model(
    pictures: Path, model_directory: Path, tmp_path: Path
) -> None:
    export_model(model_directory, tmp_path / "half", precision="float16")
    run("caption", pictures, "-o", tmp_path / "out", model=model_directory)
    with pytest.raises(DataError, match="was made with another model"):
        run("caption", pictures, "-o", tmp_path / "out", model=tmp_path / "half")


def test_a_folder_of_parts_is_one_dataset(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    """Readers leave out what belongs to the job."""
    from pyarrow import parquet

    run("caption", pictures, "-o", tmp_path / "out", "--shard-size", "4", model=model_directory)
    assert parquet.read_table(tmp_path / "out").num_rows == 10
    assert json.loads(parquet.read_schema(tmp_path / "out" / "part-00000.parquet").metadata[b"xlan"])["beams"] == 3


def test_features_become_a_store_that_equals_the_one_of_extract(
    pictures: Path, model_directory: Path, tmp_path: Path
) -> None:
    vision = model_directory / "vision.safetensors"
    arguments = (
        "batch",
        "features",
        str(pictures),
        "-o",
        str(tmp_path / "store"),
        "--shard-size",
        "4",
        "--workers",
        "0",
    )
    result = CliRunner().invoke(app, [*arguments, "--vision", str(vision)], catch_exceptions=False)
    assert result.exit_code == 3, result.output
    assert "9 pictures extracted in 3 shards; 1 could not be used" in result.output
    assert "a/03.png" in (tmp_path / "store" / "_job" / "skipped.txt").read_text()
    plain = ["features", "extract", str(pictures), "-o", str(tmp_path / "plain"), "--vision", str(vision)]
    CliRunner().invoke(app, plain, catch_exceptions=False)
    ours, theirs = FeatureStore(tmp_path / "store"), FeatureStore(tmp_path / "plain")
    assert ours.complete
    assert list(ours.ids) == list(theirs.ids)
    assert ours.extractor == theirs.extractor
    assert [fault for _, fault in ours.verify()] == [None] * 3
    for image_id in ours:
        np.testing.assert_allclose(ours[image_id].features, theirs[image_id].features, atol=1e-2)


def test_two_pictures_with_one_id_cannot_be_in_a_store(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    (pictures / "a" / "00.jpg").write_bytes(drawn(0))
    with pytest.raises(DataError, match=r"another picture has the id 'a/00' too"):
        run("features", pictures, "-o", tmp_path / "store", model=model_directory)


def test_storage_at_an_address_holds_the_same_rows(
    pictures: Path, model_directory: Path, tmp_path: Path, memory: Any
) -> None:
    run("caption", pictures, "-o", tmp_path / "out", "--shard-size", "4", model=model_directory)
    memory.put(str(pictures), "/in", recursive=True)
    result = run("caption", "memory://in", "-o", "memory://out", "--shard-size", "4", model=model_directory)
    assert result.exit_code == 3, result.output
    memory.get("/out", str(tmp_path / "fetched"), recursive=True)
    ours, theirs = rows_of(tmp_path / "fetched"), rows_of(tmp_path / "out")
    names = ("image", "error")
    assert [{k: v for k, v in row.items() if k not in names} for row in ours] == [
        {k: v for k, v in row.items() if k not in names} for row in theirs
    ]
    assert ours[0]["image"] == "memory:///in/a/00.png"


def test_pictures_of_web_addresses(model_directory: Path, tmp_path: Path, server: PictureServer) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "list.txt").write_text(
        "".join(f"{server.address(i)}\n" for i in range(4, 7)) + "http://127.0.0.1:1/x\n"
    )
    result = run("caption", tmp_path / "list.txt", "-o", tmp_path / "out", model=model_directory)
    assert result.exit_code == 3
    rows = rows_of(tmp_path / "out")
    assert [row["error"] is None for row in rows] == [True, False, True, False]
    assert rows[1]["error"].startswith(f"{server.address(5)}: cannot be read: ")


def test_a_finished_job_is_not_done_again(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    first = run("caption", pictures, "-o", tmp_path / "out", "--shard-size", "4", model=model_directory)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    again = run("caption", pictures, "-o", tmp_path / "out", "--shard-size", "4", model=model_directory)
    assert again.exit_code == first.exit_code == 3
    assert "3 shards already done" in again.output
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}


@pytest.mark.parametrize("damage", ["marker", "part"])
def test_a_shard_without_marker_or_of_another_size_is_made_again(
    damage: str, pictures: Path, model_directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("caption", pictures, "-o", out, "--shard-size", "4", model=model_directory)
    whole = {path.name: path.read_bytes() for path in out.glob("part-*")}
    if damage == "marker":
        next((out / "_job" / "done").glob("00001*")).unlink()
        (out / "part-00001.parquet").write_bytes(b"half of it")
    else:
        (out / "part-00001.parquet").write_bytes(whole["part-00001.parquet"][:100])
    result = run("caption", pictures, "-o", out, "--shard-size", "4", model=model_directory)
    assert "2 shards already done" in result.output
    assert {path.name: path.read_bytes() for path in out.glob("part-*")} == whole


def test_another_model_or_other_options_on_the_same_output_are_refused(
    pictures: Path, model_directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("caption", pictures, "-o", out, model=model_directory)
    with pytest.raises(DataError, match=r"was made with beams 3 and not 2; use --overwrite"):
        run("caption", pictures, "-o", out, "--beams", "2", model=model_directory)
    with pytest.raises(DataError, match=r"holds a job of caption, not of features"):
        run("features", pictures, "-o", out, model=model_directory)
    manifest = out / "_job" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"model_sha256": "', '"model_sha256": "0'))
    with pytest.raises(DataError, match=r"was made with another model; use --overwrite"):
        run("caption", pictures, "-o", out, model=model_directory)
    result = run("caption", pictures, "-o", out, "--beams", "2", "--overwrite", model=model_directory)
    assert result.exit_code == 3
    assert len(rows_of(out)) == 10


def test_a_listing_that_changed_is_told_before_anything_is_computed(
    pictures: Path, model_directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("caption", pictures, "-o", out, "--shard-size", "4", model=model_directory)
    next((out / "_job" / "done").glob("00002*")).unlink()
    (pictures / "c.png").write_bytes(drawn(11))
    (pictures / "a" / "00.png").unlink()
    with pytest.raises(DataError, match=r"1 added \(.*c\.png\), 1 removed \(.*00\.png\); --keep-plan completes"):
        run("caption", pictures, "-o", out, model=model_directory)
    result = run("caption", pictures, "-o", out, "--keep-plan", model=model_directory)
    assert result.exit_code == 3
    assert len(rows_of(out)) == 10


def test_a_plan_is_completed_when_its_input_is_gone(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("features", pictures, "-o", out, "--shard-size", "4", model=model_directory)
    (out / "index.json").unlink()
    shutil.rmtree(pictures)
    with pytest.raises(DataError, match=r"pictures: no such file or folder"):
        run("features", pictures, "-o", out, model=model_directory)
    result = run("features", pictures, "-o", out, "--keep-plan", model=model_directory)
    assert result.exit_code == 3
    assert len(FeatureStore(out)) == 9


def test_an_input_that_goes_away_during_the_run_is_told_at_the_end(
    model_directory: Path, tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe({f"/in/{i}.png": drawn(i) for i in range(2)})
    opened = MemoryFileSystem._open

    def removing(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        file = opened(self, path, *arguments, **options)
        memory.store.pop(path)
        return file

    monkeypatch.setattr(MemoryFileSystem, "_open", removing)
    result = run("caption", "memory://in", "-o", tmp_path / "out", model=model_directory)
    assert result.exit_code == 3
    assert "the input changed during the job: memory://in: no" in result.output
    assert (tmp_path / "out" / "_job" / "summary.json").is_file()


def test_a_listing_that_changes_during_the_run_is_told_at_the_end(
    model_directory: Path, tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage gets a further picture while the second one is read."""
    memory.pipe({f"/in/{i}.png": drawn(i) for i in range(2)})
    opened = MemoryFileSystem._open

    def adding(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("1.png"):
            memory.store.setdefault("/in/9.png", memory.store["/in/0.png"])
        return opened(self, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", adding)
    result = run("caption", "memory://in", "-o", tmp_path / "out", model=model_directory)
    assert result.exit_code == 3
    assert "the input changed during the job: 1 added (memory:///in/9.png); the result follows the plan" in (
        result.output
    )
    assert len(rows_of(tmp_path / "out")) == 2


class HostileFiles(MemoryFileSystem):  # type: ignore[misc]
    """A storage with bad days: what it refuses is in `refused`."""

    protocol = "hostile"
    refused: dict[str, type[OSError]] = {}  # noqa: RUF012
    asked = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.replace("hostile://", "memory://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"hostile://{name.lstrip('/')}"

    def _check(self, path: str) -> None:
        for part, error in self.refused.items():
            if part in path:
                type(self).asked += 1
                raise error(f"{path} is refused")

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._check(path)
        return super()._open(path, *arguments, **options)

    def ls(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._check(path + "/")
        return super().ls(path, *arguments, **options)

    def pipe_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._check(path)
        return super().pipe_file(path, *arguments, **options)


@pytest.fixture
def hostile(memory: Any, monkeypatch: pytest.MonkeyPatch) -> type[HostileFiles]:
    fsspec.register_implementation("hostile", HostileFiles, clobber=True)
    monkeypatch.setattr(HostileFiles, "refused", {})
    monkeypatch.setattr("xlan.batch.storage._FIRST_PAUSE", 0.001)
    memory.pipe({f"/in/{i}.png": drawn(i) for i in range(4)})
    return HostileFiles


def test_a_picture_that_may_not_be_read_is_a_row_and_a_folder_an_error(
    model_directory: Path, tmp_path: Path, hostile: type[HostileFiles]
) -> None:
    hostile.refused = {"/in/1.png": PermissionError}
    run("caption", "hostile://in", "-o", tmp_path / "out", model=model_directory)
    assert [row["error"] is None for row in rows_of(tmp_path / "out")] == [True, False, True, True]
    assert "permission denied" in rows_of(tmp_path / "out")[1]["error"]
    hostile.refused = {"/in/": PermissionError}
    with pytest.raises(DataError, match=r"hostile://in.*: cannot be (listed|read): permission denied"):
        run("caption", "hostile://in", "-o", tmp_path / "other", model=model_directory)


def test_a_storage_that_stops_answering_stops_the_job_and_loses_nothing(
    model_directory: Path, tmp_path: Path, hostile: type[HostileFiles]
) -> None:
    hostile.refused, hostile.asked = {"/in/2.png": TimeoutError}, 0
    arguments = ("hostile://in", "-o", tmp_path / "out", "--shard-size", "2")
    with pytest.raises(BatchError, match=r"2.png: cannot be read: .* again when .*\(1 of 2 shards are done and kept\)"):
        run("caption", *arguments, model=model_directory)
    assert hostile.asked == 4
    hostile.refused = {}
    assert run("caption", *arguments, model=model_directory).exit_code == 0
    assert [row["id"] for row in rows_of(tmp_path / "out")] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("refused", ["part-00001", "_job/done/00001", "_job/plan", "_job/manifest"])
def test_an_output_that_cannot_be_written_is_one_line_and_what_is_written_stays(
    refused: str, model_directory: Path, tmp_path: Path, memory: Any, hostile: type[HostileFiles]
) -> None:
    hostile.refused = {refused: PermissionError}
    arguments = ("hostile://in", "-o", "hostile://out", "--shard-size", "2")
    with pytest.raises((BatchError, DataError), match=rf"hostile://out/{refused}\S*: cannot be written: permission"):
        run("caption", *arguments, model=model_directory)
    hostile.refused = {}
    assert run("caption", *arguments, model=model_directory).exit_code == 0
    memory.get("/out", str(tmp_path / "fetched"), recursive=True)
    assert [row["id"] for row in rows_of(tmp_path / "fetched")] == ["0", "1", "2", "3"]


def test_a_foreign_folder_a_second_run_and_a_damaged_manifest_are_refused(
    pictures: Path, model_directory: Path, tmp_path: Path
) -> None:
    from xlan.files import open_locked

    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    for overwrite in ((), ("--overwrite",)):
        with pytest.raises(DataError, match=r"expected an empty folder or an earlier job, but it holds 'thesis.tex'"):
            run("caption", pictures, "-o", tmp_path / "foreign", *overwrite, model=model_directory)
    (tmp_path / "busy").mkdir()
    open_locked(tmp_path / "busy" / ".lock")
    with pytest.raises(DataError, match=r"another process is writing to this output"):
        run("caption", pictures, "-o", tmp_path / "busy", model=model_directory)
    (tmp_path / "bad" / "_job").mkdir(parents=True)
    for text in ("{", "[]", '{"format": "xlan-batch", "version": 1}', '{"format": "other"}'):
        (tmp_path / "bad" / "_job" / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=r"is not the manifest of a job"):
            run("caption", pictures, "-o", tmp_path / "bad", model=model_directory)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_a_detector_computes_with_the_engine_that_was_asked_for(detector_directory: Path, engine: str) -> None:
    job = Job("features", "out", engine=engine, detector=str(detector_directory))
    made_by = {"torch": "LiteExtractor", "onnx": "OnnxLiteDetector"}
    assert type(_extractor(job, "cpu")).__name__ == made_by[engine]


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_a_vision_file_computes_with_the_engine_that_was_asked_for(model_directory: Path, engine: str) -> None:
    job = Job("features", "out", engine=engine, vision=str(model_directory / "vision.safetensors"))
    made_by = {"torch": "GridExtractor", "onnx": "OnnxGridExtractor"}
    assert type(_extractor(job, "cpu")).__name__ == made_by[engine]


def test_both_engines_make_the_same_features_of_a_vision_file(
    pictures: Path, model_directory: Path, tmp_path: Path
) -> None:
    vision = model_directory / "vision.safetensors"
    stores = []
    for engine in ("torch", "onnx"):
        typed = ["batch", "features", pictures, "-o", tmp_path / engine, "--vision", vision, "--engine", engine]
        assert CliRunner().invoke(app, [*map(str, typed), "--workers", "0"]).exit_code == 3
        stores.append(FeatureStore(tmp_path / engine))
    ours, theirs = stores
    assert ours.extractor == theirs.extractor
    for image_id in ours:
        np.testing.assert_allclose(ours[image_id].features, theirs[image_id].features, atol=1e-2)


@pytest.mark.parametrize(
    ("engine", "device", "message"),
    [
        ("onnx", "cuda", "the onnx engine computes on the cpu, got device 'cuda'; use the torch engine"),
        ("auto", "nowhere", "device 'nowhere' cannot be used here"),
        ("torch", "nowhere", "device 'nowhere' cannot be used here"),
    ],
)
def test_a_device_that_cannot_be_used_with_a_vision_file_is_one_line(
    model_directory: Path, engine: str, device: str, message: str
) -> None:
    job = Job("features", "out", engine=engine, vision=str(model_directory / "vision.safetensors"))
    with pytest.raises(ModelError, match=message):
        _extractor(job, device)


def test_a_device_that_cannot_be_used_with_imagenet_weights_is_one_line() -> None:
    with pytest.raises(ModelError, match="device 'nowhere' cannot be used here"):
        _extractor(Job("features", "out", network="efficientnet-lite0"), "nowhere")


@pytest.mark.parametrize(
    ("option", "message"),
    [("--network", "ImageNet weights compute with torch, got onnx"), ("--detector", "only small detectors compute")],
)
def test_the_onnx_engine_is_refused_where_it_would_have_no_effect(
    pictures: Path, tmp_path: Path, option: str, message: str
) -> None:
    (tmp_path / "bottom-up").mkdir()
    (tmp_path / "bottom-up" / "detector.json").write_text('{"format": 1, "kind": "bottom-up", "file": {}}')
    given = {"--network": "efficientnet-lite0", "--detector": str(tmp_path / "bottom-up")}[option]
    typed = ["batch", "features", pictures, "-o", tmp_path / "out", option, given, "--engine", "onnx"]
    result = CliRunner().invoke(app, [*map(str, typed), "--workers", "0"])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_detectors_compute_on_the_cpu(pictures: Path, detector_directory: Path, tmp_path: Path) -> None:
    typed = [
        "batch",
        "features",
        pictures,
        "-o",
        tmp_path / "out",
        "--detector",
        detector_directory,
        "--device",
        "cuda",
    ]
    result = CliRunner().invoke(app, [*map(str, typed), "--workers", "0"])
    assert result.exit_code == 2
    assert "detectors compute on the cpu" in " ".join(result.stderr.replace("│", " ").split())


def test_options_that_contradict_are_wrong_usage(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("caption", pictures, "-o", out, "--seed", "1", model=model_directory).exit_code == 2
    assert run("features", pictures, "-o", out, "--network", "efficientnet-lite0", model=model_directory).exit_code == 2
    assert run("caption", pictures, "-o", out, "--ray", "local", model=model_directory).exit_code == 2  # workers 0
    assert not out.exists()


def test_a_word_the_model_does_not_know_is_told_once(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="zebra"):
        run("caption", pictures, "-o", tmp_path / "out", "--must", "zebra", model=model_directory)


def test_the_plan_is_there_before_the_work(pictures: Path, model_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BatchError):
        run("caption", pictures, "-o", tmp_path / "out", "--must", "zebra", model=model_directory)
    assert len(list(read_plan(Storage(str(tmp_path / "out"))))) == 10
