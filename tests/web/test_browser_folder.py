"""The folder for browsers as files: what is written, what is refused and in which words. No browser, no npm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.errors import ModelError
from xlan.exporting import TOLERANCES, Tolerance, export_model
from xlan.pretrained import read_model_directory, save_pretrained
from xlan.web import runtime
from xlan.web.folder import POLICY, write_web
from xlan.web.runtime import COMMAND, FILES, RuntimeFile, read_runtime

RUNTIME = {name: name.encode() for name in FILES}  # the folder does not care what it holds


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Path:
    place = tmp_path_factory.mktemp("export") / "tiny"
    export_model(model_directory, place, precision="int8")
    return place


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Path:
    place = tmp_path_factory.mktemp("web") / "page"
    size = write_web(exported, place, name="tiny", runtime=RUNTIME)
    assert size == sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return place


def test_the_page_allows_nothing_from_elsewhere(page: Path, tags_of: Callable[[Path], Any]) -> None:
    tags = tags_of(page / "index.html")
    policies = [a["content"] for tag, a in tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [POLICY]
    assert not re.search(r"https?:|\*|unsafe-inline|'unsafe-eval'", POLICY)
    for tag, attributes in tags:
        assert tag not in ("style", "iframe")
        assert [name for name in attributes if name == "style" or name.startswith("on")] == []
        for address in (attributes.get("src"), attributes.get("href")):
            assert address is None or address == "data:," or (page / address).is_file()


def test_every_import_of_a_script_is_in_the_folder(page: Path) -> None:
    for script in (page / "static").glob("*.js"):
        for name in re.findall(r'^import .* from "\./([\w.]+)";$', script.read_text(encoding="utf-8"), re.MULTILINE):
            assert (page / "static" / name).is_file(), f"{script.name} imports {name}"


def test_the_service_worker_knows_every_file_and_changes_with_them(page: Path, exported: Path, tmp_path: Path) -> None:
    script = (page / "sw.js").read_text(encoding="utf-8")
    listed = re.search(r"new Set\((\[.*?\])\)", script)
    assert listed is not None
    files = {file.relative_to(page).as_posix() for file in page.rglob("*") if file.is_file()}
    assert set(json.loads(listed[1])) == files - {"sw.js"}
    write_web(exported, tmp_path / "same", name="tiny", runtime=RUNTIME)
    write_web(exported, tmp_path / "other", name="another", runtime=RUNTIME)
    assert (tmp_path / "same" / "sw.js").read_text(encoding="utf-8") == script
    assert (tmp_path / "other" / "sw.js").read_text(encoding="utf-8") != script


def test_the_runtime_is_packed_and_known_by_size_and_hash(page: Path) -> None:
    said = json.loads((page / "web.json").read_text())["runtime"]
    assert set(said) == {file.name for file in (page / "runtime").iterdir()}
    for name, known in said.items():
        content = (page / "runtime" / name).read_bytes()
        assert known == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    wasm = (page / "runtime" / "ort-wasm-simd-threaded.wasm.bin").read_bytes()
    assert gzip.decompress(wasm) == RUNTIME["ort-wasm-simd-threaded.wasm"]
    assert '"ort-wasm-simd-threaded.wasm.bin"' in (page / "static" / "worker.js").read_text()


def test_a_page_is_replaced_only_when_asked(page: Path, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a page of xlan export already exists there; use --force"):
        write_web(exported, page, name="tiny", runtime=RUNTIME)
    write_web(exported, page, name="tiny", runtime=RUNTIME, replace=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"precious")
    with pytest.raises(ModelError, match="already exists and is not a page"):
        write_web(exported, tmp_path / "photos", name="tiny", runtime=RUNTIME, replace=True)
    assert (tmp_path / "photos" / "one.jpg").read_bytes() == b"precious"
    assert sorted(file.name for file in page.parent.iterdir()) == ["page"]  # no leftovers


def test_a_damaged_export_makes_no_page(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "export")
    content = bytearray((tmp_path / "export" / "encoder.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "export" / "encoder.onnx").write_bytes(content)
    with pytest.raises(ModelError, match="damaged"):
        write_web(tmp_path / "export", tmp_path / "page", name="tiny", runtime=RUNTIME)
    assert not (tmp_path / "page").exists()


def test_a_model_of_region_features_is_refused(model_directory: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    found = read_model_directory(model_directory)
    weights = load_file(model_directory / "model.safetensors")
    save_pretrained(tmp_path / "model", found.spec, weights, found.vocabulary)
    export_model(tmp_path / "model", tmp_path / "export")
    with pytest.raises(ModelError, match="captions region features, not pictures; a page cannot use it"):
        write_web(tmp_path / "export", tmp_path / "page", name="tiny", runtime=RUNTIME)


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_on_the_regions_of_a_detector_is_refused_before_it_is_exported(
    model_directory: Path, detector_directory: Path, tmp_path: Path, shared: bool
) -> None:
    """Whether the detector shares the model's vision network or has its own."""
    found = read_model_directory(model_directory)
    extras = found.extras if shared else {}
    save_pretrained(tmp_path / "model", found.spec, found.weights(), found.vocabulary, extras=extras)
    shutil.copytree(detector_directory, tmp_path / "model" / "detector")
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--web", str(tmp_path / "page")])
    assert isinstance(done.exception, ModelError)
    assert str(done.exception) == (
        f"{tmp_path / 'model'}: captions the regions of its detector, which does not run in a page; give a model on "
        f"grid cells, or use xlan serve --model {tmp_path / 'model'}"
    )
    assert done.output == ""
    assert not (tmp_path / "page").exists()


