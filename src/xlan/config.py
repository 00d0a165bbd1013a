"""What a training run is told: one YAML file, checked by typed models before anything is built.

    RunConfig
    ├── data         where captions and features are, and how they become batches
    ├── model        which architecture, and which weights to start from
    ├── train        epochs, batch, optimiser, schedule, clipping, precision
    ├── scst         the self-critical stage: samples, baseline, reward
    ├── evaluation   decoding of the validation split after every epoch, early stop
    ├── checkpoint   how often, how many are kept
    └── logging      console, JSON lines, TensorBoard

Unknown keys and impossible combinations are errors that name the key and what is allowed. Only the file that builds a
run and the command line read this module; classes elsewhere take plain values.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from xlan.errors import ConfigError
from xlan.files import write_text

MAX_CONFIG_BYTES = 1 << 20

Metric = Literal["BLEU", "METEOR", "ROUGE-L", "CIDEr"]


class Section(BaseModel):
    """Base of every section: closed (no unknown keys), frozen, strict about types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ShapesConfig(Section):
    """Drawn shapes instead of files: a small world with exact captions, made when the run starts."""

    images: int = Field(default=1000, ge=16, description="pictures to draw; three of four are for training")
    seed: int = Field(default=7, ge=0, description="which pictures are drawn")


class DataConfig(Section):
    """Captions and features, and how they become batches."""

    captions: str | None = Field(
        default=None, description="captions: Karpathy or COCO JSON, Flickr tokens, CSV or JSON lines"
    )
    features: str | None = Field(default=None, description="feature store folder (see `xlan features`)")
    shapes: ShapesConfig | None = Field(default=None, description="draw a toy data set instead of reading files")
    vocab: str | None = Field(
        default=None, description="vocab.json to use; built from the training captions when absent"
    )
    min_count: int = Field(default=6, ge=1, description="words seen less often become the unknown word")
    max_words: int = Field(default=16, ge=1, le=200, description="captions are cut after this many words")
    max_regions: int | None = Field(default=None, ge=1, description="use at most this many regions of an image")
    train_split: str = Field(default="train", min_length=1)
    val_split: str = Field(default="val", min_length=1)
    limit_train: int | None = Field(default=None, ge=1, description="train on the first images only (for trying out)")
    limit_val: int | None = Field(default=None, ge=1, description="validate on the first images only")
    missing: Literal["error", "skip"] = Field(
        default="error", description="images without features: stop, or leave out"
    )
    bucket_by_length: bool = Field(default=False, description="put captions of similar length into one batch")
    workers: int = Field(
        default=2, ge=0, le=64, description="loader processes of each rank; 0 reads in the training process"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        files = self.captions is not None or self.features is not None
        if files and self.shapes is not None:
            raise ValueError("data.shapes draws its own captions and features: remove data.captions/data.features")
        if self.shapes is None and (self.captions is None or self.features is None):
            raise ValueError("data needs both 'captions' and 'features' (or 'shapes' for the toy data)")
        return self


class ModelConfig(Section):
    """Which architecture, and which weights to start from."""

    name: str | None = Field(default=None, description="a named model of `xlan.build_model`; not needed with `init`")
    options: dict[str, int | float | bool | str] = Field(
        default_factory=dict, description="changes to the named model's numbers, e.g. {dropout_lm: 0.1}"
    )
    init: str | None = Field(
        default=None, description="model directory whose weights (and vocabulary) the run starts from"
    )

    @model_validator(mode="after")
    def _something_to_build(self) -> Self:
        if self.name is None and self.init is None:
            raise ValueError("model needs a 'name', an 'init' directory, or both")
        return self


class AdamConfig(Section):
    """Adam; AdamW when `weight_decay` is positive."""

    name: Literal["adam"] = "adam"
    lr: float = Field(default=1.0, gt=0, description="base rate; Noam multiplies it, so 1.0 there")
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(default=1e-9, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


class RAdamConfig(AdamConfig):
    """Rectified Adam, as X-Transformer was released."""

    name: Literal["radam"] = "radam"  # type: ignore[assignment]


class NoamConfig(Section):
    """lr · width^-½ · min(step^-½, step · warmup^-3/2), step from 1 (the schedule of the Transformer)."""

    name: Literal["noam"] = "noam"
    width: int = Field(default=1024, ge=1, description="model width in the formula")
    warmup: int = Field(default=10_000, ge=1, description="steps until the peak")


class PlateauConfig(Section):
    """Multiply the rate by `factor` when validation CIDEr has not risen for more than `patience` evaluations."""

    name: Literal["plateau"] = "plateau"
    factor: float = Field(default=0.8, gt=0, lt=1)
    patience: int = Field(default=3, ge=0)


class ConstantConfig(Section):
    """A fixed rate after a linear warm-up."""

    name: Literal["constant"] = "constant"
    warmup: int = Field(default=0, ge=0, description="steps of linear warm-up")


class CosineConfig(Section):
    """Linear warm-up, then half a cosine down to `floor` × lr at the last step of the run."""

    name: Literal["cosine"] = "cosine"
    warmup: int = Field(default=0, ge=0)
    floor: float = Field(default=0.0, ge=0, lt=1)


OptimizerConfig = Annotated[AdamConfig | RAdamConfig, Field(discriminator="name")]
ScheduleConfig = Annotated[NoamConfig | PlateauConfig | ConstantConfig | CosineConfig, Field(discriminator="name")]


class ClipConfig(Section):
    """Gradient clipping: by total norm, or by clamping every element."""

    by: Literal["norm", "value", "none"] = "norm"
    at: float = Field(default=0.5, gt=0)


class ScheduledSamplingConfig(Section):
    """Feed the model its own words with a probability that grows over the epochs (counted from 0)."""

    start: int = Field(default=12, ge=0, description="first epoch with a probability above zero")
    every: int = Field(default=5, ge=1, description="epochs between increases")
    step: float = Field(default=0.05, gt=0, le=1)
    maximum: float = Field(default=0.5, gt=0, le=1)


class TrainConfig(Section):
    """The optimisation."""

    epochs: int = Field(default=70, ge=1)
    batch_size: int = Field(default=40, ge=1, description="images per step over all processes together")
    captions_per_image: int = Field(
        default=5, ge=1, description="captions of an image trained per visit (cross-entropy)"
    )
    optimizer: OptimizerConfig = AdamConfig()
    schedule: ScheduleConfig = NoamConfig()
    clip: ClipConfig = ClipConfig()
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    scheduled_sampling: ScheduledSamplingConfig | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    max_steps: int | None = Field(default=None, ge=1, description="stop after this many steps, whatever the epoch")

    @model_validator(mode="before")
    @classmethod
    def _adam_unless_told(cls, value: Any) -> Any:
        optimizer = value.get("optimizer") if isinstance(value, dict) else None
        return {**value, "optimizer": {"name": "adam", **optimizer}} if isinstance(optimizer, dict) else value


class ScstConfig(Section):
    """The self-critical stage."""

    samples: int = Field(default=5, ge=1, description="captions sampled per image")
    baseline: Literal["greedy", "mean"] = Field(
        default="greedy", description="the greedy caption's reward (paper), or the mean of the image's other samples"
    )
    temperature: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=17, ge=1, le=200, description="longest caption sampled, end included")
    dropout: bool = Field(default=False, description="keep dropout on in the pass that gives the gradients")
    document_frequency: str | None = Field(
        default=None,
        description="table of `xlan metrics build-df`, for instance of all of COCO; counted from the training captions "
        "when absent",
    )
    reward_workers: int = Field(
        default=1, ge=0, le=64, description="processes of each rank that score; 0 scores in place"
    )
    collapse_window: int = Field(default=200, ge=10, description="steps over which a collapse is judged")

    @model_validator(mode="after")
    def _mean_needs_others(self) -> Self:
        if self.baseline == "mean" and self.samples < 2:
            raise ValueError("scst.baseline 'mean' compares with the other samples: scst.samples must be 2 or more")
        return self


class EvaluationConfig(Section):
    """Decoding and scoring of the validation split."""

    every: int = Field(default=1, ge=1, description="epochs between evaluations")
    beams: int = Field(default=3, ge=1, le=50)
    batch_size: int = Field(default=50, ge=1)
    max_length: int = Field(default=17, ge=1, le=200, description="longest caption decoded, end included")
    metrics: tuple[Metric, ...] = ("BLEU", "METEOR", "ROUGE-L", "CIDEr")
    early_stop: int | None = Field(
        default=None, ge=1, description="stop after this many evaluations without a better CIDEr"
    )

    @model_validator(mode="after")
    def _cider_selects(self) -> Self:
        if "CIDEr" not in self.metrics:
            raise ValueError("evaluation.metrics must contain 'CIDEr': it selects the best checkpoint")
        return self


class CheckpointConfig(Section):
    """How often the run is saved besides at the end of an epoch, and how many checkpoints are kept."""

    every: int | None = Field(default=None, ge=1, description="steps between checkpoints inside an epoch")
    keep: int = Field(default=2, ge=1)


class LoggingConfig(Section):
    """What is written while it runs."""

    every: int = Field(default=20, ge=1, description="steps per line of the log")
    tensorboard: bool = True
    samples: int = Field(default=8, ge=0, le=100, description="validation captions kept per epoch for the report page")


class RunConfig(Section):
    """One training run."""

    stage: Literal["xe", "scst"] = Field(..., description="cross-entropy or self-critical")
    output: str = Field(..., min_length=1, description="folder of the run")
    seed: int = Field(default=1, ge=0, lt=2**31)
    data: DataConfig
    model: ModelConfig
    train: TrainConfig = TrainConfig()
    scst: ScstConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="before")
    @classmethod
    def _write_scst_out(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("stage") == "scst" and value.get("scst") is None:
            return {**value, "scst": {}}
        return value

    @model_validator(mode="after")
    def _stages(self) -> Self:
        if self.stage == "scst":
            if self.model.init is None:
                raise ValueError("stage 'scst' starts from a trained model: set model.init to its directory")
            if self.train.scheduled_sampling is not None or self.train.label_smoothing:
                raise ValueError(
                    "train.scheduled_sampling and train.label_smoothing belong to stage 'xe': remove them for 'scst'"
                )
        elif self.scst is not None:
            raise ValueError("section 'scst' belongs to stage 'scst': remove it, or set stage: scst")
        return self


# What a resumed run may change; everything else must be as in the checkpoint.
RESUME_MAY_CHANGE = (
    "output",
    "train.epochs",
    "train.max_steps",
    "data.workers",
    "data.captions",
    "data.features",
    "scst.reward_workers",
    "scst.collapse_window",
    "evaluation",
    "checkpoint",
    "logging",
)


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file, apply `key=value` overrides (dotted keys, YAML values) and check the result.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; the message names it and what is allowed.
    """
    source = Path(path)
    try:
        if source.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{source}: larger than {MAX_CONFIG_BYTES >> 20} MiB, this is not a configuration")
        value = yaml.safe_load(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{source}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {_one_line(error)}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: expected keys and values, got {type(value).__name__}")
    for override in overrides:
        _apply_override(value, override)
    return parse_config(value, source=str(source))


def parse_config(value: dict[str, Any], *, source: str = "configuration") -> RunConfig:
    """Check a configuration given as nested dictionaries.

    Raises:
        ConfigError: a key or value is wrong.
    """
    try:
        return RunConfig.model_validate(_plain(value))
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(_explain(detail) for detail in error.errors())}") from None


def dump_config(config: RunConfig) -> dict[str, Any]:
    """The resolved configuration as plain values, every default written out."""
    dumped: dict[str, Any] = config.model_dump(mode="json")
    return dumped


def save_config(config: RunConfig, path: str | os.PathLike[str]) -> None:
    """Write the resolved configuration as YAML that `load_config` reads back, atomically."""
    write_text(path, yaml.safe_dump(dump_config(config), sort_keys=False, allow_unicode=True))


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Dotted keys whose values differ between two dumped configurations and that a resumed run may not change."""
    flat_old, flat_new = _flatten(old), _flatten(new)
    keys = [key for key in {**flat_old, **flat_new} if flat_old.get(key) != flat_new.get(key)]
    return sorted(key for key in keys if not any(f"{key}.".startswith(f"{free}.") for free in RESUME_MAY_CHANGE))


def _flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            flat.update(_flatten(inner, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


def _apply_override(value: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r}: expected key=value, for example train.epochs=3")
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML: {_one_line(error)}") from None
    node = value
    for part in parts[:-1]:
        inner = node.get(part)
        if inner is None:
            inner = node[part] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {part!r} is a value, not a section")
        node = inner
    node[parts[-1]] = parsed


def _plain(value: Any) -> Any:
    """YAML has lists only and takes 1e-5 for text; give the strict models what is meant."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return tuple(_plain(inner) for inner in value)
    if isinstance(value, str) and _is_number(value):
        return float(value)
    return value


def _is_number(text: str) -> bool:
    """Whether `text` is a number in exponent notation, which YAML 1.1 takes for text unless it has a dot and a sign."""
    if "e" not in text.lower() or not text[:1].isdigit():
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _explain(detail: Any) -> str:
    """One pydantic complaint in the user's words: the dotted key, what is wrong, what is allowed."""
    location = [str(part) for part in detail["loc"]]
    section = _section_at(location[:-1])
    # A discriminated section puts its tag into the location; the user's file has no such key.
    key = ".".join(part for i, part in enumerate(location) if not _is_tag(location, i))
    kind = detail["type"]
    if kind == "extra_forbidden" and section is not None:
        allowed = sorted(section.model_fields)
        close = difflib.get_close_matches(location[-1], allowed, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        return f"unknown key '{key}'; {hint}allowed: {', '.join(allowed)}"
    if kind == "missing":
        return f"missing key '{key}'"
    if kind == "literal_error":
        return f"'{key}' is {detail['input']!r}; allowed: {detail['ctx']['expected']}"
    if kind.startswith("union_tag"):
        tags = detail.get("ctx", {}).get("expected_tags") or "noam, plateau, constant, cosine"
        got = detail.get("ctx", {}).get("tag")
        return f"'{key}.name' is {got!r}; allowed: {tags}" if got else f"'{key}' needs a 'name'; allowed: {tags}"
    if kind == "value_error":
        return f"{detail['ctx']['error']}"
    return f"'{key}': {detail['msg'][0].lower()}{detail['msg'][1:]}, got {detail['input']!r}"


_TAGS = {"adam", "radam", "noam", "plateau", "constant", "cosine"}


def _is_tag(location: list[str], i: int) -> bool:
    return i > 0 and location[i - 1] in ("optimizer", "schedule") and location[i] in _TAGS


def _section_at(location: list[str]) -> type[Section] | None:
    """The section class a location leads into."""
    here: list[type[Section]] = [RunConfig]
    for i, part in enumerate(location):
        if _is_tag(location, i):
            here = [kind for kind in here if kind.model_fields["name"].default == part]
            continue
        field = here[0].model_fields.get(part) if here else None
        if field is None:
            return None
        here = _sections_in(field.annotation)
    return here[0] if here else None


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]
