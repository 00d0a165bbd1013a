"""A run that trains the small detector in a folder; stopped at any time, it continues exactly from its checkpoint.

    folder/
      checkpoint.safetensors   weights, averaged weights, optimiser; settings, step and log window in the header
      log.jsonl                one line per log interval and per evaluation
      detector/                the averaged detector as `load_detector` reads it; after every evaluation

The backbone is frozen as a whole (`shared`: the captioner's own file serves, and the heads are all that is added), or
only up to stride 8 (`own`: better boxes, and a vision network of its own in the directory).
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from xlan.adapt.data import BoxLabels
from xlan.detector_training.data import DetectionLoader, Sample
from xlan.detector_training.evaluate import evaluate
from xlan.detector_training.losses import Sampling, Targets, proposal_losses, region_losses
from xlan.errors import TrainingError
from xlan.files import file_sha256, remove_leftovers
from xlan.training.average import AveragedWeights
from xlan.training.schedule import Cosine
from xlan.training.single import OnLog, RunLog, Window, check_same, load_run, rate_groups, save_run, train_epochs
from xlan.training.stop import StopRequest
from xlan.vision import efficientnet
from xlan.vision.detector.directory import save_lite
from xlan.vision.detector.lite import LiteDetector, LiteDetectorSpec, LiteHeads
from xlan.vision.efficientnet import FeatureMaps
from xlan.vision.grid import load_vision, normalise
from xlan.vision.sources import Picture

CHECKPOINT, LOG, DETECTOR = "checkpoint.safetensors", "log.jsonl", "detector"
Backbone = Literal["shared", "own"]


@dataclass(frozen=True)
class DetectorSettings:
    """One run.

    Attributes:
        backbone: `shared` keeps the vision network as it is; `own` trains it beyond stride 8.
        input_size: side in pixels of the square input.
        channels: of the neck.
        hidden: width of the second stage.
        epochs: passes over the training pictures.
        batch: pictures per step.
        rate: peak learning rate of the heads (AdamW, warm-up, then cosine to zero).
        backbone_rate: peak learning rate of the backbone, where it is trained.
        weight_decay: of matrices and filters.
        warmup: steps until the peak.
        average: decay of the averaged weights per step.
        min_score: boxes that a machine was less sure of count as unknown.
        min_area: smallest view, as a share of the picture.
        anchors: boxes per picture that the first stage learns from.
        rois: boxes per picture that the second stage learns from.
        seed: of everything random.
    """

    backbone: Backbone = "shared"
    input_size: int = 256
    channels: int = 96
    hidden: int = 384
    epochs: int = 4
    batch: int = 16
    rate: float = 1e-3
    backbone_rate: float = 1e-4
    weight_decay: float = 0.01
    warmup: int = 300
    average: float = 0.999
    min_score: float = 0.35
    min_area: float = 0.4
    anchors: int = 128
    rois: int = 48
    seed: int = 0


class DetectorRun:
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
        self.settings, self.folder, self.step = settings, Path(folder), 0
        self.folder.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"size": settings.input_size, "threads": threads, "seed": settings.seed}
        self._train = DetectionLoader(train, boxes, min_score=settings.min_score, min_area=settings.min_area, **options)
        self._val = DetectionLoader(val, val_boxes or boxes, **options)
        self._marked = marked
        self.total_steps = settings.epochs * self._train.steps_per_epoch(settings.batch)
        torch.manual_seed(settings.seed)
        self._vision = Path(vision) if vision is not None else None
        self._started_from = "imagenet" if self._vision is None else file_sha256(self._vision)
        backbone = efficientnet.load_imagenet(network)[0] if self._vision is None else load_vision(self._vision)[0]
        backbone = efficientnet.folded(backbone)  # its statistics stay fixed, so they need no layers of their own
        spec = LiteDetectorSpec(
            network=backbone.spec.name,
            classes=boxes.classes,
            input_size=settings.input_size,
            channels=settings.channels,
            hidden=settings.hidden,
        )
        if settings.backbone == "own":
            for part in (*backbone.blocks[backbone.stride8_blocks :], backbone.head):
                part.requires_grad_(True)
        detector = LiteDetector(backbone, LiteHeads(spec))
        self.detector: LiteDetector = detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._average = AveragedWeights(self._trained(), settings.average)
        self._schedule = Cosine(1.0, total=self.total_steps, warmup=settings.warmup)
        self._optimizer = torch.optim.AdamW(
            rate_groups(
                self._trained(),
                is_head=lambda name: name.startswith("heads."),
                rate=settings.backbone_rate,
                head_rate=settings.rate,
                weight_decay=settings.weight_decay,
            ),
            betas=(0.9, 0.99),
        )
        self.window, self.lines = Window(), RunLog(self.folder / LOG)
        remove_leftovers(self.folder)
        self.resumed = (self.folder / CHECKPOINT).exists()
        if self.resumed:
            self._resume()

    @property
    def pictures(self) -> int:
        """How many pictures it learns from."""
        return len(self._train.pictures)

    @property
    def measured(self) -> int:
        """How many pictures it is measured on."""
        return len(self._val.pictures)

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, tensor) for name, tensor in self.detector.named_parameters() if tensor.requires_grad)

    def run(
        self,
        *,
        checkpoint_minutes: float = 5.0,
        log_every: int = 50,
        on_log: OnLog | None = None,
        until_step: int | None = None,
        stop: StopRequest | None = None,
    ) -> bool:
        """Train to the end (or to `until_step`), evaluating after every epoch; True when everything is done.

        A request to stop ends it early and saves, as an exception does.
        """
        return train_epochs(
            self,
            self._train.training(batch=self.settings.batch, first_step=self.step),
            per_epoch=self._train.steps_per_epoch(self.settings.batch),
            batch_size=self.settings.batch,
            checkpoint_minutes=checkpoint_minutes,
            log_every=log_every,
            on_log=on_log,
            until_step=until_step,
            stop=stop,
        )

    def finish_epoch(self, stop: StopRequest) -> dict[str, float]:
        """Evaluate and write the averaged network."""
        scores = self.evaluate(stop)
        self.save_detector()
        return scores

    def evaluate(self, stop: StopRequest | None = None) -> dict[str, float]:
        """Average precision and recall of proposals, with averaged weights."""
        return evaluate(self.averaged(), self._val, batch=self.settings.batch, marked=self._marked, stop=stop)

    def _maps(self, batch: list[Sample]) -> FeatureMaps:
        pixels = normalise([sample.pixels for sample in batch])
        if self.settings.backbone == "own":
            maps: FeatureMaps = self.detector.network(pixels, frozen_blocks=self.detector.network.stride8_blocks)
            return maps
        with torch.no_grad():
            maps = self.detector.network(pixels)
        return maps

    def train_step(self, batch: list[Sample]) -> dict[str, float]:
        """One step of the optimiser; returns the losses."""
        settings, heads = self.settings, self.detector.heads
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + self.step)  # the same when resumed
        factor = self._schedule.rate(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        targets = [
            Targets(torch.from_numpy(s.boxes), torch.from_numpy(s.labels), torch.from_numpy(s.unsure)) for s in batch
        ]
        sampling = Sampling(anchors=settings.anchors, rois=settings.rois)
        maps = self._maps(batch)
        pyramid = heads.neck(maps)
        scores = heads.score(pyramid)
        thing, where = proposal_losses(heads, scores, targets, count=sampling.anchors, generator=generator)
        proposals = heads.propose(scores, before=sampling.proposals_before, count=sampling.proposals)
        which, exactly = region_losses(
            heads, pyramid, maps.stride32, proposals, targets, count=sampling.rois, generator=generator
        )
        loss = thing + where + which + exactly
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss is {loss.item()} at step {self.step}; lower rate (it is {settings.rate})")
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([tensor for _, tensor in self._trained()], 10.0)
        self._optimizer.step()
        self.step += 1
        self._average.update(self.step)
        parts = {"proposal": thing, "proposal_box": where, "class": which, "box": exactly}
        return {"loss": loss.item(), **{name: value.item() for name, value in parts.items()}}

    def averaged(self) -> LiteDetector:
        """A copy of the detector with averaged weights."""
        detector: LiteDetector = copy.deepcopy(self.detector).eval()
        detector.load_state_dict({**detector.state_dict(), **self._average.tensors})
        return detector

    def save_detector(self) -> None:
        """Write the detector directory, with averaged weights."""
        shared = self._vision if self.settings.backbone == "shared" else None
        save_lite(self.folder / DETECTOR, self.averaged(), vision=shared)

    def save(self) -> None:
        """Write a checkpoint."""
        header = {"step": str(self.step), "settings": self._settings(), "window": self.window.to_json()}
        save_run(self.folder / CHECKPOINT, self._trained(), self._average, self._optimizer, header)

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        header = load_run(
            path,
            self._trained(),
            self._average,
            self._optimizer,
            lambda header: check_same(path, json.loads(header["settings"]), json.loads(self._settings())),
            otherwise="give the same configuration as then",
        )
        self.step = int(header["step"])
        self.window = Window.from_json(header["window"])
        self.lines.trim(self.step)

    def _settings(self) -> str:
        pictures = {"pictures": len(self._train.pictures), "started_from": self._started_from}
        return json.dumps({**asdict(self.settings), **pictures})
