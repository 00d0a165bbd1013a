"""Export directories: written whole, read with care, and what they caption is what the model captions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from typer.testing import CliRunner

from xlan import Captioner, CaptionOptions
from xlan.cli.main import app
from xlan.errors import ModelError, WeightsError, XlanError
from xlan.export.directory import EXPORT, read_export
from xlan.exporting import TOLERANCES, Tolerance, _random_regions, export_model
from xlan.files import file_sha256
from xlan.pretrained import FAMILIAR, WORD_HEAD, read_model_directory, save_pretrained
from xlan.vision.familiar import Familiar
from xlan.vision.words import WordHead


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (50, 70, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def exported(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "plain"
    export_model(model_directory, folder)
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_it_captions_as_the_model_does(exported: Path, model_directory: Path) -> None:
    options = CaptionOptions(attention=True, runners_up=2)
    pictures = [picture(i) for i in range(3)]
    ours = Captioner.from_pretrained(exported).caption(pictures, options)
    theirs = Captioner.from_pretrained(model_directory, engine="torch").caption(pictures, options)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.text, [o.text for o in a.others]) == (b.text, [o.text for o in b.others])
        assert a.score == pytest.approx(b.score, abs=1e-4)
        assert a.confidence == pytest.approx(b.confidence, abs=1e-4)
        for one, two in zip(a.words, b.words, strict=True):
            np.testing.assert_allclose(one.spatial, two.spatial, atol=1e-4)
            np.testing.assert_allclose(one.channel, two.channel, atol=1e-4)
            assert [w for w, _ in one.runners_up] == [w for w, _ in two.runners_up]


def test_graphs_say_what_they_are(exported: Path) -> None:
    about = json.loads((exported / EXPORT).read_text())
    for name in ("encoder", "decoder", "vision"):
        graph = onnx.load(exported / f"{name}.onnx")
        onnx.checker.check_model(graph, full_check=True)
        said = {pair.key: pair.value for pair in graph.metadata_props}
        assert said == {
            "xlan.format": "1",
            "xlan.part": name,
            "xlan.model": about["model_hash"],
            "xlan.precision": "float32",
        }
    assert about["vision"]["input_size"] == 64


def test_its_description_names_engine_and_precision(exported: Path) -> None:
    description = Captioner.from_pretrained(exported).engine.description
    assert (description["engine"], description["precision"]) == ("onnx", "float32")
    assert description["parameters"] > 1000


def run(*arguments: object):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_the_command_says_how_well_it_agrees(model_directory: Path, tmp_path: Path) -> None:
    result = run(model_directory, "-o", tmp_path / "half", "--fp16")
    assert result.exit_code == 0
    assert "log-probabilities differ from PyTorch by at most" in result.stderr
    assert "4 of 4 test captions are the same" in result.stderr
    assert f"try: xlan caption --model {tmp_path / 'half'} PHOTO" in result.stdout
    sizes = {name: (tmp_path / "half" / name).stat().st_size for name in ("encoder.onnx", "vision.onnx")}
    assert sizes["vision.onnx"] < 0.6 * 13e6
    again = run(model_directory, "-o", tmp_path / "half")
    assert isinstance(again.exception, ModelError)
    assert "an export directory already exists there; use --force to replace it" in str(again.exception)
    assert run(model_directory, "-o", tmp_path / "half", "--force").exit_code == 0
    assert read_export(tmp_path / "half", verify=True).precision == "float32"


@pytest.mark.parametrize("shared", [True, False])
def test_a_detector_is_not_exported_and_that_is_said(
    model_directory: Path, detector_directory: Path, tmp_path: Path, shared: bool
) -> None:
    """Whether the detector shares the model's vision network or has its own: the export takes region features."""
    found = read_model_directory(model_directory)
    extras = found.extras if shared else {}
    save_pretrained(tmp_path / "model", found.spec, found.weights(), found.vocabulary, extras=extras)
    shutil.copytree(detector_directory, tmp_path / "model" / "detector")
    result = run(tmp_path / "model", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.exception
    assert "its detector is not exported; the export captions region features, not pictures" in result.stderr
    assert "4 of 4 test captions are the same" in result.stderr
    assert "it captions region features, not pictures" in result.stdout
    assert "try: xlan caption" not in result.stdout
    assert not (tmp_path / "out" / "vision.onnx").exists()
    regions = _random_regions(found.spec.feature_dim)
    ours, theirs = (Captioner.from_pretrained(tmp_path / name).caption_regions(regions) for name in ("out", "model"))
    assert [caption.text for caption in ours] == [caption.text for caption in theirs]


def test_a_detector_beside_a_model_on_grid_cells_changes_nothing(
    model_directory: Path, detector_directory: Path, tmp_path: Path
) -> None:
    found = read_model_directory(model_directory)
    how = {"extras": found.extras, "features": {"extractor": "grid"}}
    save_pretrained(tmp_path / "model", found.spec, found.weights(), found.vocabulary, **how)  # type: ignore[arg-type]
    shutil.copytree(detector_directory, tmp_path / "model" / "detector")
    result = run(tmp_path / "model", "-o", tmp_path / "out")
    assert f"try: xlan caption --model {tmp_path / 'out'} PHOTO" in result.stdout
    assert "detector" not in result.stderr


def test_a_model_without_vision_is_not_said_to_caption_pictures(model_directory: Path, tmp_path: Path) -> None:
    found = read_model_directory(model_directory)
    save_pretrained(tmp_path / "model", found.spec, found.weights(), found.vocabulary)
    result = run(tmp_path / "model", "-o", tmp_path / "out")
    assert "it captions region features, not pictures: see Captioner.caption_regions" in result.stdout
    assert "detector" not in result.stderr


@pytest.mark.slow
def test_8_bits_are_a_quarter_of_the_size(model_directory: Path, exported: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for i in range(6):
        picture(i).resize((64, 64)).save(tmp_path / "pictures" / f"{i}.png")
    result = run(model_directory, "-o", tmp_path / "int8", "--int8", "--calibrate", tmp_path / "pictures")
    assert result.exit_code == 0, result.exception
    assert "measuring the vision network on 6 pictures" in result.stderr

    def size(folder: Path) -> int:
        return (folder / "vision.onnx").stat().st_size

    assert size(tmp_path / "int8") < 0.4 * size(exported)
    assert Captioner.from_pretrained(tmp_path / "int8").caption(picture(0)).words


def test_8_bits_without_pictures_leave_16_to_the_vision_network(
    model_directory: Path, exported: Path, tmp_path: Path
) -> None:
    result = run(model_directory, "-o", tmp_path / "int8", "--int8")
    assert result.exit_code == 0, result.exception
    assert "the vision network keeps 16 bits; --calibrate with pictures gives it 8" in result.stderr
    sizes = [(folder / "vision.onnx").stat().st_size for folder in (tmp_path / "int8", exported)]
    assert 0.45 < sizes[0] / sizes[1] < 0.6


def test_8_bits_are_for_confidence_too(model_directory: Path, tmp_path: Path) -> None:
    found, random = read_model_directory(model_directory), np.random.default_rng(0)
    width = found.spec.feature_dim
    head = WordHead(("dog", "cat"), random.normal(size=(2, width)).astype(np.float32), np.zeros(2, np.float32))
    familiar = Familiar.of(np.abs(random.normal(size=(20, 3, width))))
    head.save(tmp_path / WORD_HEAD)
    familiar.save(tmp_path / FAMILIAR)
    extras = {**found.extras, WORD_HEAD: tmp_path / WORD_HEAD, FAMILIAR: tmp_path / FAMILIAR}
    save_pretrained(tmp_path / "model", found.spec, found.weights(), found.vocabulary, extras=extras)
    export_model(tmp_path / "model", tmp_path / "plain")
    export_model(tmp_path / "model", tmp_path / "int8", precision="int8")
    for name in (WORD_HEAD, FAMILIAR):
        sizes = [(tmp_path / kind / name).stat().st_size for kind in ("int8", "plain")]
        assert sizes[0] < 0.7 * sizes[1], name
    assert Captioner.from_pretrained(tmp_path / "int8").caption(picture(0)).words


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    assert run("-o", tmp_path / "x", "--calibrate", "a.png").exit_code == 2
    assert run("-o", tmp_path / "x", "--fp16", "--int8").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_difference_is_an_error_and_leaves_nothing(
    model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOLERANCES, "float32", Tolerance(0.0, 0.0))
    with pytest.raises(ModelError, match=r"the export differs from PyTorch: .* nothing was written"):
        export_model(model_directory, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_other_things_are_not_replaced(model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("four years")
    with pytest.raises(ModelError, match="already exists and is not an export directory"):
        export_model(model_directory, tmp_path / "mine", replace=True)


def edit(folder: Path, **changes: object) -> None:
    about = json.loads((folder / EXPORT).read_text())
    (folder / EXPORT).write_text(json.dumps({**about, **changes}))


def test_a_foreign_onnx_directory(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"whatever")
    with pytest.raises(ModelError, match="not a model directory"):
        Captioner.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"not an export directory \(there is no export\.json in it\)"):
        read_export(tmp_path)
    (tmp_path / EXPORT).write_text('{"opset": 17}')
    with pytest.raises(ModelError, match="not the description of an export"):
        Captioner.from_pretrained(tmp_path)


def test_a_future_format(copy: Path) -> None:
    edit(copy, format=2)
    with pytest.raises(ModelError, match="format 2, this version of xlan reads format 1; install the version"):
        Captioner.from_pretrained(copy)


@pytest.mark.parametrize("name", ["encoder.onnx", "decoder.onnx", "vision.onnx", "vocab.json"])
def test_a_truncated_or_missing_file(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-7])
    with pytest.raises(WeightsError, match=rf"{name}: .* bytes, expected .*; copy the directory again"):
        Captioner.from_pretrained(copy)
    (copy / name).unlink()
    with pytest.raises(WeightsError, match=f"{name} is missing; copy the directory again"):
        Captioner.from_pretrained(copy)


def test_a_graph_that_is_none(copy: Path) -> None:
    size = (copy / "decoder.onnx").stat().st_size
    (copy / "decoder.onnx").write_bytes(b"\xff" * size)
    with pytest.raises(WeightsError, match=r"decoder\.onnx: cannot be run by onnxruntime"):
        Captioner.from_pretrained(copy)
    with pytest.raises(WeightsError, match=r"decoder\.onnx: damaged \(its SHA-256 differs\)"):
        read_export(copy, verify=True)


def test_a_wrong_vocabulary(copy: Path) -> None:
    vocabulary = json.loads((copy / "vocab.json").read_text())
    vocabulary["words"].append("zebra")
    text = json.dumps(vocabulary)
    (copy / "vocab.json").write_text(text)
    files = json.loads((copy / EXPORT).read_text())["files"]
    files["vocab.json"] = {"bytes": len(text), "sha256": file_sha256(copy / "vocab.json")}
    edit(copy, files=files)
    with pytest.raises(ModelError, match=r"vocab\.json has 12 words, the model has 11"):
        Captioner.from_pretrained(copy)


def test_a_vocabulary_with_other_words_of_the_same_length(copy: Path) -> None:
    text = (copy / "vocab.json").read_text()
    word = json.loads(text)["words"][-1]
    (copy / "vocab.json").write_text(text.replace(f'"{word}"', f'"{word[::-1].swapcase()}"'))
    with pytest.raises(WeightsError, match=r"vocab\.json: damaged \(its SHA-256 differs\); copy the directory again"):
        Captioner.from_pretrained(copy)


def test_parts_of_another_export(copy: Path) -> None:
    edit(copy, model_hash="0" * 64)
    with pytest.raises(ModelError, match=r"encoder\.onnx: is not part of this export"):
        Captioner.from_pretrained(copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "float8"}, "unknown precision 'float8'"),
        ({"precision": 3}, "expected 'precision' to be str, got 3"),
        ({"vision": [1]}, "its 'vision' cannot be read"),
        ({"files": {"encoder.onnx": 3}}, "'files' must give bytes and sha256 of encoder.onnx"),
        ({"files": []}, "'model' and 'files' must be objects"),
        ({"model": {"architecture": "gpt"}}, "architecture must be one of"),
    ],
)
def test_a_damaged_description(copy: Path, changes: dict[str, object], message: str) -> None:
    edit(copy, **changes)
    with pytest.raises(XlanError, match=message):
        Captioner.from_pretrained(copy)


def test_files_outside_the_directory_are_refused(copy: Path) -> None:
    files = json.loads((copy / EXPORT).read_text())["files"]
    edit(copy, files={**files, "../secret": {"bytes": 1, "sha256": "0"}})
    with pytest.raises(WeightsError, match="secret is missing"):
        Captioner.from_pretrained(copy)


def test_an_export_runs_with_onnx_only(exported: Path) -> None:
    with pytest.raises(ModelError, match="is an export and runs with the onnx engine on the cpu only"):
        Captioner.from_pretrained(exported, engine="torch")
