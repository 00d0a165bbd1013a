"""Adaptation: targets, views, the pooled loss, and a run that stops and resumes as if it had not."""

from __future__ import annotations

import gzip
import json
import math
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from xlan.adapt import run as adapt
from xlan.adapt.data import (
    WHOLE,
    BoxLabels,
    Loader,
    View,
    caption_words,
    cell_targets,
    random_view,
    view_pixels,
    word_targets,
)
from xlan.adapt.network import WordModel, mean_average_precision
from xlan.adapt.run import Adaptation, AdaptSettings
from xlan.errors import DataError, TrainingError
from xlan.files import read_json_lines
from xlan.training.stop import StopRequest
from xlan.vision import efficientnet
from xlan.vision.efficientnet import EfficientNetLite
from xlan.vision.grid import GridExtractor, normalise
from xlan.vision.lite import SPECS, LiteSpec
from xlan.vision.sources import Picture
from xlan.vision.words import WordHead

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "white": (240, 240, 240)}


def spec() -> LiteSpec:
    return LiteSpec("tiny", width=0.25, depth=0.25, input_size=32, head=24)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Callable[[], EfficientNetLite]:
    """Makes the same small network each time, its statistics set so that activations neither vanish nor grow."""
    monkeypatch.setitem(SPECS, "tiny", spec())

    def make() -> EfficientNetLite:
        torch.manual_seed(3)
        made = EfficientNetLite(spec())
        norms = [module for module in made.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = 1.0
        with torch.no_grad():
            made(torch.randn(16, 3, 64, 64))
        return made

    return make


@pytest.fixture
def pictures(tmp_path: Path) -> list[Picture]:
    """Plain coloured pictures, whose captions name the colour."""
    made = []
    for i in range(16):
        name = list(COLOURS)[i % 4]
        path = tmp_path / f"{i}.png"
        Image.new("RGB", (32, 32), COLOURS[name]).save(path)
        made.append(Picture(str(i), path.name, path, captions=(f"a {name} thing", f"the {name} square")))
    return made


def begin(
    folder: Path,
    pictures: list[Picture],
    network: EfficientNetLite,
    *,
    boxes: BoxLabels | None = None,
    epochs: float = 3,
    precision: str = "fp32",
) -> Adaptation:
    settings = AdaptSettings(
        "tiny",
        input_size=32,
        test_size=40,
        words=4,
        epochs=epochs,
        batch=4,
        rate=1e-3,
        warmup=2,
        min_area=0.8,
        precision=precision,
    )
    return Adaptation(settings, train=pictures, val=pictures[:8], folder=folder, boxes=boxes, network=network)


def test_words_are_content_words_by_frequency() -> None:
    captions = [("A dog on the grass.", "dog running"), ("a dog",), ("grass and sky",)]
    pictures = [Picture(str(i), "", Path(), captions=each) for i, each in enumerate(captions)]
    assert caption_words(pictures, size=2) == ["dog", "grass"]
    assert word_targets(pictures, ["dog", "grass"]).tolist() == [[1.0, 0.5], [1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(DataError, match="have 4 content words, fewer than the 9 asked for"):
        caption_words(pictures, size=9)


def test_boxes_are_read_and_checked(tmp_path: Path) -> None:
    value = {"classes": ["cat", "dog"], "boxes": {"7": [[1, 0.9, 0, 0, 0.5, 1]], "8": []}}
    plain, packed = tmp_path / "b.json", tmp_path / "b.json.gz"
    plain.write_text(json.dumps(value))
    packed.write_bytes(gzip.compress(json.dumps(value).encode()))
    for path in (plain, packed):
        labels = BoxLabels.load(path)
        assert labels.classes == ("cat", "dog")
        assert labels.boxes["7"].shape == (1, 6)
        assert labels.boxes["8"].shape == (0, 6)
    for wrong, message in (
        ({"classes": ["cat"]}, "is not a file of boxes"),
        ({"classes": ["cat"], "boxes": {"7": [[3, 1, 0, 0, 1, 1]]}}, "a class outside 0 to 0"),
        ({"classes": ["cat"], "boxes": {"7": [[0, 1, 0]]}}, "is not a file of boxes"),
        ({"classes": ["cat"], "boxes": {"7": [[0, 1, 0, 0, math.nan, 1]]}}, "boxes of 7 hold values that are not fin"),
        ({"classes": ["cat"], "boxes": {"7": [[0, 1, 9, 9, 90, 90]]}}, "of 7 reach from 9 to 90; .* not pixels"),
        ({"classes": ["cat"], "boxes": {"7": [[0, 1, 0.6, 0.6, 0.3, 0.3]]}}, "end before they begin; .* not x, y, wid"),
        ({"classes": ["cat"], "boxes": {"7": [[0, 0, 0, 1, 1]], "8": [[0, 1, 0, 0, 1, 1]] * 5}}, r"8 are \[5, 6\]"),
    ):
        plain.write_text(json.dumps(wrong))
        with pytest.raises(DataError, match=message):
            BoxLabels.load(plain)
    packed.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"b\.json\.gz: not a valid \.gz file"):
        BoxLabels.load(packed)


def test_boxes_made_by_people_replace_those_of_a_machine(tmp_path: Path) -> None:
    machine = {"classes": ["cat", "sink"], "boxes": {"1": [[0, 0.5, 0, 0, 1, 1], [1, 0.6, 0, 0, 1, 1]], "2": []}}
    people = {"classes": ["dog", "cat", "sink"], "boxes": {"1": [[0, 0, 0, 0.5, 1], [1, 0, 0, 0.5, 1]], "3": []}}
    paths = []
    for name, value in (("people", people), ("machine", machine)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(value))
    labels = BoxLabels.load(*paths)
    assert labels.classes == ("dog", "cat", "sink")
    assert sorted(labels.boxes["1"].tolist()) == [
        [0, 1, 0, 0, 0.5, 1],
        [1, 1, 0, 0, 0.5, 1],
        [2, pytest.approx(0.6), 0, 0, 1, 1],
    ]
    seen = {image: labels.targets(image, WHOLE, cells=1).ravel().tolist() for image in ("1", "2", "3", "4")}
    assert seen["1"] == [0.5, 0.5, 1.0]
    assert seen["2"] == [0, 0, 0]  # nothing found by the machine
    assert np.isnan(seen["3"]).tolist() == [False, False, True]  # nobody looked for sinks
    assert np.isnan(seen["4"]).all()  # nobody looked at all


def test_what_is_unknown_teaches_nothing(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    run = begin(tmp_path, pictures, network(), boxes=BoxLabels(("a",), {}))
    batches = run._train.training(batch=4, first_step=0)
    assert run.train_step(next(batches))["cell_loss"] == 0.0


def test_cells_know_what_covers_them() -> None:
    boxes = np.array([[1, 1.0, 0.0, 0.0, 0.5, 1.0], [0, 0.1, 0.25, 0.0, 1.0, 0.5]], dtype=np.float32)
    cells = cell_targets(boxes, WHOLE, classes=2, cells=2)
    assert cells[1].tolist() == [[1, 0], [1, 0]]
    assert np.allclose(cells[0], [[0.3, 0.6], [0, 0]])
    mirrored = cell_targets(boxes, View(mirrored=True), classes=2, cells=2)
    assert np.array_equal(mirrored, cells[:, :, ::-1])
    right = cell_targets(boxes, View((0.5, 0, 1, 1)), classes=2, cells=2)
    assert right[1].max() == 0


@given(seed=st.integers(0, 1000), min_area=st.floats(0.1, 1))
def test_views_lie_inside_the_picture(seed: int, min_area: float) -> None:
    x0, y0, x1, y1 = random_view(np.random.default_rng(seed), min_area=min_area).box
    assert 0 <= x0 < x1 <= 1 + 1e-9
    assert 0 <= y0 < y1 <= 1 + 1e-9
    assert (x1 - x0) * (y1 - y0) >= 0.8 * min_area  # a stretched crop loses what would stick out


def test_a_mirrored_view_is_mirrored() -> None:
    image = Image.new("RGB", (20, 20))
    image.paste((255, 255, 255), (0, 0, 10, 20))
    assert view_pixels(image, View(), 20)[10, 2].tolist() == [255, 255, 255]
    assert view_pixels(image, View(mirrored=True), 20)[10, 2].tolist() == [0, 0, 0]
    assert (view_pixels(image, View((0.5, 0, 1, 1)), 8) < 60).all()


def test_batches_do_not_depend_on_where_one_begins(pictures: list[Picture]) -> None:
    loader = Loader(pictures, size=16, seed=5)
    whole = loader.training(batch=4, first_step=0)
    batches = [next(whole) for _ in range(10)]
    late = loader.training(batch=4, first_step=6)
    for expected in batches[6:]:
        got = next(late)
        assert [sample.number for sample in got] == [sample.number for sample in expected]
        assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(got, expected, strict=True))
    epoch = sorted(sample.number for batch in batches[:4] for sample in batch)
    assert epoch == list(range(16))


def test_too_few_pictures_for_a_batch(pictures: list[Picture]) -> None:
    with pytest.raises(DataError, match="16 training pictures are fewer than one batch of 17"):
        Loader(pictures, size=16).training(batch=17, first_step=0)


def test_a_broken_training_picture_is_named(pictures: list[Picture]) -> None:
    pictures[0].path.write_bytes(b"broken")
    with pytest.raises(DataError, match=r"a picture of the dataset cannot be used: 0\.png: is not a picture"):
        list(Loader(pictures, size=16).evaluation(batch=4))


def test_votes_are_pooled_between_mean_and_maximum(network: Callable[[], EfficientNetLite]) -> None:
    model = WordModel(network(), words=5).eval()
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    pooled, things = model(images)
    votes = model.words(model.network(images).stride32).flatten(2)
    assert things is None
    assert (pooled >= votes.mean(dim=2) - 1e-6).all()
    assert (pooled <= votes.amax(dim=2) + 1e-6).all()


def test_only_the_upper_part_is_trained(network: Callable[[], EfficientNetLite]) -> None:
    model = WordModel(network(), words=5, classes=2).train()
    trained = {name for name, tensor in model.named_parameters() if tensor.requires_grad}
    assert not any(name.startswith(("network.stem", "network.blocks.0.")) for name in trained)
    assert {"network.head.conv.weight", "words.weight", "things.weight"} <= trained
    before = model.network.head.norm.running_mean.clone()
    model(torch.randn(2, 3, 32, 32))
    assert torch.equal(model.network.head.norm.running_mean, before)


def test_average_precision_by_hand() -> None:
    scores = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.7, 0.3, 0.0]], dtype=np.float32)
    relevant = np.array([[True, True, False], [False, False, False], [True, False, False]])
    # First word: hits at ranks 1 and 3 → (1 + 2/3) / 2; second: at rank 3 → 1/3; third has none.
    assert mean_average_precision(scores, relevant) == pytest.approx(((1 + 2 / 3) / 2 + 1 / 3) / 2)
    with pytest.raises(TrainingError, match="no validation caption mentions any of the words"):
        mean_average_precision(scores, np.zeros_like(relevant))


