"""A run that trains the small detector in a folder; stopped at any time, it continues exactly from its checkpoint.

    folder/
      checkpoint.safetensors   weights, averaged weights, optimiser; settings, step and log window in the header
      log.jsonl                one line per log interval and per evaluation
      detector/                the averaged detector as `load_detector` reads it; after every evaluation

The backbone is frozen as a whole (`shared`: the captioner's own file serves, and the heads are all that is added), or
only up to stride 8 (`own`: better boxes, and a vision network of its own in the directory).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from xlan.adapt.data import BoxLabels
from xlan.detector_training.data import DetectionLoader, Sample
from xlan.detector_training.evaluate import evaluate
from xlan.detector_training.losses import Sampling, Targets, proposal_losses, region_losses
from xlan.files import file_sha256
from xlan.training.single import CHECKPOINT, SingleRun, check_same
from xlan.training.stop import StopRequest
from xlan.vision import efficientnet
from xlan.vision.detector.directory import save_lite
from xlan.vision.detector.lite import LiteDetector, LiteHeads, Scores
from xlan.vision.detector.lite_settings import LiteDetectorSpec
from xlan.vision.efficientnet import FeatureMaps
from xlan.vision.grid import load_vision, normalise
from xlan.vision.sources import Picture

DETECTOR = "detector"
Backbone = Literal["shared", "own"]


@dataclass(frozen=True)
class DetectorSettings:
    """One run.

    Attributes:
        backbone: `shared` keeps the vision network as it is; `own` trains it beyond stride 8.
        input_size: side in pixels of the square input.
        channels: of the neck.
        rounds: of the neck.
        hidden: width of the second stage.
        epochs: passes over the training pictures; the last may be a part of one.
        batch: pictures per step.
        rate: peak learning rate of the heads (AdamW, warm-up, then cosine to zero).
        backbone_rate: peak learning rate of the backbone, where it is trained.
        weight_decay: of matrices and filters.
        warmup: steps until the peak.
        average: decay of the averaged weights per step.
        min_score: boxes that a machine was less sure of count as unknown.
        repeat_true: how often a pass shows pictures that people marked; the list of pictures has them so often.
        blind: in pictures that only a machine looked at, boxes with smaller sides (at an input of 256 pixels) are never
            background; it overlooks most things of that size.
        min_area: smallest view, as a share of the picture.
        anchors: boxes per picture that the first stage learns from.
        rois: boxes per picture that the second stage learns from.
        seed: of everything random.
        precision: `fp32`, or `bf16` for the products of a step.
    """

    backbone: Backbone = "shared"
    input_size: int = 256
    channels: int = 96
    rounds: int = 3
    hidden: int = 512
    epochs: float = 2
    batch: int = 16
    rate: float = 1e-3
    backbone_rate: float = 1e-4
    weight_decay: float = 0.01
    warmup: int = 300
    average: float = 0.999
    min_score: float = 0.45
    repeat_true: int = 4
    blind: float = 32.0
    min_area: float = 0.5
    anchors: int = 128
    rois: int = 64
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"


class DetectorRun(SingleRun[LiteDetector, list[Sample]]):
    """Training in a folder: new, or continued from its last checkpoint.

    Args:
        settings: of the run; a resumed run must have the same.
        train: training pictures.
        boxes: their boxes.
        val: pictures to measure on after each epoch.
        val_boxes: true boxes of those; None measures on `boxes`.
        marked: classes that were marked in `val_boxes`; None for all.
        vision: a vision.safetensors to start from (and to share); None for ImageNet weights.
        network: name of the network for ImageNet weights.
        folder: see the top of this file.
        threads: decoding threads.
    """

    same_heads = "give the same configuration as then"

    def __init__(
        self,
        settings: DetectorSettings,
        *,
        train: list[Picture],
        boxes: BoxLabels,
        val: list[Picture],
        val_boxes: BoxLabels | None,
        folder: str | os.PathLike[str],
        marked: tuple[int, ...] | None = None,
        vision: str | os.PathLike[str] | None = None,
        network: str = "efficientnet-lite2",
        threads: int = 2,
    ) -> None:
        self.settings = settings
        options: dict[str, Any] = {"size": settings.input_size, "threads": threads, "seed": settings.seed}
        self._train = DetectionLoader(train, boxes, min_score=settings.min_score, min_area=settings.min_area, **options)
        self._val = DetectionLoader(val, val_boxes or boxes, **options)
        self._marked = marked
        torch.manual_seed(settings.seed)
        self._vision = Path(vision) if vision is not None else None
        self._started_from = "imagenet" if self._vision is None else file_sha256(self._vision)
        backbone = efficientnet.load_imagenet(network)[0] if self._vision is None else load_vision(self._vision)[0]
        backbone = efficientnet.folded(backbone)
        spec = LiteDetectorSpec(
            network=backbone.spec.name,
            classes=boxes.classes,
            input_size=settings.input_size,
            channels=settings.channels,
            rounds=settings.rounds,
            hidden=settings.hidden,
        )
        if settings.backbone == "own":
            backbone = efficientnet.unfolded(backbone).eval().requires_grad_(False)  # its statistics stay fixed
            for part in (*backbone.blocks[backbone.stride8_blocks :], backbone.head):
                part.requires_grad_(True)
        detector = LiteDetector(backbone, LiteHeads(spec))
        super().__init__(
            detector.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            self._train,
            folder=folder,
            batch=settings.batch,
            total_steps=max(1, round(settings.epochs * self._train.steps_per_epoch(settings.batch))),
            is_head=lambda name: name.startswith("heads."),
            rate=settings.backbone_rate,
            head_rate=settings.rate,
            weight_decay=settings.weight_decay,
            warmup=settings.warmup,
            average=settings.average,
            clip=10.0,
            rate_setting=f"rate (it is {settings.rate})",
        )

    @property
    def pictures(self) -> int:
        """How many pictures it learns from."""
        return len(self._train.pictures)

    @property
    def measured(self) -> int:
        """How many pictures it is measured on."""
        return len(self._val.pictures)

    def finish_epoch(self, stop: StopRequest) -> dict[str, float]:
        """Evaluate and write the averaged network."""
        scores = self.evaluate(stop)
        self.save_detector(score_slope=scores["score_slope"], score_offset=scores["score_offset"])
        return scores

    def evaluate(self, stop: StopRequest | None = None) -> dict[str, float]:
        """Average precision and recall of proposals, with averaged weights."""
        return evaluate(self.averaged(), self._val, batch=self.settings.batch, marked=self._marked, stop=stop)

    def _maps(self, batch: list[Sample]) -> FeatureMaps:
        pixels = normalise([sample.pixels for sample in batch])
        if self.settings.backbone == "own":
            maps: FeatureMaps = self.model.network(pixels, frozen_blocks=self.model.network.stride8_blocks)
            return maps
        with torch.no_grad():
            maps = self.model.network(pixels)
        return maps

    def _targets(self, one: Sample) -> Targets:
        blind = 0.0 if one.by_people else self.settings.blind * self.settings.input_size / 256
        return Targets(torch.from_numpy(one.boxes), torch.from_numpy(one.labels), torch.from_numpy(one.unsure), blind)

    def losses(self, batch: list[Sample]) -> tuple[Tensor, dict[str, Tensor]]:
        """Of both stages, each for what a box shows and for where it is."""
        settings, heads = self.settings, self.model.heads
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + self.step)  # the same when resumed
        targets = [self._targets(one) for one in batch]
        sampling = Sampling(anchors=settings.anchors, rois=settings.rois)
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bf16"):
            maps = self._maps(batch)
            pyramid = heads.neck(maps)
            logits, deltas = heads.score(pyramid)
        scores = Scores(logits.float(), deltas.float())
        thing, where = proposal_losses(heads, scores, targets, count=sampling.anchors, generator=generator)
        proposals = heads.propose(scores, before=sampling.proposals_before, count=sampling.proposals)
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bf16"):
            which, exactly = region_losses(
                heads, pyramid, maps.stride32, proposals, targets, count=sampling.rois, generator=generator
            )
        loss = thing + where + which + exactly
        return loss, {"loss": loss, "proposal": thing, "proposal_box": where, "class": which, "box": exactly}

    def save_detector(self, **scores: float) -> None:
        """Write the detector directory, with averaged weights; `scores` are `score_slope` and `score_offset`."""
        shared = self._vision if self.settings.backbone == "shared" else None
        detector = self.averaged()
        detector.heads.spec = replace(detector.spec, **scores)  # type: ignore[arg-type]
        save_lite(self.folder / DETECTOR, detector, vision=shared)

    def header(self) -> dict[str, str]:
        """Settings, and what the run learns from."""
        pictures = {"pictures": len(self._train.pictures), "started_from": self._started_from}
        return {"settings": json.dumps({**asdict(self.settings), **pictures})}

    def check_header(self, header: Mapping[str, str]) -> None:
        """All must be the same."""
        check_same(self.folder / CHECKPOINT, json.loads(header["settings"]), json.loads(self.header()["settings"]))
