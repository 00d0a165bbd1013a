from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from xlan.cli.main import app
from xlan.errors import WeightsError
from xlan.exporting import export_model
from xlan.model.build import build_model
from xlan.pipeline import Captioner
from xlan.pretrained import from_pretrained, save_pretrained
from xlan.types import Regions
from xlan.vision.grid import GridExtractor
from xlan.vision.regions import extract_regions
from xlan.vision.store import FeatureStoreWriter


@pytest.fixture
def trained(model_directory: Path, tmp_path: Path) -> Path:
    """The model without its vision, as training leaves it."""
    loaded = from_pretrained(model_directory)
    save_pretrained(
        tmp_path / "trained", loaded.model.spec, loaded.model.state_dict(), loaded.vocabulary, card="# of the run\n"
    )
    return tmp_path / "trained"


def pack(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["pack", *map(str, arguments)])
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_what_it_writes_captions_pictures_as_before(trained: Path, model_directory: Path, tmp_path: Path) -> None:
    status, _ = pack(trained, "--vision", model_directory / "vision.safetensors", "--full", "-o", tmp_path / "whole")
    assert status == 0
    image = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    ours = Captioner.from_pretrained(tmp_path / "whole").caption(image)
    assert ours == Captioner.from_pretrained(model_directory).caption(image)
    assert (tmp_path / "whole" / "README.md").read_text() == "# of the run\n"


def test_half_precision_halves_the_weights(trained: Path, model_directory: Path, tmp_path: Path) -> None:
    status, said = pack(trained, "--vision", model_directory / "vision.safetensors", "-o", tmp_path / "whole")
    assert status == 0
    assert f"xlan caption --model {tmp_path / 'whole'}" in said.replace("\n", "")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (trained, tmp_path / "whole")]
    assert sizes[1] < 0.6 * sizes[0]


def test_a_card_of_ones_own(trained: Path, model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text("# mine\n")
    vision = model_directory / "vision.safetensors"
    pack(trained, "--vision", vision, "--card", tmp_path / "card.md", "-o", tmp_path / "whole")
    assert (tmp_path / "whole" / "README.md").read_text() == "# mine\n"


def test_a_model_that_is_there_is_replaced_only_when_told(trained: Path, model_directory: Path, tmp_path: Path) -> None:
    arguments = [trained, "--vision", model_directory / "vision.safetensors", "-o", tmp_path / "whole"]
    assert pack(*arguments)[0] == 0
    status, said = pack(*arguments)
    assert status == 1
    assert "already exists there; use --force" in said
    assert pack(*arguments, "--force")[0] == 0


def test_vision_that_did_not_make_the_features_is_refused(model_directory: Path, tmp_path: Path) -> None:
    loaded = from_pretrained(model_directory)
    vision, weights = model_directory / "vision.safetensors", loaded.model.state_dict()
    right = GridExtractor.load(vision).description
    for features, status in ((right, 0), ({**right, "weights": "sha256:0000"}, 1)):
        save_pretrained(tmp_path / "model", loaded.model.spec, weights, loaded.vocabulary, features=features)
        found, said = pack(tmp_path / "model", "--vision", vision, "--force", "-o", tmp_path / "whole")
        assert found == status, said
    assert "comes from another network than" in said
    assert "weights sha256:" in said


@pytest.fixture
def larger(model_directory: Path, tmp_path: Path) -> Path:
    """A model whose training features come from larger pictures and another grid than its vision file says."""
    loaded = from_pretrained(model_directory)
    vision, weights = model_directory / "vision.safetensors", loaded.model.state_dict()
    features = GridExtractor.load(vision, input_size=96, cells=2).description
    save_pretrained(tmp_path / "model", loaded.model.spec, weights, loaded.vocabulary, features=features)
    assert pack(tmp_path / "model", "--vision", vision, "--full", "-o", tmp_path / "whole")[0] == 0
    return tmp_path / "whole"


@pytest.mark.parametrize("engine", ["onnx", "torch", "export"])
def test_pictures_are_seen_at_the_size_of_the_training_features(
    larger: Path, model_directory: Path, tmp_path: Path, engine: str
) -> None:
    if engine == "export":
        export_model(larger, tmp_path / "export")
    opened = (
        Captioner.from_pretrained(tmp_path / "export")
        if engine == "export"
        else Captioner.from_pretrained(larger, engine=engine)
    )
    extractor = GridExtractor.load(model_directory / "vision.safetensors", input_size=96, cells=2)
    [expected] = extract_regions(extractor, [noise(0)])
    assert opened.extractor is not None
    [found] = extract_regions(opened.extractor, [noise(0)])
    assert len(found) == 5
    np.testing.assert_allclose(found.features, expected.features, atol=1e-3)


def test_settings_that_cannot_be_are_refused(larger: Path) -> None:
    about = json.loads((larger / "config.json").read_text())
    about["features"]["input_size"] = "wide"
    (larger / "config.json").write_text(json.dumps(about))
    for engine in ("onnx", "torch"):
        with pytest.raises(WeightsError, match=r"vision.safetensors: cannot be used with .*'input_size': 'wide'"):
            Captioner.from_pretrained(larger, engine=engine)


def test_vision_of_another_width_is_refused(model_directory: Path, tmp_path: Path) -> None:
    loaded = from_pretrained(model_directory)
    narrow = build_model("xlan-tiny", vocab_size=len(loaded.vocabulary), feature_dim=32)
    save_pretrained(tmp_path / "narrow", narrow.spec, narrow.state_dict(), loaded.vocabulary)
    status, said = pack(
        tmp_path / "narrow", "--vision", model_directory / "vision.safetensors", "-o", tmp_path / "whole"
    )
    assert status == 1
    assert "makes features 1280 wide" in said
    assert "was trained on 32" in said
    assert not (tmp_path / "whole").exists()


@pytest.fixture
def store(model_directory: Path, tmp_path: Path) -> Path:
    """Features of one picture with small changes, as if the model had been trained on these alone."""
    extractor = Captioner.from_pretrained(model_directory).extractor
    assert extractor is not None
    with FeatureStoreWriter(tmp_path / "store") as writer:
        for i in range(24):
            writer.add(f"{i}", extract_regions(extractor, [almost_the_same(i)])[0])
    return tmp_path / "store"


def almost_the_same(seed: int) -> np.ndarray:
    return noise(0) // 8 * 8 + noise(seed) // 64


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (48, 48, 3), dtype=np.uint8)