def test_a_run_learns_and_leaves_a_network(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    labels = BoxLabels(("a", "b"), {"0": np.array([[1, 1, 0, 0, 1, 1]], dtype=np.float32)})
    run = begin(tmp_path / "run", pictures, network(), boxes=labels, epochs=6)
    before = run.evaluate()
    seen: list[dict[str, object]] = []
    run.run(log_every=4, on_log=seen.append)
    after = run.evaluate()
    assert after["val_loss"] < before["val_loss"]
    assert after["val_map"] > before["val_map"]
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert records == seen
    assert [record["epoch"] for record in records if "epoch" in record] == list(range(1, 7))
    extractor = GridExtractor.load(tmp_path / "run" / "vision.safetensors")
    assert extractor.settings.input_size == 40
    averaged = efficientnet.folded(run.averaged().network).head.conv.weight
    assert torch.allclose(extractor.network.head.conv.weight, averaged, atol=1e-2)


def test_a_run_may_end_within_a_pass(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    run = begin(tmp_path, pictures, network(), epochs=1.5)
    assert run.run()
    assert run.step == run.total_steps == round(1.5 * (len(pictures) // run.settings.batch))
    epochs = [record["epoch"] for record in read_json_lines(tmp_path / "log.jsonl") if "epoch" in record]
    assert epochs == [1, 1.5]
    assert begin(tmp_path, pictures, network(), epochs=1.5).run(), "a finished run stays finished"


def test_bfloat16_learns_as_float32_does(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        run = begin(tmp_path / precision, pictures, network(), epochs=2, precision=precision)
        run.run()
        losses[precision] = run.evaluate()["val_loss"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.03)


def test_the_head_that_is_kept_names_words_as_the_trained_one(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    run = begin(tmp_path / "run", pictures, network(), epochs=1)
    run.run()
    head = WordHead.load(tmp_path / "run" / "words.safetensors")
    assert list(head.words) == run.words
    pixels = view_pixels(Image.open(pictures[0].path), WHOLE, run.settings.test_size)
    with torch.inference_mode():
        expected, _ = run.averaged()(normalise([pixels]))
    extractor = GridExtractor.load(tmp_path / "run" / "vision.safetensors")
    (regions,) = extractor.extract([extractor.prepare(Image.open(pictures[0].path))])
    np.testing.assert_allclose(head.logits(regions), expected[0].numpy(), atol=0.02)  # the files are in float16


def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    begin(tmp_path / "whole", pictures, network()).run(log_every=1)
    begin(tmp_path / "parts", pictures, network()).run(log_every=1, until_step=5)
    torch.rand(7)  # whatever else the process does with random numbers
    second = begin(tmp_path / "parts", pictures, network())
    assert (second.resumed, second.step) == (True, 5)
    second.run(log_every=1)

    def losses(folder: str) -> list[tuple[object, object]]:
        lines = (tmp_path / folder / "log.jsonl").read_text().splitlines()
        return [(r["step"], r.get("loss", r.get("val_map"))) for r in map(json.loads, lines)]

    assert losses("parts") == losses("whole")
    for name in ("checkpoint.safetensors", "vision.safetensors"):
        a, b = (load(tmp_path / folder / name) for folder in ("whole", "parts"))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


def load(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def test_what_a_killed_run_logged_too_far_is_dropped(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    begin(tmp_path, pictures, network()).run(log_every=1, until_step=3)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 9, "loss": 1}\n')
    begin(tmp_path, pictures, network())
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]


def test_a_kill_between_two_lines_of_the_log_changes_no_mean(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    begin(tmp_path / "whole", pictures, network()).run(log_every=3)
    begin(tmp_path / "parts", pictures, network()).run(log_every=3, until_step=5)
    begin(tmp_path / "parts", pictures, network()).run(log_every=3)
    logs = [list(read_json_lines(tmp_path / name / "log.jsonl")) for name in ("whole", "parts")]
    for record in (*logs[0], *logs[1]):
        record.pop("images_per_s", None)
    assert logs[0] == logs[1]


def test_a_checkpoint_without_a_log_window_is_continued(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    """As earlier versions wrote them."""
    begin(tmp_path, pictures, network()).run(until_step=3)
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        header = {key: value for key, value in file.metadata().items() if key != "window"}
    save_file(load(path), path, metadata=header)
    run = begin(tmp_path, pictures, network())
    assert run.step == 3
    assert run.run()


def test_a_stop_during_evaluation_is_made_up_for(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    stop = StopRequest()

    def ask(record: dict[str, object]) -> None:
        if record["step"] == 4:
            stop.signal = signal.SIGTERM

    assert not begin(tmp_path, pictures, network()).run(log_every=4, on_log=ask, stop=stop)
    assert not (tmp_path / "vision.safetensors").exists()
    run = begin(tmp_path, pictures, network())
    assert run.step == 4
    assert run.run()
    records = list(read_json_lines(tmp_path / "log.jsonl"))
    assert [record["epoch"] for record in records if "epoch" in record] == [1, 2, 3]


def test_temporary_files_of_a_killed_run_are_removed(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    (tmp_path / ".checkpoint.safetensors.x1.tmp").write_bytes(b"half")
    begin(tmp_path, pictures, network())
    assert not list(tmp_path.glob(".*.tmp"))


def test_an_interrupt_saves(
    tmp_path: Path,
    pictures: list[Picture],
    network: Callable[[], EfficientNetLite],
) -> None:
    def interrupt(record: dict[str, object]) -> None:
        if record["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path, pictures, network()).run(log_every=1, on_log=interrupt)
    assert begin(tmp_path, pictures, network()).step == 2


@pytest.mark.parametrize("part", ["_optimizer.step", "_average.update"])
def test_an_interrupt_in_the_middle_of_an_update_leaves_the_checkpoint_before(
    tmp_path: Path,
    pictures: list[Picture],
    network: Callable[[], EfficientNetLite],
    monkeypatch: pytest.MonkeyPatch,
    part: str,
) -> None:
    begin(tmp_path / "whole", pictures, network()).run()
    begin(tmp_path / "cut", pictures, network()).run(until_step=2)
    run = begin(tmp_path / "cut", pictures, network())
    owner, name = part.split(".")
    before = getattr(getattr(run, owner), name)

    def interrupted(*arguments: object) -> None:
        before(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(getattr(run, owner), name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    again = begin(tmp_path / "cut", pictures, network())
    assert again.step == 2
    again.run()
    whole, cut = (load(tmp_path / folder / "checkpoint.safetensors") for folder in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_other_settings_or_captions_are_not_resumed(
    tmp_path: Path, pictures: list[Picture], network: Callable[[], EfficientNetLite]
) -> None:
    begin(tmp_path, pictures, network()).run(until_step=1)
    with pytest.raises(TrainingError, match=r"other settings \(epochs was 3, is 5\); choose another folder"):
        begin(tmp_path, pictures, network(), epochs=5)
    with pytest.raises(TrainingError, match="was started with other heads; give --boxes exactly as before"):
        begin(tmp_path, pictures, network(), boxes=BoxLabels(("a",), {}))
    for picture in pictures:
        object.__setattr__(picture, "captions", ("one purple cow jumps high",))
    with pytest.raises(TrainingError, match="was started with other captions"):
        begin(tmp_path, pictures, network())
    (tmp_path / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(TrainingError, match="cannot be resumed"):
        begin(tmp_path, pictures, network())


@pytest.mark.parametrize(
    ("name", "value"), [("words", 0), ("epochs", 0), ("batch", -1), ("rate", 0.0), ("min_area", 2.0)]
)
def test_settings_are_checked(name: str, value: float) -> None:
    with pytest.raises(TrainingError, match=rf"^{name} must be .*, got {value}$"):
        AdaptSettings(**{name: value})  # type: ignore[arg-type]


def test_a_loss_that_is_no_number_stops_the_run(
    tmp_path: Path,
    pictures: list[Picture],
    network: Callable[[], EfficientNetLite],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = begin(tmp_path, pictures, network())
    monkeypatch.setattr(adapt, "normalise", lambda pixels: torch.full((len(pixels), 3, 32, 32), torch.nan))
    with pytest.raises(TrainingError, match=r"the loss is nan at step 0; lower --rate"):
        run.run()
