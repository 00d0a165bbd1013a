"""Whole runs in this process: what they leave behind, how they resume, and what they say about bad input."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from xlan.config import load_config, parse_config
from xlan.data.captions import write_captions
from xlan.data.shapes import make_shapes
from xlan.errors import ConfigError, FeatureError, XlanError
from xlan.files import read_json_lines
from xlan.pretrained import from_pretrained
from xlan.text.vocab import Vocabulary
from xlan.training.checkpoint import CheckpointFolder
from xlan.training.distributed import World
from xlan.training.folder import RunFolder
from xlan.training.run import run_training
from xlan.types import Regions
from xlan.vision.store import FeatureStoreWriter
from xlan.vision.words import WordHead

Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def settings(run_settings: Settings, trained: Path) -> Settings:
    def make(stage: str, output: Path, **changes: Any) -> dict[str, Any]:
        value = run_settings(stage, output, **changes)
        if stage == "scst":
            value["model"] = {"init": str(trained), **changes.get("model", {})}
        return value

    return make


def run(value: dict[str, Any], resume: str | None = None) -> int:
    return run_training(parse_config(value), resume_from=resume)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "last" / "model.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def told(folder: Path) -> list[dict[str, Any]]:
    """Steps and evaluations of a log, without what a clock measured."""
    clock = {"time", "seconds", "captions_per_second", "reward_wait"}
    records = [r for r in read_json_lines(folder / "log.jsonl") if r["kind"] in ("step", "evaluation")]
    return [{key: value for key, value in record.items() if key not in clock} for record in records]


@pytest.mark.parametrize("stage", ["xe", "scst"])
class TestWholeRun:
    def test_it_leaves_a_complete_folder(self, settings: Settings, tmp_path: Path, stage: str) -> None:
        assert run(settings(stage, tmp_path / "run", train={"epochs": 2})) == 0
        run_folder = tmp_path / "run"
        assert load_config(run_folder / "config.yaml").train.epochs == 2
        assert from_pretrained(run_folder / "best").model.vocab_size == len(
            from_pretrained(run_folder / "last").vocabulary
        )
        predictions = json.loads((run_folder / "predictions" / "val-epoch-002.json").read_text())
        assert {"image_id", "caption"} == set(predictions[0])
        records = list(read_json_lines(run_folder / "log.jsonl"))
        assert [record["step"] for record in records if record["kind"] == "step"] == list(range(1, 13))
        evaluations = [record["scores"] for record in records if record["kind"] == "evaluation"]
        assert len(evaluations) == 2
        assert all(("loss" in scores) == (stage == "xe") for scores in evaluations)
        assert len(CheckpointFolder(run_folder / "checkpoints", keep=2).names()) == 2

    def test_the_same_seed_gives_the_same_weights(self, settings: Settings, tmp_path: Path, stage: str) -> None:
        for name in ("a", "b"):
            run(settings(stage, tmp_path / name, train={"epochs": 1}))
        run(settings(stage, tmp_path / "c", train={"epochs": 1}, seed=5))
        assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
        assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))

    @pytest.mark.slow
    def test_stopped_at_any_step_it_goes_on_bit_for_bit(self, settings: Settings, tmp_path: Path, stage: str) -> None:
        """Inside an epoch, at its end, several times over; dropout on, so random states matter."""
        run(settings(stage, tmp_path / "whole", train={"epochs": 3}))
        folder = tmp_path / "parts"
        for stop_at in (1, 4, 6, 11, 13):
            run(settings(stage, folder, train={"epochs": 3, "max_steps": stop_at}), resume="auto")
        assert run(settings(stage, folder, train={"epochs": 3}), resume="auto") == 0
        assert same(weights(folder), weights(tmp_path / "whole"))
        assert told(folder) == told(tmp_path / "whole")


class TestBadInput:
    def refuse(self, value: dict[str, Any], expected: str, resume: str | None = None) -> None:
        with pytest.raises(XlanError, match=expected) as caught:
            run(value, resume)
        assert "\n" not in str(caught.value)

    def test_a_folder_with_a_run_in_it(self, settings: Settings, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("")
        self.refuse(settings("xe", tmp_path), r"already holds a run; resume it \(--resume auto\)")

    def test_a_checkpoint_of_another_run_than_the_one_in_the_folder(self, settings: Settings, tmp_path: Path) -> None:
        one, other = (settings("xe", tmp_path / name, train={"max_steps": 2}) for name in ("one", "other"))
        run(one)
        run(other)
        made = next((tmp_path / "one" / "checkpoints").iterdir())
        self.refuse(other, r"already holds a run, and .* is a checkpoint of another one; choose", resume=str(made))
        assert run(one, resume=str(made)) == 0
        assert run({**other, "output": str(tmp_path / "new")}, resume=str(made)) == 0

    def test_an_unwritable_folder(self, settings: Settings, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        self.refuse(settings("xe", tmp_path / "file" / "run"), "cannot be written: Not a directory")

    def test_a_folder_that_another_run_is_using(self, settings: Settings, tmp_path: Path) -> None:
        with RunFolder(tmp_path / "run").claimed(World(0, 1, torch.device("cpu"))):
            self.refuse(settings("xe", tmp_path / "run"), "another run is using this folder")

    def test_missing_features(self, settings: Settings, tmp_path: Path) -> None:
        from xlan.data.shapes import write_shapes

        write_shapes(tmp_path / "a", 16)
        write_shapes(tmp_path / "b", 24)
        value = settings("xe", tmp_path / "run", train={"epochs": 1})
        value["data"] = {"captions": str(tmp_path / "b"), "features": str(tmp_path / "a" / "features"), "min_count": 1}
        self.refuse(value, r"no features for \d+ of 18 images of split 'train'")
        value["data"]["missing"] = "skip"
        assert run(value) == 0
        warnings = [r["text"] for r in read_json_lines(tmp_path / "run" / "log.jsonl") if r["kind"] == "warning"]
        assert warnings[0] == "6 images of split 'train' have no features and were left out"

    def test_missing_captions(self, settings: Settings, tmp_path: Path) -> None:
        value = settings("xe", tmp_path / "run")
        value["data"] = {"captions": str(tmp_path / "none.json"), "features": str(tmp_path)}
        self.refuse(value, r"none\.json")

    def test_a_caption_file_without_captions(self, settings: Settings, tmp_path: Path) -> None:
        (tmp_path / "dataset.json").write_text('{"images": []}')
        value = settings("xe", tmp_path / "run")
        value["data"] = {"captions": str(tmp_path / "dataset.json"), "features": str(tmp_path)}
        self.refuse(value, r"dataset\.json: no captions in it")

    def test_an_empty_split(self, settings: Settings, tmp_path: Path) -> None:
        value = settings("xe", tmp_path / "run", data={"val_split": "nothing"})
        self.refuse(value, "split 'nothing' has no images; there are: train")

    def test_an_unknown_model(self, settings: Settings, tmp_path: Path) -> None:
        self.refuse(settings("xe", tmp_path / "run", model={"name": "resnet"}), "expected one of xlan, .* got 'resnet'")

    def test_an_unknown_model_option(self, settings: Settings, tmp_path: Path) -> None:
        value = settings("xe", tmp_path / "run", model={"options": {"dims": 3}})
        self.refuse(value, "unknown key 'dims'")

    @pytest.mark.parametrize("options", [{"dim": 32}, {"depth": 2}])
    def test_options_that_the_weights_to_start_from_do_not_fit(
        self, settings: Settings, trained: Path, tmp_path: Path, options: dict[str, int]
    ) -> None:
        model = {"name": None, "init": str(trained), "options": options}
        message = r"model\.options: the weights of model\.init .* do not fit \(.*\); options that change sizes need"
        self.refuse(settings("xe", tmp_path / "run", model=model), message)

    def test_a_model_larger_than_the_machine(self, settings: Settings, tmp_path: Path) -> None:
        value = settings("xe", tmp_path / "run", model={"options": {"dim": 10_000_000}})
        self.refuse(value, r"model\.options: a model of [0-9.e+]+ parameters needs [0-9,]+ GiB .*; choose smaller")

    def test_scheduled_sampling_with_a_transformer(self, settings: Settings, tmp_path: Path) -> None:
        value = settings("xe", tmp_path / "run", train={"scheduled_sampling": {}})
        value["model"] = {"name": "xtransformer-tiny"}
        self.refuse(value, r"train\.scheduled_sampling works with LSTM decoders only")

    def test_a_graph_without_boxes(self, settings: Settings, tmp_path: Path) -> None:
        from xlan.types import Regions
        from xlan.vision.store import FeatureStoreWriter

        captions, features = make_shapes(16)
        with FeatureStoreWriter(tmp_path / "store") as writer:
            for image, regions in features.items():
                whole = np.tile(np.array([0, 0, 1, 1], np.float32), (len(regions), 1))  # as an import without boxes has
                writer.add(image, Regions(regions.features, whole))
        rows = [{"file": i.file, "caption": list(i.captions), "split": i.split} for i in captions]
        (tmp_path / "captions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        value = settings("xe", tmp_path / "run")
        value["model"] = {"name": "gcn-lstm-spatial-tiny"}
        value["data"] = {"captions": str(tmp_path / "captions.jsonl"), "features": str(tmp_path / "store")}
        value["data"]["min_count"] = 1
        with pytest.raises(FeatureError, match="its regions have no boxes of their own, from which this model builds"):
            run(value)

    @pytest.mark.parametrize("grid", [True, False])
    def test_a_graph_on_grid_cells_is_warned_of(
        self, grid: bool, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from xlan.types import Regions
        from xlan.vision.store import FeatureStoreWriter

        captions, features = make_shapes(16)
        cells = np.array([[x, y, x + 0.5, y + 0.5] for y in (0, 0.5) for x in (0, 0.5)], np.float32)
        with FeatureStoreWriter(tmp_path / "store") as writer:
            for number, (image, regions) in enumerate(features.items()):
                boxes = cells if grid else cells * (0.5 + 0.01 * number)
                writer.add(image, Regions(np.resize(regions.features, (4, regions.features.shape[1])), boxes))
        rows = [{"file": i.file, "caption": list(i.captions), "split": i.split} for i in captions]
        (tmp_path / "captions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        value = settings("xe", tmp_path / "run")
        value["model"] = {"name": "gcn-lstm-spatial-tiny"}
        value["data"] = {"captions": str(tmp_path / "captions.jsonl"), "features": str(tmp_path / "store")}
        value["data"]["min_count"] = 1
        run(value)
        assert ("the boxes of all pictures are alike, as on a grid" in capsys.readouterr().err) == grid

    def test_features_of_another_width(self, settings: Settings, trained: Path, tmp_path: Path) -> None:
        from xlan.types import Regions
        from xlan.vision.store import FeatureStoreWriter

        captions, features = make_shapes(16)
        with FeatureStoreWriter(tmp_path / "store") as writer:
            for image, regions in features.items():
                writer.add(image, Regions(regions.features[:, :8], regions.boxes))
        table = "".join(
            f'{{"file": "{i.file}", "caption": "{c}", "split": "{i.split}"}}\n' for i in captions for c in i.captions
        )
        (tmp_path / "captions.jsonl").write_text(table)
        value = settings("scst", tmp_path / "run")
        value["data"] = {"captions": str(tmp_path / "captions.jsonl"), "features": str(tmp_path / "store")}
        self.refuse(value, "takes features 32 wide, but .* has 8")

    def test_a_vocabulary_that_changed(self, settings: Settings, tmp_path: Path) -> None:
        run(settings("xe", tmp_path / "run", train={"epochs": 1}))
        value = settings("xe", tmp_path / "run", train={"epochs": 2}, data={"min_count": 60})
        self.refuse(value, "was trained with another vocabulary", resume="auto")

    @pytest.mark.parametrize("change", ["images", "captions", "features"])
    def test_data_that_changed(self, settings: Settings, tmp_path: Path, change: str) -> None:
        def write(place: Path, change: str = "") -> None:
            captions, features = make_shapes(16)
            first, *others = captions.images
            if change == "captions":
                first = replace(first, captions=first.captions[:1], words=first.words[:1])
            images = tuple(others) if change == "images" else (first, *others)
            with FeatureStoreWriter(place / "features", extractor={"weights": change == "features"}) as writer:
                for image in images:
                    writer.add(image.id, features[image.id])
            write_captions(place / "captions.jsonl", replace(captions, images=images))

        def value(place: Path, epochs: int) -> dict[str, Any]:
            made = settings("xe", tmp_path / "run", train={"epochs": epochs})
            files = {"captions": str(place), "features": str(place / "features")}
            return {**made, "data": {**files, "vocab": str(tmp_path / "vocab.json"), "workers": 0}}

        Vocabulary.from_words(["a", "red", "circle"]).save(tmp_path / "vocab.json")
        write(tmp_path / "data")
        write(tmp_path / "other", change)
        run(value(tmp_path / "data", 1))
        message = "was trained on other images, captions or features than data"
        self.refuse(value(tmp_path / "other", 2), message, resume="auto")
        (tmp_path / "data").rename(tmp_path / "moved")
        assert run(value(tmp_path / "moved", 2), "auto") == 0

    def test_settings_that_changed(self, settings: Settings, tmp_path: Path) -> None:
        run(settings("xe", tmp_path / "run", train={"epochs": 1}))
        value = settings("xe", tmp_path / "run", train={"epochs": 1, "batch_size": 4, "label_smoothing": 0.1})
        self.refuse(value, r"these changed: train\.batch_size, train\.label_smoothing", resume="auto")

    def test_only_damaged_checkpoints(self, settings: Settings, tmp_path: Path) -> None:
        run(settings("xe", tmp_path / "run", train={"epochs": 1}))
        for state in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
            state.unlink()
        self.refuse(settings("xe", tmp_path / "run"), "all its checkpoints are damaged", resume="auto")

    def test_a_disk_that_fills_up_while_logging(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: object, **values: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "log.jsonl"))

        monkeypatch.setattr("xlan.training.logs.RunLog.write", full)
        self.refuse(settings("xe", tmp_path / "run"), r"log\.jsonl: No space left on device; fix that .* --resume auto")

    def test_half_precision_without_a_gpu(self, settings: Settings, tmp_path: Path) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        value = settings("xe", tmp_path / "run", train={"precision": "fp16"})
        self.refuse(value, "'fp16' needs a GPU; allowed here: fp32, bf16")

    def test_a_loss_that_is_not_finite_names_the_images(self, settings: Settings, tmp_path: Path) -> None:
        value = settings("xe", tmp_path / "run", train={"optimizer": {"lr": 1e30}, "clip": {"by": "none"}})
        self.refuse(value, r"(the loss is nan|not finite).* on images shapes-\d+, .*; the weights were not updated")


def test_a_run_killed_before_its_first_checkpoint_starts_anew(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    (tmp_path / "run" / "log.jsonl").write_text('{"kind": "step", "step": 1, "loss": 9.0}\n')
    assert run(settings("xe", tmp_path / "run", train={"epochs": 1}), resume="auto") == 0
    records = list(read_json_lines(tmp_path / "run" / "log.jsonl"))
    assert [r["step"] for r in records if r["kind"] == "step"] == list(range(1, 7))


def test_bfloat16_trains(settings: Settings, tmp_path: Path) -> None:
    assert run(settings("xe", tmp_path / "run", train={"epochs": 1, "precision": "bf16"})) == 0


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("lstm-tiny", "xe"),
        ("show-tell-tiny", "xe"),
        ("lstm-a3-tiny", "scst"),
        ("att2in-tiny", "xe"),
        ("att2all-tiny", "xe"),
        ("updown-tiny", "xe"),
        ("updown-lb-tiny", "scst"),
        ("gcn-lstm-spatial-tiny", "scst"),
        ("aoanet-tiny", "xe"),
    ],
)
def test_other_systems_resume_bit_for_bit(settings: Settings, tmp_path: Path, name: str, stage: str) -> None:
    def value(folder: str, stage: str, steps: int) -> dict[str, Any]:
        changed = settings(stage, tmp_path / folder, train={"epochs": 1, "max_steps": steps})
        changed["model"] = {"name": name, "options": {"dim": 16}}
        if stage == "scst":
            changed["model"] = {"init": str(tmp_path / "first" / "last")}
        return changed

    if stage == "scst":
        run(value("first", "xe", 2))
    run(value("whole", stage, 4))
    run(value("halves", stage, 2))
    run(value("halves", stage, 4), resume="auto")
    weights = [load_file(tmp_path / folder / "last" / "model.safetensors") for folder in ("whole", "halves")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_attributes_start_from_the_words_of_an_adapted_network(settings: Settings, tmp_path: Path) -> None:
    value = settings("xe", tmp_path / "run", train={"epochs": 1, "max_steps": 1, "optimizer": {"lr": 1e-12}})
    value["model"] = {"name": "lstm-a3-tiny", "attributes": str(tmp_path / "words.safetensors")}
    random = np.random.default_rng(0)
    head = WordHead(tuple(f"w{i}" for i in range(20)), random.random((20, 32), np.float32), np.ones(20, np.float32))
    head.save(tmp_path / "words.safetensors")
    assert run(value) == 0
    learnt = load_file(tmp_path / "run" / "last" / "model.safetensors")["encoder.attributes.weight"]
    torch.testing.assert_close(learnt, torch.from_numpy(head.weight), rtol=0, atol=1e-3)

    value["output"] = str(tmp_path / "other")
    value["model"]["options"] = {"attributes": 7}
    with pytest.raises(ConfigError, match=r"model\.attributes .*: expected a head of 7 words .*, got 20 on 32; build"):
        run(value)
    value["model"] = {"name": "updown-tiny", "attributes": "words.safetensors"}
    with pytest.raises(ConfigError, match=r"model\.attributes is for models with attributes \(lstm-a3\): remove it"):
        run(value)


@pytest.mark.parametrize("name", ["xtransformer-tiny", "transformer-tiny", "ablation-base"])
def test_the_other_models_train(settings: Settings, tmp_path: Path, name: str) -> None:
    value = settings("xe", tmp_path / "run", train={"epochs": 1, "label_smoothing": 0.1})
    value["model"] = {"name": name, "options": {"dim": 16, "heads": 1 if "ablation" in name else 2}}
    assert run(value) == 0


def test_early_stop(settings: Settings, tmp_path: Path) -> None:
    value = settings("xe", tmp_path / "run", train={"epochs": 30, "optimizer": {"lr": 1e-9}})
    value["evaluation"]["early_stop"] = 2
    assert run(value) == 0
    log = list(read_json_lines(tmp_path / "run" / "log.jsonl"))
    assert log[-1]["reason"] == "the validation score has not risen for 2 evaluations"
    assert sum(record["kind"] == "evaluation" for record in log) == 3


def test_weights_that_are_not_finite_name_the_images_in_the_second_stage(
    settings: Settings, trained: Path, tmp_path: Path
) -> None:
    from xlan.pretrained import save_pretrained

    start = from_pretrained(trained)
    next(start.model.parameters()).data.fill_(float("nan"))
    save_pretrained(tmp_path / "broken", start.model.spec, start.model.state_dict(), start.vocabulary)
    value = settings("scst", tmp_path / "run")
    value["model"] = {"init": str(tmp_path / "broken")}
    with pytest.raises(XlanError, match=r"NaN.* at step 1 \(epoch 1\) on images shapes-\d+, "):
        run(value)


@pytest.mark.parametrize("stage", ["xe", "scst"])
def test_averaged_weights_resume_bit_for_bit_with_the_same_log(settings: Settings, tmp_path: Path, stage: str) -> None:
    """Lines of the log cover 5 steps, checkpoints 2: the sums in between must survive too."""
    changes: dict[str, Any] = {"logging": {"every": 5}}
    if stage == "scst":
        changes["scst"] = {"baseline": "mean", "bleu_weight": 0.5}
    schedule = {"name": "step", "every": 1, "factor": 0.5}
    numbers = {"epochs": 2, "average": 0.9, "schedule": schedule}
    run(settings(stage, tmp_path / "whole", train=numbers, **changes))
    for stop_at in (3, 7):
        run(settings(stage, tmp_path / "parts", train={**numbers, "max_steps": stop_at}, **changes), resume="auto")
    (tmp_path / "parts" / ".log.jsonl.abc.tmp").write_text("left by a kill")
    run(settings(stage, tmp_path / "parts", train=numbers, **changes), resume="auto")
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert told(tmp_path / "parts") == told(tmp_path / "whole")
    assert not list((tmp_path / "parts").glob(".*.tmp"))
    newest = CheckpointFolder(tmp_path / "whole" / "checkpoints", keep=2).names()[0]
    assert same(weights(tmp_path / "whole"), load_file(newest / "average.safetensors"))
    assert not same(weights(tmp_path / "whole"), load_file(newest / "model.safetensors"))


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(settings: Settings, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    run(settings("xe", folder, train={"epochs": 1}, checkpoint={"every": 2, "keep": 1}))
    run(settings("xe", tmp_path / "whole", train={"epochs": 2}))
    checkpoints = CheckpointFolder(folder / "checkpoints", keep=3)
    good = checkpoints.names()[0]
    bad = good.with_name("step-00000099-0099")
    shutil.copytree(good, bad)
    content = bytearray((bad / "optimizer.safetensors").read_bytes())
    content[-1] ^= 1
    (bad / "optimizer.safetensors").write_bytes(content[:-1] if damage == "cut" else content)
    value = settings("xe", folder, train={"epochs": 2}, checkpoint={"every": 2, "keep": 1})
    assert run(value, resume="auto") == 0
    (warning,) = [r["text"] for r in read_json_lines(folder / "log.jsonl") if r["kind"] == "warning"]
    assert "skipped a damaged checkpoint, now called damaged-step-00000099-0099: " in warning
    assert same(weights(folder), weights(tmp_path / "whole"))


def test_a_batch_larger_than_the_data_is_told(settings: Settings, tmp_path: Path) -> None:
    assert run(settings("xe", tmp_path / "run", train={"epochs": 1, "batch_size": 1_000_000})) == 0
    warnings = [r["text"] for r in read_json_lines(tmp_path / "run" / "log.jsonl") if r["kind"] == "warning"]
    assert warnings == ["train.batch_size 1,000,000 is more than the 48 training images: all of them are one batch"]


def test_a_checkpoint_of_another_number_of_threads_is_told(settings: Settings, tmp_path: Path) -> None:
    run(settings("xe", tmp_path / "run", train={"epochs": 1}))
    threads = torch.get_num_threads()
    try:
        value = settings("xe", tmp_path / "run", train={"epochs": 2})
        assert run_training(parse_config(value), resume_from="auto", threads=threads + 1) == 0
    finally:
        torch.set_num_threads(threads)
    warnings = [r["text"] for r in read_json_lines(tmp_path / "run" / "log.jsonl") if r["kind"] == "warning"]
    assert warnings == [
        f"the checkpoint was made with {threads} thread(s), now {threads + 1}: weights may differ in the last bits"
    ]


class TestNewWords:
    @pytest.mark.parametrize("as_many", [False, True], ids=["fewer", "as many"])
    def test_known_words_keep_their_weights(
        self, settings: Settings, trained: Path, tmp_path: Path, as_many: bool
    ) -> None:
        words = ["circle", "unheard", "red", "a"]
        if as_many:
            words += [f"new{i}" for i in range(len(from_pretrained(trained).vocabulary) - 4 - len(words))]
        listed = tmp_path / "vocab.json"
        Vocabulary.from_words(words).save(listed)
        value = settings("xe", tmp_path / "run", data={"vocab": str(listed)}, train={"max_steps": 1})
        value["train"]["optimizer"] = {"lr": 1e-12}
        value["model"] = {"init": str(trained), "new_words": True}
        assert run(value) == 0
        before, after = from_pretrained(trained), from_pretrained(tmp_path / "run" / "last")
        assert after.vocabulary.words[4:] == tuple(words)
        old, new = before.model.state_dict(), after.model.state_dict()
        by_word = [name for name in new if name.startswith(("decoder.embed.", "decoder.logits."))]
        assert by_word, "no tensor has a row for every word"
        for name in by_word:
            for word in ("<bos>", "<eos>", "circle", "red", "a"):
                now, then = (one.vocabulary.words.index(word) for one in (after, before))
                assert torch.allclose(new[name][now], old[name][then], atol=1e-3), (name, word)
        for name in new.keys() - set(by_word):
            assert torch.allclose(new[name], old[name], atol=1e-3), name

    def test_they_need_a_model_to_start_from(self, settings: Settings, tmp_path: Path) -> None:
        value = settings("xe", tmp_path / "run")
        value["model"]["new_words"] = True
        with pytest.raises(ConfigError, match=r"need a model to start from: set model\.init"):
            run(value)

    def test_features_of_another_network_are_taken_on_request(self, settings: Settings, tmp_path: Path) -> None:
        regions = Regions(np.ones((2, 6), np.float32), np.zeros((2, 4), np.float32))
        images = [
            {"cocoid": i, "split": split, "sentences": [{"raw": "a red circle"}]}
            for i, split in enumerate(["train"] * 8 + ["val"] * 2)
        ]
        (tmp_path / "captions.json").write_text(json.dumps({"images": images}))
        for network in ("first", "second"):
            extractor = {"name": "grid", "weights": network}
            with FeatureStoreWriter(tmp_path / network, extractor=extractor) as writer:
                for i in range(len(images)):
                    writer.add(str(i), regions)

        def value(network: str) -> dict[str, Any]:
            made = settings("xe", tmp_path / f"run-{network}", train={"max_steps": 1})
            features, captions = str(tmp_path / network), str(tmp_path / "captions.json")
            made["data"] = {"captions": captions, "features": features, "min_count": 1, "workers": 0}
            return made

        run(value("first"))
        second = value("second")
        second["model"] = {"init": str(tmp_path / "run-first" / "last")}
        with pytest.raises(XlanError, match="comes from another network"):
            run(second)
        second["model"]["new_features"] = True
        second["output"] = str(tmp_path / "run-third")
        assert run(second) == 0


TINY = {"dim": 16, "heads": 2, "hidden_dim": 4, "depth": 1}  # as `settings` has it


@pytest.mark.parametrize(
    ("name", "options", "refused"),
    [
        ("xlan-tiny", {**TINY, "dropout": 0.3}, None),
        ("xtransformer-tiny", {}, "model.name is xtransformer-tiny, but model.init .* another kind; remove one"),
        ("xlan-small", {}, "model.name is xlan-small, with dim 512, but model.init .* has dim 16; remove one"),
        ("xlan-tiny", {**TINY, "heads": 4}, "model.name is xlan-tiny, with heads 4, but .* has heads 2; remove one"),
    ],
)
def test_a_model_to_start_from_is_the_one_that_is_named(
    settings: Settings, trained: Path, tmp_path: Path, name: str, options: dict[str, Any], refused: str | None
) -> None:
    value = settings("scst", tmp_path / "run", train={"max_steps": 1}, model={"name": name, "options": options})
    if refused is not None:
        with pytest.raises(ConfigError, match=refused):
            run(value)
    else:
        assert run(value) == 0
