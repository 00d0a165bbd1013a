from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.config import changed_keys, dump_config, load_config, parse_config, save_config
from xlan.errors import ConfigError

ROOT = Path(__file__).parent.parent
# Those of detectors and studies are of another kind and have their own tests.
SHIPPED = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name not in ("detector", "studies"))


def minimal(**changes: Any) -> dict[str, Any]:
    return {
        "stage": "xe",
        "output": "run",
        "data": {"captions": "captions.json", "features": "features"},
        "model": {"name": "xlan"},
        **changes,
    }


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_config(parse_config(minimal()), tmp_path / "config.yaml")
    return tmp_path / "config.yaml"


class TestShipped:
    def test_there_are_some(self) -> None:
        names = {str(path.relative_to(ROOT / "configs")) for path in SHIPPED}
        assert {"smoke.yaml", "coco/xlan.yaml", "coco/xlan_scst.yaml", "coco-mini/xlan.yaml"} <= names
        assert len([name for name in names if name.startswith("coco/ablation/")]) == 7

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT / "configs")))
    def test_each_is_valid_and_survives_a_round_trip(self, path: Path, tmp_path: Path) -> None:
        config = load_config(path)
        save_config(config, tmp_path / "again.yaml")
        assert load_config(tmp_path / "again.yaml") == config

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT / "configs")))
    def test_each_header_tells_command_hardware_time_and_score(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        header = text[: text.index("\nstage:")]
        for word in ("command", "hardware", "time", "score"):
            assert f"#   {word} " in header
        assert f"xlan train {path.relative_to(ROOT)}" in header
        assert "measured" in header

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT / "configs")))
    def test_each_names_a_model_that_exists(self, path: Path) -> None:
        from xlan.model.spec import MODELS, model_spec

        model = load_config(path).model
        if model.name is not None:
            assert model.name in MODELS
            model_spec(model.name, **model.options)

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT / "configs")))
    def test_a_second_stage_begins_where_a_first_stage_ends(self, path: Path) -> None:
        config = load_config(path)
        if config.stage == "scst":
            firsts = {load_config(other).output for other in SHIPPED}
            assert config.model.init in {f"{output}/{kept}" for output in firsts for kept in ("best", "last")}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.epoch=3", "unknown key 'train.epoch'; did you mean 'epochs'? allowed: average, batch_size"),
        ("optimiser.lr=3", "unknown key 'optimiser'; allowed: checkpoint, data"),
        ("train.schedule.warmp=3", "unknown key 'train.schedule.warmp'; did you mean 'warmup'? allowed: name, warmup"),
        ("train.schedule={name: plateau, warmup: 2}", "unknown key 'train.schedule.warmup'; allowed: factor, name"),
        ("train.schedule.name=linear", "'train.schedule.name' is 'linear'; allowed: 'noam', 'plateau', 'constant'"),
        ("train.schedule={warmup: 3}", "'train.schedule' needs a 'name'; allowed: noam, plateau, constant, cosine"),
        ("train.optimizer.name=sgd", "'train.optimizer.name' is 'sgd'; allowed: 'adam', 'radam'"),
        ("train.clip.by=elements", "'train.clip.by' is 'elements'; allowed: 'norm', 'value' or 'none'"),
        ("train.precision=fp8", "'train.precision' is 'fp8'; allowed: 'fp32', 'bf16' or 'fp16'"),
        ("train.epochs=many", "'train.epochs': input should be a valid integer, got 'many'"),
        ("train.epochs=0", "'train.epochs': input should be greater than or equal to 1, got 0"),
        ("train=3", "'train': expected keys and values, got 3"),
        ("evaluation.metrics=CIDEr", "'evaluation.metrics': expected a list in brackets, got 'CIDEr'"),
        ("train.epochs=true", "'train.epochs': input should be a valid integer, got True"),
        ("stage=pretrain", "'stage' is 'pretrain'; allowed: 'xe' or 'scst'"),
        ("stage=scst", "stage 'scst' starts from a trained model: set model.init"),
        ("scst.samples=3", "section 'scst' belongs to stage 'scst'"),
        ("model.options.vocab_size=5", "model.options: vocab_size comes from the data and cannot be set; remove it"),
        ("model.name=null", "model needs a 'name', an 'init' directory, or both"),
        ("data.features=null", "data needs both 'captions' and 'features'"),
        ("data.shapes.images=100", "data.shapes draws its own captions and features"),
        ("evaluation.metrics=[BLEU]", "evaluation.metrics must contain 'CIDEr'"),
        ("evaluation.metrics=[CIDEr, SPIKE]", "'evaluation.metrics.1' is 'SPIKE'; allowed: 'BLEU', 'METEOR'"),
        ("train.epochs", "expected key=value, for example train.epochs=3"),
        ("=3", "expected key=value"),
        ("train.epochs.x=1", "'epochs' is a value, not a section"),
        ("train.epochs=[1", "not valid YAML"),
    ],
)
def test_a_mistake_names_the_key_and_what_is_allowed(file: Path, override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file, [override])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train.label_smoothing": 0.1}, "belong to stage 'xe': remove them for 'scst'"),
        ({"scst.samples": 1, "scst.baseline": "mean"}, "scst.samples must be 2 or more"),
    ],
)
def test_impossible_second_stages(file: Path, changes: dict[str, Any], expected: str) -> None:
    overrides = ["stage=scst", "model.init=somewhere", *(f"{key}={value}" for key, value in changes.items())]
    with pytest.raises(ConfigError, match=expected):
        load_config(file, overrides)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stage: [", "not valid YAML"),
        ("- a list", "expected keys and values, got list"),
        ("", "expected keys and values, got NoneType"),
        ("stage: xe", "missing key 'output'; missing key 'data'; missing key 'model'"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml") as caught:
        load_config(write(tmp_path, text))
    assert expected in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_config(tmp_path / "none.yaml")


def test_overrides_are_yaml_and_reach_inside(file: Path) -> None:
    config = load_config(file, ["train.optimizer.lr=1e-5", "train.schedule={name: plateau}", "model.options.dim=64"])
    assert config.train.optimizer.lr == 1e-5
    assert config.train.schedule.name == "plateau"
    assert config.model.options == {"dim": 64}


def test_the_second_stage_is_written_out(file: Path) -> None:
    config = load_config(file, ["stage=scst", "model.init=somewhere"])
    assert dump_config(config)["scst"]["baseline"] == "greedy"


def test_a_resumed_run_may_change_some_keys_only() -> None:
    old = dump_config(parse_config(minimal()))
    new = dump_config(
        parse_config(
            minimal(
                seed=9,
                output="elsewhere",
                train={"epochs": 99, "batch_size": 8},
                evaluation={"beams": 5},
                logging={"every": 1},
            )
        )
    )
    assert changed_keys(old, new) == ["seed", "train.batch_size"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["stage", "data", "model", "train", "scst", "evaluation", "checkpoint", "logging", "seed", "x"])


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(keys, values, max_size=5))
def test_whatever_is_given_the_answer_is_a_config_or_one_error_of_ours(changes: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(minimal(**changes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &a [1]\nb: *a\n", "aliases are not supported, write the value out instead of *a"),
        (
            "\n".join(
                ["a: &a [x, x]", *(f"{n}: &{n} [*{m}, *{m}]" for m, n in zip("abcdefgh", "bcdefghi", strict=True))]
            ),
            "aliases",
        ),
        ("a: &a [*a]\n", "aliases are not supported"),
        ("[" * 100_000, "nested deeper than 16 levels"),
        ("a: " + "{b: " * 5_000, "nested deeper than 16 levels"),
        ("stage: xe\nstage: scst\n", "key 'stage' is given twice in"),
        ("train:\n  epochs: 1\n  epochs: 2\n", "key 'epochs' is given twice in"),
        ("a: " + "9" * 5000, "not valid YAML: Exceeds the limit"),
        ("? [1, 2]\n: 3\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not valid YAML"),
    ],
    ids=[
        "alias",
        "bomb",
        "self-reference",
        "brackets",
        "braces",
        "duplicate",
        "inner duplicate",
        "digits",
        "key",
        "tag",
    ],
)
def test_hostile_yaml_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError):
        load_config(write(tmp_path, "stage: xe"), [f"data={text}"])


def test_infinite_numbers_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"'train\.optimizer\.lr': input should be a finite number, got inf"):
        load_config(file, ["train.optimizer.lr=.inf"])