def test_pictures_unlike_the_training_pictures_lower_its_confidence(
    trained: Path, model_directory: Path, store: Path, tmp_path: Path
) -> None:
    vision = model_directory / "vision.safetensors"
    pack(trained, "--vision", vision, "--full", "-o", tmp_path / "plain")
    status, said = pack(trained, "--vision", vision, "--full", "--features", store, "-o", tmp_path / "whole")
    assert status == 0, said
    plain, whole = (Captioner.from_pretrained(tmp_path / name) for name in ("plain", "whole"))
    usual, unusual = almost_the_same(3), noise(100)
    assert whole.caption(usual).confidence == pytest.approx(plain.caption(usual).confidence)
    assert whole.caption(unusual).confidence < 0.5 * plain.caption(unusual).confidence
    assert whole.caption(unusual).score == plain.caption(unusual).score


def test_only_the_training_split_counts(trained: Path, model_directory: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "captions.jsonl").write_text('{"image": "1", "caption": "a dog", "split": "train"}\n')
    status, said = pack(
        trained, "--vision", model_directory / "vision.safetensors", "-o", tmp_path / "whole",
        "--features", store, "--captions", tmp_path / "captions.jsonl",
    )  # fmt: skip
    assert status == 1
    assert "expected more than 10 pictures to compare with, got 1" in said


def test_captions_without_features_are_refused(trained: Path, tmp_path: Path) -> None:
    status, said = pack(trained, "--vision", "v", "-o", tmp_path / "whole", "--captions", "c.json")
    assert status == 2
    assert "only together with" in said


def test_what_the_model_knows_of_its_training_pictures_is_kept(
    trained: Path, model_directory: Path, store: Path, tmp_path: Path
) -> None:
    vision = model_directory / "vision.safetensors"
    pack(trained, "--vision", vision, "--features", store, "-o", tmp_path / "one")
    status, said = pack(tmp_path / "one", "--vision", vision, "-o", tmp_path / "two")
    assert status == 0, said
    assert "with familiar.safetensors, vision.safetensors" in said
    one, two = ((tmp_path / name / "familiar.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_pictures_are_found_by_file_name_too(trained: Path, model_directory: Path, store: Path, tmp_path: Path) -> None:
    """As training finds them: the store has `7`, the captions file has an image of another id whose file is 7.jpg."""
    lines = [{"id": 1000 + i, "image": f"{i}.jpg", "caption": "a dog", "split": "train"} for i in range(24)]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, said = pack(
        trained, "--vision", model_directory / "vision.safetensors", "-o", tmp_path / "whole",
        "--features", store, "--captions", tmp_path / "captions.jsonl",
    )  # fmt: skip
    assert status == 0, said
    assert (tmp_path / "whole" / "familiar.safetensors").is_file()


def test_features_of_another_network_do_not_become_familiar_pictures(larger: Path, store: Path, tmp_path: Path) -> None:
    index = json.loads((store / "index.json").read_text())
    index["extractor"] = {"extractor": "grid", "weights": "sha256:dead"}
    (store / "index.json").write_text(json.dumps(index))
    vision = larger / "vision.safetensors"
    status, said = pack(larger, "--vision", vision, "--features", store, "-o", tmp_path / "again")
    assert status == 1
    assert "comes from another network than" in said


def test_familiar_pictures_have_the_width_of_the_model(trained: Path, model_directory: Path, tmp_path: Path) -> None:
    with FeatureStoreWriter(tmp_path / "narrow") as writer:
        for i in range(24):
            features = np.random.default_rng(i).random((3, 8), np.float32)
            writer.add(f"{i}", Regions(features, np.zeros((3, 4), np.float32), width=9, height=9))
    vision = model_directory / "vision.safetensors"
    status, said = pack(trained, "--vision", vision, "--features", tmp_path / "narrow", "-o", tmp_path / "whole")
    assert status == 1
    assert "the familiar pictures have features 8 wide" in said


def test_a_model_on_two_levels_can_be_packed(model_directory: Path, tmp_path: Path) -> None:
    vision = model_directory / "vision.safetensors"
    extractor = GridExtractor.load(vision, levels=(16, 32))
    words = from_pretrained(model_directory).vocabulary
    model = build_model("xlan-tiny", vocab_size=len(words), feature_dim=extractor.feature_dim)
    weights = model.state_dict()
    save_pretrained(tmp_path / "model", model.spec, weights, words, features=extractor.description)
    status, said = pack(tmp_path / "model", "--vision", vision, "-o", tmp_path / "whole")
    assert status == 0, said
    opened = Captioner.from_pretrained(tmp_path / "whole").extractor
    assert opened is not None
    assert opened.feature_dim == extractor.feature_dim
