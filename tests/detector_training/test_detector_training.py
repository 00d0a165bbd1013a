"""Training the small detector: targets, losses, precision, and a run that stops and continues as if it had not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from xlan.adapt.data import WHOLE, BoxLabels, View, random_view
from xlan.cli.main import app
from xlan.config import load_detector_config
from xlan.detector_training.build import marked_classes, repeated
from xlan.detector_training.data import DetectionLoader, boxes_in_view
from xlan.detector_training.evaluate import average_precision, fit_scores, proposal_recall
from xlan.detector_training.losses import Targets, match, sample
from xlan.detector_training.run import DetectorRun, DetectorSettings
from xlan.errors import ConfigError, DataError, ModelError, TrainingError, WeightsError
from xlan.files import open_locked, read_json_lines
from xlan.training.stop import StopRequest
from xlan.vision.detector.directory import load_detector
from xlan.vision.detector.lite_extractor import LiteExtractor
from xlan.vision.detector.lite_settings import Boxes, LiteSelection
from xlan.vision.efficientnet import EfficientNetLite
from xlan.vision.grid import GridExtractor, load_vision
from xlan.vision.grid_settings import GridSettings
from xlan.vision.lite import SPECS, LiteSpec
from xlan.vision.sources import Picture

CLASSES = ("red", "blue")
COLOURS = ((220, 30, 30), (30, 40, 220))


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPECS, "tiny", LiteSpec("tiny", width=0.25, depth=0.25, input_size=64, head=24))


@pytest.fixture
def vision(tmp_path: Path) -> Path:
    """A small backbone whose activations neither vanish nor grow."""
    torch.manual_seed(3)
    made = EfficientNetLite(SPECS["tiny"])
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        made(torch.randn(16, 3, 64, 64))
    GridExtractor(made, GridSettings("tiny", input_size=64)).save(tmp_path / "vision.safetensors")
    return tmp_path / "vision.safetensors"


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[list[Picture], BoxLabels]:
    """Grey pictures with one coloured square each, and its box."""
    random = np.random.default_rng(0)
    pictures, boxes = [], {}
    for i in range(12):
        image = Image.new("RGB", (64, 64), (128, 128, 128))
        side, label = int(random.integers(20, 36)), i % 2
        x, y = (int(random.integers(0, 64 - side)) for _ in range(2))
        image.paste(COLOURS[label], (x, y, x + side, y + side))
        image.save(tmp_path / f"{i}.png")
        pictures.append(Picture(str(i), f"{i}.png", tmp_path / f"{i}.png"))
        corners = [x / 64, y / 64, (x + side) / 64, (y + side) / 64]
        boxes[str(i)] = np.array([[label, 1.0, *corners]], dtype=np.float32)
    return pictures, BoxLabels(CLASSES, boxes)


def begin(folder: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path, **changes: object) -> DetectorRun:
    numbers = {"input_size": 64, "channels": 16, "hidden": 32, "epochs": 2, "batch": 4, "warmup": 2, "anchors": 32}
    settings = DetectorSettings(**{**numbers, "rois": 16, "average": 0.9, **changes})  # type: ignore[arg-type]
    pictures, boxes = drawn
    return DetectorRun(
        settings, train=pictures, boxes=boxes, val=pictures[:6], val_boxes=None, folder=folder, vision=vision
    )


# Boxes in view


def test_a_whole_view_keeps_boxes_where_they_are() -> None:
    rows = np.array([[1, 0.9, 0.25, 0.5, 0.75, 1.0]], dtype=np.float32)
    boxes, labels, unsure = boxes_in_view(rows, WHOLE, size=64, min_score=0.5)
    assert boxes.tolist() == [[16, 32, 48, 64]]
    assert labels.tolist() == [1]
    assert unsure.shape == (0, 4)


def test_a_mirrored_crop_moves_boxes() -> None:
    rows = np.array([[0, 1, 0.5, 0.0, 0.75, 0.5]], dtype=np.float32)
    view = View((0.5, 0.0, 1.0, 1.0), mirrored=True)
    boxes, _, _ = boxes_in_view(rows, view, size=100, min_score=0.5)
    np.testing.assert_allclose(boxes, [[50, 0, 100, 50]], atol=1e-4)


@pytest.mark.parametrize(
    ("row", "sure", "unsure"),
    [
        ([0, 0.2, 0.1, 0.1, 0.4, 0.4], 0, 1),  # a machine's weak guess
        ([0, 1.0, 0.4, 0.1, 0.9, 0.4], 0, 1),  # a fifth of it in view
        ([0, 1.0, 0.1, 0.1, 0.11, 0.4], 0, 1),  # thinner than can be found
        ([0, 1.0, 0.6, 0.6, 0.9, 0.9], 0, 0),  # out of view
        ([0, 1.0, 0.1, 0.1, 0.4, 0.4], 1, 0),
    ],
)
def test_boxes_that_are_unsure_or_out_of_view(row: list[float], sure: int, unsure: int) -> None:
    found = boxes_in_view(np.array([row], dtype=np.float32), View((0, 0, 0.5, 0.5)), size=64, min_score=0.35)
    assert (len(found[0]), len(found[2])) == (sure, unsure)


@given(st.integers(0, 2**32 - 1))
def test_boxes_stay_inside_the_view(seed: int) -> None:
    random = np.random.default_rng(seed)
    low = random.uniform(0, 0.9, (5, 2))
    corners = np.concatenate([low, np.minimum(1, low + random.uniform(0.01, 0.5, (5, 2)))], axis=1)
    rows = np.concatenate([np.zeros((5, 1)), np.ones((5, 1)), corners], axis=1).astype(np.float32)
    boxes, _, unsure = boxes_in_view(rows, random_view(random, min_area=0.3), size=64, min_score=0.5)
    for found in (boxes, unsure):
        assert ((found >= 0) & (found <= 64)).all()
        assert (found[:, 2:] >= found[:, :2]).all()


def test_no_boxes_at_all() -> None:
    boxes, labels, unsure = boxes_in_view(np.zeros((0, 6), dtype=np.float32), WHOLE, size=64, min_score=0.5)
    assert (boxes.shape, labels.shape, unsure.shape) == ((0, 4), (0,), (0, 4))


# Matching and sampling


def test_boxes_are_matched_by_overlap() -> None:
    target = Targets(
        torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([7]), torch.tensor([[50.0, 50.0, 60.0, 60.0]])
    )
    boxes = torch.tensor(
        [
            [0.0, 0.0, 10.0, 10.0],  # the thing
            [0.0, 0.0, 10.0, 20.0],  # overlaps by a half
            [80.0, 80.0, 90.0, 90.0],  # background
            [50.0, 50.0, 60.0, 60.0],  # unsure
        ]
    )
    found, _ = match(boxes, target, low=0.3, high=0.7, best_too=False)
    assert found.tolist() == [0, -2, -1, -2]
    found, _ = match(boxes[1:], target, low=0.6, high=0.7, best_too=True)
    assert found.tolist() == [0, -1, -2]  # the best there is, though it is not good


def test_small_background_is_unknown_where_only_a_machine_looked() -> None:
    boxes = torch.tensor([[80.0, 80.0, 90.0, 90.0], [10.0, 10.0, 60.0, 60.0]])
    people, machine = Targets(*_nothing()), Targets(*_nothing(), blind=20.0)
    assert match(boxes, people, low=0.3, high=0.7, best_too=False)[0].tolist() == [-1, -1]
    assert match(boxes, machine, low=0.3, high=0.7, best_too=False)[0].tolist() == [-2, -1]


def test_pictures_that_people_marked_are_shown_more_often(tmp_path: Path) -> None:
    pictures = [Picture(name, f"{name}.png", tmp_path / f"{name}.png") for name in "abc"]
    some = BoxLabels(CLASSES, {}, by_people=frozenset({"b"}))
    assert [picture.id for picture in repeated(pictures, some, 3)] == ["a", "b", "c", "b", "b"]
    everything = BoxLabels(CLASSES, {}, by_people=frozenset("abc"))
    assert repeated(pictures, everything, 3) == pictures


def test_boxes_say_which_pictures_people_marked(config: Path) -> None:
    labels = BoxLabels.load(config.parent / "boxes.json", config.parent / "true.json")
    assert labels.by_people == {"0", "1", "2"}


def test_without_things_everything_is_background() -> None:
    found, _ = match(torch.rand(5, 4), Targets(*_nothing()), low=0.3, high=0.7, best_too=True)
    assert found.tolist() == [-1] * 5


def _nothing() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0, 4)


def test_samples_have_their_share_of_things() -> None:
    found = torch.tensor([0] * 10 + [-1] * 50 + [-2] * 40)
    chosen = sample(found, count=16, things=0.25, generator=torch.Generator().manual_seed(0))
    assert len(chosen) == 16
    assert int((found[chosen] >= 0).sum()) == 4
    assert (found[chosen] != -2).all()
    assert len(set(chosen.tolist())) == 16


# Measuring


def scored(rows: list[list[float]]) -> Boxes:
    array = np.array(rows, dtype=np.float32).reshape(-1, 6)
    return Boxes(array[:, 2:], array[:, 1], array[:, 0].astype(np.int64))


def test_perfect_detections_have_full_precision() -> None:
    pytest.importorskip("pycocotools")
    boxes = np.array([[0, 0, 10, 10], [20, 20, 60, 50]], dtype=np.float32)
    truth = [(boxes, np.array([0, 1])), (boxes[:1], np.array([1]))]
    found = [scored([[0, 0.9, *boxes[0]], [1, 0.8, *boxes[1]]]), scored([[1, 0.7, *boxes[0]]])]
    assert average_precision(truth, found, classes=3) == {"AP": 100.0, "AP50": 100.0, "AP75": 100.0, "AR100": 100.0}


def test_precision_by_hand() -> None:
    """One class, two true boxes: a hit (0.9), a miss (0.8), and a box that overlaps by 0.6 (0.7)."""
    pytest.importorskip("pycocotools")
    truth = [(np.array([[0, 0, 10, 10], [50, 50, 60, 60]], dtype=np.float32), np.array([0, 0]))]
    found = [scored([[0, 0.9, 0, 0, 10, 10], [0, 0.8, 80, 80, 90, 90], [0, 0.7, 50, 50, 60, 56]])]
    scores = average_precision(truth, found, classes=1)
    # Recall 1/2 at precision 1 (51 of the 101 places), recall 1 at precision 2/3 (50 places).
    assert scores["AP50"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101, abs=0.01)
    assert scores["AP75"] == pytest.approx(100 * 51 / 101, abs=0.01)


def test_classes_that_nobody_marked_do_not_count() -> None:
    pytest.importorskip("pycocotools")
    truth = [(np.array([[0, 0, 10, 10]], dtype=np.float32), np.array([0]))]
    found = [scored([[1, 0.99, 30, 30, 40, 40], [0, 0.5, 0, 0, 10, 10]])]
    assert average_precision(truth, found, classes=2, marked=[0])["AP"] == 100.0


def test_marked_classes_are_those_that_occur() -> None:
    rows = np.array([[4, 1, 0, 0, 1, 1], [2, 1, 0, 0, 1, 1]], dtype=np.float32)
    assert marked_classes(BoxLabels(("a",) * 6, {"1": rows, "2": rows[:0]})) == (2, 4)


def test_nothing_to_measure_on_is_said() -> None:
    pytest.importorskip("pycocotools")
    with pytest.raises(DataError, match="have no boxes"):
        average_precision([(np.zeros((0, 4), dtype=np.float32), np.zeros(0, dtype=np.int64))], [], classes=1)


def test_recall_of_proposals() -> None:
    truth = [np.array([[0, 0, 10, 10], [50, 50, 60, 60]], dtype=np.float32), np.zeros((0, 4), dtype=np.float32)]
    proposals = [torch.tensor([[0.0, 0.0, 10.0, 12.0]]), torch.zeros(3, 4)]
    assert proposal_recall(truth, proposals) == 50.0


# Runs


def test_a_detector_learns_to_find_squares(
    tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path
) -> None:
    pytest.importorskip("pycocotools")
    pictures, boxes = drawn
    numbers = {"rate": 3e-3, "backbone_rate": 3e-3, "min_area": 0.9, "rois": 32, "anchors": 64}
    run = begin(tmp_path / "run", (pictures * 12, boxes), vision, epochs=5, backbone="own", **numbers)
    before = run.evaluate()["AP50"]
    assert run.run(log_every=36)
    last = [record for record in read_json_lines(tmp_path / "run" / "log.jsonl") if "epoch" in record][-1]
    assert before < 20
    assert last["AP50"] > 40
    assert last["recall100"] > 80
    detector = load_detector(tmp_path / "run" / "detector", regions=(1, 5), confidence=0.3)
    found = detector.detect([detector.prepare(Image.open(tmp_path / f"{i}.png")) for i in range(12)])
    right = [one.names[0] == CLASSES[i % 2] for i, one in enumerate(found)]
    assert sum(right) >= 8  # by chance 6


def test_scores_are_brought_to_the_share_that_is_right() -> None:
    random = np.random.default_rng(0)
    truth, found = [], []
    for _ in range(400):
        scores = np.sort(random.uniform(0.05, 0.95, 8)).astype(np.float32)[::-1]
        corners = np.stack([np.arange(8) * 20, np.zeros(8), np.arange(8) * 20 + 10, np.full(8, 10)], axis=1)
        right = random.uniform(size=8) < 1 / (1 + np.exp(-2 * np.log(scores / (1 - scores)) + 1))
        boxes, labels = corners.astype(np.float32), np.zeros(8, np.int64)
        found.append(Boxes(boxes, scores, labels))
        truth.append((boxes[right], labels[right]))
    slope, offset = fit_scores(truth, found)
    assert slope == pytest.approx(2, abs=0.2)
    assert offset == pytest.approx(-1, abs=0.2)


def test_a_thing_is_found_once_and_only_by_its_class() -> None:
    box = np.array([[0, 0, 10, 10]], np.float32)
    twice = Boxes(np.repeat(box, 3, axis=0), np.array([0.9, 0.8, 0.7], np.float32), np.array([1, 0, 0]))
    once = [(box, np.array([0]))]
    # Right is the second alone: the first is of another class, the third comes too late.
    fitted = fit_scores(once * 50, [twice] * 50, marked=(0,))
    assert fitted == fit_scores(once * 50, [Boxes(*(part[1:] for part in twice))] * 50)
    assert fit_scores(once, [Boxes(box, np.array([0.5], np.float32), np.array([0]))]) == (1.0, 0.0)


@pytest.mark.parametrize("backbone", ["shared", "own"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path, backbone: str
) -> None:
    pytest.importorskip("pycocotools")
    begin(tmp_path / "whole", drawn, vision, backbone=backbone).run(log_every=2)
    begin(tmp_path / "parts", drawn, vision, backbone=backbone).run(log_every=2, until_step=1)
    second = begin(tmp_path / "parts", drawn, vision, backbone=backbone)
    assert (second.resumed, second.step) == (True, 1)
    second.run(log_every=2, until_step=4)
    assert begin(tmp_path / "parts", drawn, vision, backbone=backbone).run(log_every=2)
    first, last = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert first.keys() == last.keys()
    for name in first:
        assert torch.equal(first[name], last[name]), name
    logs = []
    for name in ("whole", "parts"):
        records = list(read_json_lines(tmp_path / name / "log.jsonl"))
        logs.append([{key: value for key, value in record.items() if key != "images_per_s"} for record in records])
    assert logs[0] == logs[1]


def test_a_run_may_be_part_of_a_pass_and_compute_in_bfloat16(
    tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path
) -> None:
    pytest.importorskip("pycocotools")
    run = begin(tmp_path / "run", drawn, vision, epochs=0.7, precision="bf16")
    assert run.total_steps == 2  # of three
    assert run.run()
    last = list(read_json_lines(tmp_path / "run" / "log.jsonl"))[-1]
    assert (last["step"], last["epoch"]) == (2, 0.667)
    weights = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert {weights[name].dtype for name in weights if name.startswith("model.")} == {torch.float32}


def test_a_backbone_of_its_own_starts_as_the_file_has_it(
    tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path
) -> None:
    run = begin(tmp_path / "run", drawn, vision, backbone="own")
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for ours, theirs in zip(run.model.network(pixels), load_vision(vision)[0](pixels), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_shared_backbone_stays_as_it_is(tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path) -> None:
    pytest.importorskip("pycocotools")
    begin(tmp_path / "run", drawn, vision, epochs=1).run()
    assert (tmp_path / "run" / "detector" / "vision.safetensors").read_bytes() == vision.read_bytes()
    (tmp_path / "run" / "detector" / "vision.safetensors").unlink()
    with pytest.raises(
        ModelError, match=r"has no vision.safetensors; give the captioner whose vision network it shares"
    ):
        load_detector(tmp_path / "run" / "detector")
    detector = load_detector(tmp_path / "run" / "detector", vision=vision)
    assert isinstance(detector, LiteExtractor)
    other = tmp_path / "other.safetensors"
    GridExtractor(EfficientNetLite(SPECS["tiny"]), GridSettings("tiny", input_size=64)).save(other)
    with pytest.raises(WeightsError, match=r"other.safetensors: is not the vision network that .* was trained with"):
        load_detector(tmp_path / "run" / "detector", vision=other)


def test_one_pass_gives_the_grid_cells_that_the_grid_extractor_gives(
    tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path
) -> None:
    pytest.importorskip("pycocotools")
    begin(tmp_path / "run", drawn, vision, epochs=1).run()
    both = load_detector(tmp_path / "run" / "detector", grid=True, regions=(3, 3))
    alone = GridExtractor.load(vision, input_size=64)
    image = Image.open(tmp_path / "3.png").convert("RGB")
    regions, cells = both.extract([both.prepare(image)])[0], alone.extract([alone.prepare(image)])[0]
    assert len(regions) == 1 + 3 + 4
    np.testing.assert_allclose(regions.features[0], cells.features[0], atol=1e-5)
    np.testing.assert_allclose(regions.features[4:], cells.features[1:], atol=1e-5)
    np.testing.assert_array_equal(regions.boxes[4:], cells.boxes[1:])


def test_a_picture_without_any_detection_is_one_region(
    tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path
) -> None:
    pytest.importorskip("pycocotools")
    begin(tmp_path / "run", drawn, vision, epochs=1).run()
    detector = load_detector(tmp_path / "run" / "detector", regions=(0, 5), confidence=1.0)
    assert isinstance(detector, LiteExtractor)
    for size in ((1, 1), (10000, 3), (64, 64)):
        prepared = detector.prepare(Image.new("RGB", size))
        found = detector.detect([prepared])[0]
        assert found.names == ("image",)
        assert found.regions.boxes.tolist() == [[0, 0, 1, 1]]
        assert len(detector.extract([prepared])[0]) == 1


def test_a_request_to_stop_saves(tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path) -> None:
    stop = StopRequest()
    stop.signal = signal.SIGTERM
    assert not begin(tmp_path / "run", drawn, vision).run(stop=stop)
    assert begin(tmp_path / "run", drawn, vision).resumed


def test_other_settings_are_not_resumed(tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path) -> None:
    begin(tmp_path / "run", drawn, vision).run(until_step=1)
    with pytest.raises(TrainingError, match=r"other settings \(rois was 16, is 8\); choose another folder"):
        begin(tmp_path / "run", drawn, vision, rois=8)


def test_a_picture_that_cannot_be_read_stops_the_run(
    tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path
) -> None:
    (tmp_path / "3.png").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match=r"a picture of the dataset cannot be used: 3.png: is not a picture"):
        begin(tmp_path / "run", drawn, vision).run()


def test_batches_do_not_depend_on_where_a_run_begins(drawn: tuple[list[Picture], BoxLabels]) -> None:
    loader = DetectionLoader(*drawn, size=32, seed=5)
    steps = loader.training(batch=4, first_step=0)
    whole = [next(steps) for _ in range(5)]
    late = next(loader.training(batch=4, first_step=4))
    assert [s.number for s in late] == [s.number for s in whole[4]]
    assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(late, whole[4], strict=True))


@pytest.mark.parametrize(
    "wrong", [{"fewest": 5, "most": 3}, {"most": 0, "fewest": 0}, {"confidence": 1.5}], ids=lambda w: str(sorted(w))
)
def test_impossible_selections_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ModelError, match=r"expected 0 <= fewest <= most|confidence must be from 0 to 1"):
        LiteSelection(**wrong)  # type: ignore[arg-type]


# The command


def run_cli(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def config(tmp_path: Path, drawn: tuple[list[Picture], BoxLabels], vision: Path) -> Path:
    pictures, boxes = drawn
    images = [
        {"filename": picture.name, "split": "val" if i < 4 else "train", "sentences": [{"raw": "a square"}]}
        for i, picture in enumerate(pictures)
    ]
    (tmp_path / "dataset.json").write_text(json.dumps({"images": images}))
    rows = {name: value.tolist() for name, value in boxes.boxes.items()}
    (tmp_path / "boxes.json").write_text(json.dumps({"classes": CLASSES, "boxes": rows}))
    people = {name: [[value[0][0], *value[0][2:]]] for name, value in rows.items() if int(name) < 3}
    (tmp_path / "true.json").write_text(json.dumps({"classes": CLASSES, "boxes": people}))
    lines = {
        "output": tmp_path / "out",
        "dataset": tmp_path / "dataset.json",
        "boxes": f"[{tmp_path / 'boxes.json'}]",
        "true_boxes": tmp_path / "true.json",
        "vision": vision,
        "input_size": 64,
        "channels": 16,
        "hidden": 32,
        "epochs": 1,
        "batch": 4,
    }
    (tmp_path / "detector.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return tmp_path / "detector.yaml"


def test_the_command_trains_and_measures(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    result = run_cli("detector", "train", config)
    assert result.exit_code == 0
    assert "starting: 8 pictures, 2 steps, measured on 3" in result.stderr
    assert result.stdout.strip() == str(tmp_path / "out" / "detector")
    assert load_detector(tmp_path / "out" / "detector").feature_dim == 24
    measured = json.loads(run_cli("detector", "evaluate", config).stdout)
    scores = {"AP", "AP50", "AP75", "AR100", "recall100", "score_slope", "score_offset"}
    assert measured.keys() == {"step", "pictures", *scores}
    assert (measured["step"], measured["pictures"]) == (2, 3)


def test_there_must_be_a_run_to_measure(config: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"out: holds no run of a detector; train one with `xlan detector train`"):
        run_cli("detector", "evaluate", config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_folder_that_another_run_is_using(config: Path, tmp_path: Path, command: str) -> None:
    pytest.importorskip("fcntl")
    pytest.importorskip("pycocotools")
    (tmp_path / "out").mkdir()
    if command == "evaluate":
        run_cli("detector", "train", config)
    half = tmp_path / "out" / ".checkpoint.safetensors.abc.tmp"
    half.write_bytes(b"what the other one is writing")
    lock = open_locked(tmp_path / "out" / ".lock")
    try:
        with pytest.raises(TrainingError, match=r"out: another run is using this folder; choose another \(output=…\)"):
            run_cli("detector", command, config)
    finally:
        os.close(lock)
    assert half.exists()
    assert run_cli("detector", command, config).exit_code == 0
    assert not half.exists()


def test_an_unwritable_folder(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="file/run: cannot be written: Not a directory; choose another folder"):
        run_cli("detector", "train", config, f"output={tmp_path / 'file' / 'run'}")


def test_wrong_configurations_are_named(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'epoch'; did you mean 'epochs'"):
        load_detector_config(config, ["epoch=3"])
    with pytest.raises(ConfigError, match="'backbone' is 'frozen'; allowed: 'shared' or 'own'"):
        load_detector_config(config, ["backbone=frozen"])
    with pytest.raises(
        DataError, match=r"needs pictures with boxes, to train on .* and to measure on in test; found 8 and 0"
    ):
        run_cli("detector", "train", config, "measure=[test]")
    (tmp_path / "true.json").write_text(json.dumps({"classes": ["red"], "boxes": {}}))
    with pytest.raises(DataError, match=r"true.json: its classes differ from those of .*boxes.json"):
        run_cli("detector", "train", config)


def test_the_shipped_configuration_is_valid() -> None:
    shipped = Path(__file__).parents[2] / "configs" / "detector" / "coco.yaml"
    assert load_detector_config(shipped).backbone == "shared"
