"""Detectors from the command line: `xlan detect`, extraction, packing, and a photo captioned from its regions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from typer.testing import CliRunner, Result

from xlan.cli.engine import detector_for_names
from xlan.cli.main import app
from xlan.errors import DataError, FeatureError, ModelError
from xlan.model.build import build_model
from xlan.model.spec import XLANSpec
from xlan.pipeline import Captioner
from xlan.pretrained import save_pretrained
from xlan.text.vocab import Vocabulary
from xlan.vision.detector.bottom_up import BottomUp, BottomUpSpec
from xlan.vision.detector.conventions import CAFFE, Selection
from xlan.vision.detector.directory import load_detector, save_bottom_up, save_lite
from xlan.vision.detector.lite import LiteDetector, LiteHeads
from xlan.vision.detector.lite_settings import LiteDetectorSpec
from xlan.vision.detector.resnet import ResNetSpec
from xlan.vision.efficientnet import EfficientNetLite
from xlan.vision.grid import GridExtractor
from xlan.vision.grid_settings import GridSettings
from xlan.vision.lite import SPECS, LiteSpec
from xlan.vision.naming import NamingExtractor
from xlan.vision.store import FeatureStore

SMALL = BottomUpSpec(
    resnet=ResNetSpec(stem=8, blocks=(1, 1, 1, 1), width=4, out=8),
    rpn=8,
    classes=5,
    attributes=3,
    embedding=4,
    attribute_hidden=8,
)
NAMES, QUALITIES = ["dog", "cat", "ball", "car", "tree"], ["red", "big", "wet"]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A drawn picture: a red ball on grass."""
    image = Image.new("RGB", (120, 90), (60, 160, 70))
    ImageDraw.Draw(image).ellipse((40, 25, 80, 65), fill=(220, 30, 30))
    image.save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def bottom_up(tmp_path: Path) -> Path:
    """A detector directory with a small random network; features 64 wide."""
    from dataclasses import replace

    convention = replace(CAFFE, short_side=96, long_side=128, proposals_before=100, proposals=30)
    convention = replace(convention, selection=Selection("confident", 4, 8, (0.3,)))
    torch.manual_seed(0)
    network = BottomUp(SMALL, convention)
    state = network.state_dict()
    save_bottom_up(tmp_path / "detector", SMALL, convention, state, objects=NAMES, attributes=QUALITIES)
    return tmp_path / "detector"


@pytest.fixture
def lite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the small kind with random weights; features 24 wide."""
    monkeypatch.setitem(SPECS, "tiny", LiteSpec("tiny", width=0.25, depth=0.25, input_size=64, head=24))
    torch.manual_seed(0)
    network = EfficientNetLite(SPECS["tiny"])
    GridExtractor(network, GridSettings("tiny", input_size=64)).save(tmp_path / "vision.safetensors")
    heads = LiteHeads(LiteDetectorSpec("tiny", tuple(NAMES), input_size=64, channels=8, hidden=16))
    save_lite(tmp_path / "lite", LiteDetector(network, heads), vision=tmp_path / "vision.safetensors")
    return tmp_path / "lite"


@pytest.fixture(params=["torch", "onnx"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that is installed."""
    if request.param == "onnx":
        pytest.importorskip("onnxruntime")
    return str(request.param)


def captioner(folder: Path, feature_dim: int) -> Path:
    """A model directory of the released form with random weights, without vision."""
    words = Vocabulary.from_words(["a", "red", "ball", "on", "grass"])
    torch.manual_seed(1)
    spec = XLANSpec(
        form="released",
        vocab_size=len(words),
        feature_dim=feature_dim,
        dim=16,
        depth=2,
        heads=2,
        hidden_dim=4,
        sigma="celu",
    )
    model = build_model(spec)
    save_pretrained(folder, spec, model.state_dict(), words)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


# detect


def test_a_table_of_what_is_there(photo: Path, bottom_up: Path) -> None:
    result = run("detect", photo, "--detector", bottom_up, "--min-score", "0")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert 4 <= len(lines) <= 36
    quality, name, score, first, second = lines[0].split()
    assert quality in QUALITIES
    assert name in NAMES
    assert 0 <= float(score) <= 1
    x0, y0, x1, y1 = (int(value) for corner in (first, second) for value in corner.split(","))
    assert 0 <= x0 <= x1 <= 120
    assert 0 <= y0 <= y1 <= 90
    scores = [float(line.split()[2]) for line in lines]
    assert scores == sorted(scores, reverse=True)


def test_lines_of_json(photo: Path, bottom_up: Path) -> None:
    result = run("detect", photo, "--detector", bottom_up, "--json", "--min-score", "0", "--most", "3")
    value = json.loads(result.stdout)
    assert (value["picture"], value["width"], value["height"]) == (str(photo), 120, 90)
    assert len(value["objects"]) == 3
    assert value["objects"][0].keys() == {"name", "score", "box", "attribute", "attribute_score"}


def test_a_drawn_picture(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    assert (
        run("detect", photo, "--detector", bottom_up, "--min-score", "0", "--draw", tmp_path / "x.png").exit_code == 0
    )
    drawn, before = (np.asarray(Image.open(path).convert("RGB")) for path in (tmp_path / "x.png", photo))
    assert drawn.shape == before.shape
    assert (drawn != before).any()


def test_a_folder_of_pictures(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    photo.rename(folder / "a.png")
    (folder / "b.png").write_bytes(b"PK\x03\x04")
    result = run("detect", folder, "--detector", bottom_up, "--min-score", "1", "--draw", tmp_path / "drawn")
    assert result.exit_code == 1
    assert f"{folder / 'a.png'}\n  nothing found" in result.stdout
    assert "b.png: is not a picture but a ZIP archive" in result.stderr
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["a.png"]


def test_one_file_cannot_hold_drawings_of_several(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    result = run("detect", photo, photo, "--detector", bottom_up, "--draw", tmp_path / "x.png")
    assert result.exit_code == 2
    assert not (tmp_path / "x.png").exists()


def test_a_drawing_never_replaces_the_picture(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    before = photo.read_bytes()
    (tmp_path / "link.png").symlink_to(photo)
    for target in (photo, tmp_path, tmp_path / "link.png"):
        with pytest.raises(DataError, match="is a picture that a drawing would replace"):
            run("detect", photo, "--detector", bottom_up, "--draw", target)
    assert photo.read_bytes() == before


def test_drawings_in_a_folder_of_photos_replace_none(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    photo.rename(folder / "more" / "1.png")
    Image.new("RGB", (40, 30)).save(folder / "1.jpg")
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with pytest.raises(DataError, match=r"1.png: is a picture that a drawing would replace"):
        run("detect", folder / "1.jpg", "--detector", bottom_up, "--draw", folder / "more")  # which is not even read
    shutil.copy(folder / "more" / "1.png", folder / "2.png")
    with pytest.raises(DataError, match=r"2.png: is a picture that a drawing would replace"):
        run("detect", folder, "--detector", bottom_up, "--draw", folder)
    assert {path: path.read_bytes() for path in before} == before


def test_pictures_with_one_name_have_a_drawing_each_and_a_second_run_replaces_them(
    photo: Path, bottom_up: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    for name in ("x/1.png", "y/1.png", "y/2.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, folder / name)
    made = []
    for _ in range(2):
        result = run("detect", folder, "--detector", bottom_up, "--min-score", "0", "--draw", folder / "drawn")
        assert result.exit_code == 0
        made.append({path.name for path in (folder / "drawn").iterdir()})
    assert len(made[0]) == 3
    assert "2.png" in made[0]
    assert made[0] == made[1]
    assert str(folder / "drawn") not in result.stdout


def test_without_any_detector(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlan.pretrained.SHIPPED", tmp_path)
    with pytest.raises(ModelError, match="this version of xlan comes without a detector; give one with --detector DIR"):
        run("detect", photo)


def test_the_small_detector_detects(photo: Path, lite: Path) -> None:
    result = run("detect", photo, "--detector", lite, "--json", "--min-score", "0", "--most", "5")
    objects = json.loads(result.stdout)["objects"]
    assert 1 <= len(objects) <= 5
    assert {thing["name"] for thing in objects} <= {*NAMES, "image"}


# extraction


def test_features_of_regions(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    arguments = ("features", "extract", photo, "-o", tmp_path / "store", "--detector", bottom_up)
    result = run(*arguments, "--regions", "5", "--dtype", "float32")
    assert result.exit_code == 0
    assert "1 pictures extracted" in result.stdout
    store = FeatureStore(tmp_path / "store")
    detector = load_detector(bottom_up, regions=(5, 5))
    expected = detector.extract([detector.prepare(Image.open(photo))])[0]
    assert store["photo"].features.shape == (5, 64)
    np.testing.assert_array_equal(store["photo"].features, expected.features)
    assert store.extractor["selection"]["most"] == 5
    assert "1 already there" in run(*arguments, "--regions", "5", "--dtype", "float32").stdout


def test_regions_and_grid_cells_together(photo: Path, lite: Path, tmp_path: Path) -> None:
    run("features", "extract", photo, "-o", tmp_path / "store", "--detector", lite, "--regions", "2", "--grid")
    assert FeatureStore(tmp_path / "store")["photo"].features.shape == (1 + 2 + 4, 24)


@pytest.mark.parametrize(
    "options",
    [("--regions", "5"), ("--grid",), ("--detector", "d", "--onnx", "o"), ("--detector", "d", "--regions", "x")],
)
def test_options_that_do_not_fit_are_usage_errors(photo: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert run("features", "extract", photo, "-o", tmp_path / "store", *options).exit_code == 2


def test_bottom_up_has_no_grid(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="only small detectors have grid cells beside their regions"):
        run("features", "extract", photo, "-o", tmp_path / "store", "--detector", bottom_up, "--grid")


# captioning


def test_a_released_model_captions_a_photo_with_a_detector(
    photo: Path, bottom_up: Path, tmp_path: Path, engine: str
) -> None:
    model = captioner(tmp_path / "model", 64)
    made = Captioner.from_pretrained(model, detector=bottom_up, engine=engine)  # type: ignore[arg-type]
    detector = load_detector(bottom_up)
    regions = detector.extract([detector.prepare(Image.open(photo))])
    assert made.caption(photo).text == made.caption_regions(regions)[0].text
    result = run("caption", photo, "--model", model, "--detector", bottom_up, "--engine", engine)
    assert result.stdout.strip() == made.caption(photo).text


def test_a_packed_model_brings_its_detector(photo: Path, bottom_up: Path, tmp_path: Path) -> None:
    model = captioner(tmp_path / "model", 64)
    result = run("pack", model, "--detector", bottom_up, "--full", "-o", tmp_path / "whole")
    assert result.exit_code == 0
    assert "with detector; try" in result.stdout
    alone = Captioner.from_pretrained(tmp_path / "whole").caption(photo)
    assert alone == Captioner.from_pretrained(model, detector=bottom_up).caption(photo)


def test_a_packed_small_detector_shares_the_vision_network(photo: Path, lite: Path, tmp_path: Path) -> None:
    model = captioner(tmp_path / "model", 24)
    vision = lite / "vision.safetensors"
    result = run("pack", model, "--vision", vision, "--detector", lite, "-o", tmp_path / "whole")
    assert result.exit_code == 0
    assert not (tmp_path / "whole" / "detector" / "vision.safetensors").exists()
    assert Captioner.from_pretrained(tmp_path / "whole").caption(photo).text
    run("pack", model, "--vision", vision, "-o", tmp_path / "whole", "--force")
    assert not (tmp_path / "whole" / "detector").exists()


def test_features_of_another_type_name_the_file_that_has_them(lite: Path, tmp_path: Path, engine: str) -> None:
    words = Vocabulary.from_words(["a"])
    spec = XLANSpec(form="paper", vocab_size=len(words), feature_dim=24, dim=8, depth=1)
    description = {"extractor": "lite-detector", "fewest": "10", "most": 36}
    save_pretrained(tmp_path / "model", spec, build_model(spec).state_dict(), words, features=description)
    with pytest.raises(ModelError, match=r"config.json: its 'features' cannot be used: fewest must be a whole number"):
        Captioner.from_pretrained(tmp_path / "model", detector=lite, engine=engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (None, "selection must be an object, got None"),
        ("confidence", "selection must be an object, got 'confidence'"),
        ({"fewest": "10", "most": 36}, "fewest must be a whole number, got '10'"),
        ({"confidence": [0.2]}, r"confidence must be a number, got \[0.2\]"),
        ({"confidence": 2}, "confidence must be from 0 to 1, got 2"),
    ],
)
def test_a_selection_of_another_type_names_the_file_that_has_it(
    bottom_up: Path, tmp_path: Path, selection: object, message: str
) -> None:
    weights = load_detector(bottom_up).description["weights"]
    words = Vocabulary.from_words(["a"])
    spec = XLANSpec(form="paper", vocab_size=len(words), feature_dim=64, dim=8, depth=1)
    description = {"extractor": "bottom-up", "weights": weights, "selection": selection}
    save_pretrained(tmp_path / "model", spec, build_model(spec).state_dict(), words, features=description)
    with pytest.raises(ModelError, match=rf"config\.json: its 'features' cannot be used: {message}"):
        Captioner.from_pretrained(tmp_path / "model", detector=bottom_up)


def test_regions_are_made_as_the_model_was_trained_on(photo: Path, lite: Path, tmp_path: Path) -> None:
    run("features", "extract", photo, "-o", tmp_path / "store", "--detector", lite, "--regions", "2", "--grid")
    words = Vocabulary.from_words(["a"])
    spec = XLANSpec(form="paper", vocab_size=len(words), feature_dim=24, dim=8, depth=1)
    description = FeatureStore(tmp_path / "store").extractor
    state = build_model(spec).state_dict()
    save_pretrained(tmp_path / "model", spec, state, words, features=description)
    made = Captioner.from_pretrained(tmp_path / "model", detector=lite)
    assert made.extractor is not None
    assert made.extractor.description == description


def test_a_model_can_be_packed_in_its_own_place(photo: Path, lite: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run(
        "pack",
        captioner(tmp_path / "model", 24),
        "--vision",
        lite / "vision.safetensors",
        "--detector",
        lite,
        "-o",
        whole,
    )
    before = Captioner.from_pretrained(whole).caption(photo)
    own = ("--vision", whole / "vision.safetensors", "--detector", whole / "detector")
    assert run("pack", whole, *own, "-o", whole, "--force").exit_code == 0
    assert Captioner.from_pretrained(whole).caption(photo) == before
    assert sorted(item.name for item in tmp_path.iterdir() if item.name.startswith(".")) == []


def test_a_detector_that_did_not_make_the_features_is_refused(photo: Path, lite: Path, tmp_path: Path) -> None:
    run("features", "extract", photo, "-o", tmp_path / "store", "--detector", lite)
    words = Vocabulary.from_words(["a"])
    spec = XLANSpec(form="paper", vocab_size=len(words), feature_dim=24, dim=8, depth=1)
    features = {**FeatureStore(tmp_path / "store").extractor, "weights": "sha256:1111"}
    save_pretrained(tmp_path / "model", spec, build_model(spec).state_dict(), words, features=features)
    with pytest.raises(FeatureError, match="comes from another network than"):
        Captioner.from_pretrained(tmp_path / "model", detector=lite)
    with pytest.raises(FeatureError, match="comes from another network than"):
        run("pack", tmp_path / "model", "--detector", lite, "-o", tmp_path / "whole")


def test_a_detector_of_another_width_is_refused(bottom_up: Path, tmp_path: Path) -> None:
    model = captioner(tmp_path / "model", 40)
    with pytest.raises(ModelError, match=r"makes features 64 wide, .* was trained on 40; give the detector"):
        Captioner.from_pretrained(model, detector=bottom_up)
    with pytest.raises(ModelError, match=r"makes features 64 wide, .* was trained on 40"):
        run("pack", model, "--detector", bottom_up, "-o", tmp_path / "whole")


def test_packing_needs_something_that_sees(tmp_path: Path) -> None:
    assert run("pack", tmp_path, "-o", tmp_path / "whole").exit_code == 2


# Names for what words look at


@pytest.fixture
def on_grid(lite: Path, tmp_path: Path) -> Path:
    """A model directory on the cells of the small detector's own network."""
    model = captioner(tmp_path / "plain", 24)
    run("pack", model, "--vision", lite / "vision.safetensors", "-o", tmp_path / "on-grid")
    return tmp_path / "on-grid"


def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a random detector name what it would otherwise not be sure of."""
    monkeypatch.setattr("xlan.engines.load.LEAST_SCORE", 0.0)
    monkeypatch.setattr("xlan.vision.naming.LEAST_SCORE", 0.0)


def test_words_of_a_model_on_regions_point_at_named_boxes(
    photo: Path, bottom_up: Path, tmp_path: Path, engine: str
) -> None:
    model = captioner(tmp_path / "model", 64)
    options = ("--model", model, "--detector", bottom_up, "--engine", engine)
    said = json.loads(run("caption", photo, *options, "--json").stdout)
    found = load_detector(bottom_up)
    expected = found.detect([found.prepare(Image.open(photo))])[0]
    assert [thing["name"] for thing in said["things"]] == list(expected.names)
    assert all(word["spatial"] is None for word in said["words"])
    for word in said["words"]:
        look = word["looked_at"]
        assert look["name"] == expected.names[look["region"]]
        np.testing.assert_allclose(look["box"], expected.regions.boxes[look["region"]], atol=1e-5)
    explained = json.loads(run("explain", photo, *options, "-o", tmp_path / "page.html", "--json").stdout)
    assert [word["looked_at"] for word in explained["words"]] == [word["looked_at"] for word in said["words"]]
    page = (tmp_path / "page.html").read_text()
    assert page.count('class="plate"') == len(said["words"])
    assert f"{said['words'][0]['looked_at']['name']}</text>" in page
    assert run("explain", photo, *options, "-o", tmp_path / "figure.png").exit_code == 0


def test_beside_a_grid_the_captions_stay_and_boxes_get_names(
    photo: Path, on_grid: Path, lite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    alone = Captioner.from_pretrained(on_grid).caption(photo, attention=True)
    named = Captioner.from_pretrained(on_grid, detector=lite).caption(photo, attention=True)
    assert (alone.text, alone.score) == (named.text, named.score)
    assert alone.things == ()
    assert {thing.name for thing in named.things} <= set(NAMES)
    assert named.things
    for word in named.words:
        assert word.look is not None
        if word.look.thing is not None:
            assert word.look.region is None
            assert word.look.box == named.things[word.look.thing].box


def test_bottom_up_attention_can_look_beside_a_grid_too(
    photo: Path, on_grid: Path, bottom_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    named = Captioner.from_pretrained(on_grid, detector=bottom_up).caption(photo, attention=True)
    assert named.things
    assert {thing.name for thing in named.things} <= set(NAMES)


def test_without_attention_nobody_asks_the_detector(
    photo: Path, on_grid: Path, lite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Captioner.from_pretrained(on_grid, detector=lite)
    assert isinstance(made.extractor, NamingExtractor)
    monkeypatch.setattr(made.extractor.detector, "detect", lambda images: pytest.fail(f"asked for {len(images)}"))
    assert made.caption(photo).things == ()
    assert [result.things for result in made.caption_stream([photo])] == [()]  # type: ignore[union-attr]


def test_a_detector_in_the_directory_of_a_model_on_grid_cells_names_only(
    photo: Path, lite: Path, tmp_path: Path
) -> None:
    words = Vocabulary.from_words(["a"])
    spec = XLANSpec(form="paper", vocab_size=len(words), feature_dim=24, dim=8, depth=1)
    vision = GridExtractor.load(lite / "vision.safetensors")
    state = build_model(spec).state_dict()
    save_pretrained(tmp_path / "model", spec, state, words, features=vision.description)
    run("pack", tmp_path / "model", "--vision", lite / "vision.safetensors", "--detector", lite, "-o", tmp_path / "w")
    assert not Captioner.from_pretrained(tmp_path / "w").names_things
    assert detector_for_names(None, tmp_path / "w") == tmp_path / "w" / "detector"
    named = Captioner.from_pretrained(tmp_path / "w", detector=tmp_path / "w" / "detector")
    assert isinstance(named.extractor, NamingExtractor)


def test_explaining_two_models_names_boxes_for_both(
    photo: Path, on_grid: Path, lite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    options = ("--model", on_grid, "--compare", on_grid, "--detector", lite, "-o", tmp_path / "page.html", "--json")
    lines = run("explain", photo, *options).stdout.splitlines()
    assert [len(json.loads(line)["things"]) > 0 for line in lines] == [True, True]


@pytest.mark.parametrize("size", [(1, 1), (10000, 3), (3, 10000)])
@pytest.mark.parametrize("kind", ["bottom_up", "lite"])
def test_pictures_of_odd_sizes(
    tmp_path: Path, kind: str, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    Image.new("RGB", size, "navy").save(tmp_path / "odd.png")
    result = run("detect", tmp_path / "odd.png", "--detector", request.getfixturevalue(kind), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["width"], found["height"]) == size


@pytest.mark.parametrize("engine", ["onnx", "torch"])
@pytest.mark.parametrize(("picture", "name"), [("chelsea.png", "cat"), ("motorcycle_left.png", "motorcycle")])
def test_the_detector_that_comes_along_names_things_in_photos(picture: str, name: str, engine: str) -> None:
    skimage = pytest.importorskip("skimage")
    path = Path(skimage.__file__).parent / "data" / picture
    done = run("detect", path, "--json", "--engine", engine)
    (best, *_) = json.loads(done.stdout)["objects"]
    assert best["name"] == name
    assert best["score"] > 0.8
