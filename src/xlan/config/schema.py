"""Every section and key of a training run, with type, range and default.

RunConfig
├── data         where captions and features are, and how they become batches
├── model        which architecture, and which weights to start from
├── train        epochs, batch, optimiser, schedule, clipping, averaging, precision
├── scst         the self-critical stage: samples, baseline, reward
├── evaluation   decoding of the validation split after every epoch, early stop
├── checkpoint   how often, how many are kept
└── logging      console, JSON lines, TensorBoard
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Metric = Literal["BLEU", "METEOR", "ROUGE-L", "CIDEr"]


class Section(BaseModel):
    """Base of every section: closed (no unknown keys), frozen, strict about types, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


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
    vocab_split: Literal["train", "all"] = Field(
        default="train", description="count the words of the training captions, or of all splits as the paper does"
    )
    tokens: Literal["file", "plain"] = Field(
        default="file", description="words as the captions file gives them, or plain lower-case words of its raw text"
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
        default_factory=dict, description="changes to the named model's numbers, e.g. {logit_dropout: 0.1}"
    )
    init: str | None = Field(
        default=None,
        description="model directory, or owner/name on the Hub, whose weights (and vocabulary) the run starts from",
    )
    new_words: bool = Field(
        default=False,
        description="with `init`: take the words from `data` instead of its vocabulary; known ones keep their weights",
    )
    new_features: bool = Field(
        default=False, description="with `init`: accept features of another network, if they are as wide"
    )
    attributes: str | None = Field(
        default=None, description="words.safetensors of `xlan adapt`, from which the attributes of lstm-a3 start"
    )

    @model_validator(mode="after")
    def _something_to_build(self) -> Self:
        if self.name is None and self.init is None:
            raise ValueError("model needs a 'name', an 'init' directory, or both")
        if taken := [name for name in ("vocab_size", "feature_dim") if name in self.options]:
            raise ValueError(f"model.options: {taken[0]} comes from the data and cannot be set; remove it")
        if (self.new_words or self.new_features) and self.init is None:
            raise ValueError("model.new_words and model.new_features need a model to start from: set model.init")
        if self.attributes is not None and self.init is not None:
            raise ValueError("model.attributes are for a new model: remove it, model.init brings its own")
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


class StepConfig(Section):
    """Multiply the rate by `factor` every `every` epochs from epoch `start` on."""

    name: Literal["step"] = "step"
    factor: float = Field(default=0.8, gt=0, lt=1)
    every: int = Field(default=3, ge=1, description="epochs between decays")
    start: int = Field(
        default=0, ge=0, description="epoch from which they are counted; the first decay is at start + every"
    )
    warmup: int = Field(default=0, ge=0, description="steps of linear warm-up")


OptimizerConfig = Annotated[AdamConfig | RAdamConfig, Field(discriminator="name")]
ScheduleConfig = Annotated[
    NoamConfig | PlateauConfig | ConstantConfig | CosineConfig | StepConfig, Field(discriminator="name")
]


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
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of each target word's probability given to the other words"
    )
    average: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay per step of averaged weights, e.g. 0.9995; they are then evaluated, kept as best and last",
    )
    scheduled_sampling: ScheduledSamplingConfig | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    max_steps: int | None = Field(
        default=None,
        ge=1,
        description="stop after this many steps, whatever the epoch; the learning rate follows the plan of all epochs",
    )

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
    bleu_weight: float = Field(
        default=0.0, ge=0, description="times BLEU-4 of the single caption, added to CIDEr-D in the reward"
    )
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