def test_a_model_without_vision_is_refused_before_it_is_exported(model_directory: Path, tmp_path: Path) -> None:
    found = read_model_directory(model_directory)
    save_pretrained(tmp_path / "model", found.spec, found.weights(), found.vocabulary)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--web", str(tmp_path / "page")])
    assert str(done.exception) == (
        f"{tmp_path / 'model'}: captions region features, not pictures; add the vision network that made them with "
        "xlan pack --vision FILE"
    )
    assert done.output == ""


def test_an_export_that_differs_names_the_model_that_was_given(
    model_directory: Path, small_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the folder that it was written to on its way into the page."""
    monkeypatch.setitem(TOLERANCES, "float16", Tolerance(0.0, 0.0))
    package = archive(tmp_path / "package.tgz", small_files)
    typed = ["export", str(model_directory), "--web", str(tmp_path / "page"), "--runtime", str(package), "--fp16"]
    done = CliRunner().invoke(app, typed)
    assert str(done.exception).startswith(f"{model_directory}: the export differs from PyTorch: ")
    assert not (tmp_path / "page").exists()


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as target:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A package whose files are a few bytes long, as the real one's are known: by size and SHA-256."""
    known = {name: RuntimeFile(len(text), hashlib.sha256(text).hexdigest()) for name, text in RUNTIME.items()}
    monkeypatch.setattr(runtime, "FILES", known)
    return dict(RUNTIME)


def test_the_runtime_is_read_from_an_archive_or_a_folder(small_files: dict[str, bytes], tmp_path: Path) -> None:
    assert read_runtime(archive(tmp_path / "package.tgz", {**small_files, "other.js": b"more"})) == small_files
    for number, inside in enumerate(("package/dist", "dist", "")):
        given = tmp_path / str(number)
        (given / inside).mkdir(parents=True)
        for name, content in small_files.items():
            (given / inside / name).write_bytes(content)
        assert read_runtime(given) == small_files


def test_the_runtime_lies_in_the_current_folder_by_default(
    small_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=f"the page needs onnxruntime-web .*; type: {COMMAND}"):
        read_runtime()
    archive(tmp_path / runtime.PACKED, small_files)
    assert read_runtime() == small_files


@pytest.mark.parametrize("kind", ["archive", "folder"])
def test_another_version_of_the_runtime_is_refused(small_files: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    def package(files: dict[str, bytes]) -> Path:
        if kind == "archive":
            return archive(tmp_path / "package.tgz", files)
        (tmp_path / "package").mkdir(exist_ok=True)
        for file in (tmp_path / "package").iterdir():
            file.unlink()
        for name, content in files.items():
            (tmp_path / "package" / name).write_bytes(content)
        return tmp_path / "package"

    first, *rest = small_files
    longer = {**small_files, first: small_files[first] + b"!"}
    changed = {**small_files, first: small_files[first][:-1] + b"!"}
    for files in (longer, changed, {name: small_files[name] for name in rest}):
        with pytest.raises(ModelError, match=re.escape(COMMAND)) as caught:
            read_runtime(package(files))
        assert first in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_that_is_no_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "package.tgz").write_bytes(b"hello")
    with pytest.raises(ModelError, match=r"package\.tgz: cannot be read as a package of npm"):
        read_runtime(tmp_path / "package.tgz")
    with pytest.raises(ModelError, match=r"missing\.tgz: no such file or folder"):
        read_runtime(tmp_path / "missing.tgz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of them"),
        (["-o", "a", "--web", "b"], "give one of them"),
        (["-o", "a", "--runtime", "c"], "only together with --web"),
        (["--web", "b", "--fp16", "--calibrate", "c"], "only together with --int8"),
        (["--web", "b", "--runtime", "missing.tgz"], "no such file or folder"),
    ],
)
def test_the_command_says_what_it_needs(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export", *arguments])
    assert done.exit_code != 0
    assert message in " ".join((done.output + str(done.exception)).replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []
