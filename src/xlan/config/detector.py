"""The configuration of a run that trains the small detector."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xlan.config.schema import Section


class DetectorConfig(Section):
    """Every key of a detector's run; paths are relative to where the command runs."""

    output: str = Field(min_length=1, description="folder of the run; a run in it is continued")
    dataset: str = Field(min_length=1, description="dataset in Karpathy's JSON, which gives pictures and splits")
    pictures: str | None = Field(default=None, description="folder with the pictures, if not beside the dataset")
    boxes: tuple[str, ...] = Field(
        min_length=1, description="files of boxes to learn from; people's replace a machine's (see `xlan adapt`)"
    )
    true_boxes: str | None = Field(
        default=None, description="boxes made by people to measure on; only their pictures are measured"
    )
    vision: str | None = Field(default=None, description="vision.safetensors to start from; ImageNet weights if absent")
    network: Literal["efficientnet-lite0", "efficientnet-lite2"] = Field(
        default="efficientnet-lite2", description="network, where `vision` is absent"
    )
    backbone: Literal["shared", "own"] = Field(
        default="shared", description="keep the vision network as it is, or train it beyond stride 8"
    )
    input_size: int = Field(default=256, ge=64, le=1024, description="side in pixels of the square input")
    channels: int = Field(default=96, ge=8, le=512, multiple_of=8, description="width of the neck")
    rounds: int = Field(default=3, ge=1, le=16, description="rounds of the neck")
    hidden: int = Field(default=512, ge=8, le=4096, description="width of the second stage")
    epochs: float = Field(default=2, gt=0, le=1000, description="passes over the pictures; the last may be part of one")
    batch: int = Field(default=16, ge=1)
    rate: float = Field(default=1e-3, gt=0, le=1, description="peak learning rate of the heads")
    backbone_rate: float = Field(default=1e-4, gt=0, le=1, description="peak learning rate of the vision network")
    weight_decay: float = Field(default=0.01, ge=0, le=1)
    warmup: int = Field(default=300, ge=1, description="steps until the peak")
    average: float = Field(default=0.999, ge=0, lt=1, description="decay of the averaged weights")
    min_score: float = Field(
        default=0.45, ge=0, le=1, description="boxes that a machine was less sure of count as unknown"
    )
    repeat_true: int = Field(
        default=4, ge=1, le=1000, description="how often a pass shows pictures with people's boxes"
    )
    blind: float = Field(
        default=32, ge=0, le=1024, description="side, at 256 pixels, below which a machine overlooks most things"
    )
    min_area: float = Field(default=0.5, gt=0, le=1, description="smallest random view, as a share of the picture")
    anchors: int = Field(default=128, ge=2, description="boxes per picture that the first stage learns from")
    rois: int = Field(default=64, ge=4, description="boxes per picture that the second stage learns from")
    limit_train: int | None = Field(default=None, ge=1, description="use only the first pictures, for a trial")
    limit_val: int | None = Field(default=None, ge=1, description="measure on the first pictures only")
    measure: tuple[str, ...] = Field(default=("val", "test"), min_length=1, description="splits to measure on")
    threads: int = Field(default=2, ge=1, le=64, description="threads that decode pictures")
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    seed: int = Field(default=0, ge=0)
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="bf16 for the products of a step: faster where the processor has them"
    )
