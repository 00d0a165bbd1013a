"""Adapting the vision network to what captions talk about, before any captioner is trained.

The network predicts, for the commonest content words of the training captions, which share of a picture's captions
mentions each (binary cross-entropy). Every grid cell votes and the votes are pooled by log-mean-exp, which lies between
mean and maximum: a small thing can carry its word, and the cells themselves learn to know what they show. With boxes, a
second head names the things that cover each cell; it is discarded at the end.

The batch statistics and all layers up to stride 8 keep their ImageNet values. That halves the cost of a step on a CPU,
and generic edges and textures need the least change.

    folder/
      checkpoint.safetensors   weights, averaged weights, optimiser; settings, step and log window in the header
      log.jsonl                one line per log interval and per evaluation
      vision.safetensors       the averaged network as `GridExtractor.load` reads it; after every evaluation
      words.safetensors        the averaged head that names words, as `WordHead.load` reads it; likewise
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from xlan.adapt.data import BoxLabels, Loader, Sample, caption_words, word_targets
from xlan.adapt.network import WordModel, mean_average_precision
from xlan.errors import TrainingError
from xlan.training.single import CHECKPOINT, SingleRun, check_same
from xlan.training.stop import StopRequest
from xlan.vision import efficientnet
from xlan.vision.grid import normalise, save_vision
from xlan.vision.grid_settings import GridSettings
from xlan.vision.sources import Picture

VISION = "vision.safetensors"
WORDS = "words.safetensors"


@dataclass(frozen=True)
class AdaptSettings:
    """One run of adaptation.

    Attributes:
        network: a name of `xlan.vision.lite.SPECS`.
        input_size: side in pixels of the views. A random view shows things larger than the whole picture does, by 1.15
            on average; training at 192 and extracting at 224 shows them equally large, and saves a quarter of the time.
        test_size: side in pixels for evaluation and for the resulting extractor.
        words: how many caption words to predict.
        epochs: passes over the training pictures; the last may be a part of one.
        batch: pictures per step.
        rate: peak learning rate of the network (AdamW, warm-up, then cosine to zero).
        head_rate: peak learning rate of the word and box heads.
        weight_decay: of matrices and filters.
        warmup: steps until the peak.
        box_weight: weight of the per-cell loss, when boxes are given.
        average: decay of the averaged weights per step.
        min_area: smallest crop, as a share of the picture.
        dropout: of the features before the word head.
        seed: of everything random.
        precision: `fp32`, or `bf16` for the products of a step (a fifth faster where the processor has them).
        init: hash of the network that training starts from; empty for ImageNet's.
    """

    network: str = "efficientnet-lite2"
    input_size: int = 192
    test_size: int = 224
    words: int = 1000
    epochs: float = 4
    batch: int = 32
    rate: float = 3e-4
    head_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: int = 200
    box_weight: float = 5.0
    average: float = 0.995
    min_area: float = 0.5
    dropout: float = 0.2
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    init: str = ""

    def __post_init__(self) -> None:
        for name in ("words", "batch", "warmup"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rate", "head_rate", "min_area"):
            if not 0 < getattr(self, name) <= 1:
                raise TrainingError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")
        if not 0 < self.epochs < math.inf:
            raise TrainingError(f"epochs must be above 0, got {self.epochs}")
        if self.precision not in ("fp32", "bf16"):
            raise TrainingError(f"precision must be fp32 or bf16, got {self.precision}")


class Adaptation(SingleRun[WordModel, list[Sample]]):
    """A run of adaptation in a folder: a new one, or one that continues exactly from its last checkpoint.

    Args:
        settings: of the run; a resumed run must have the same.
        train: training pictures with captions.
        val: validation pictures with captions.
        folder: see the top of this file.
        boxes: labels for the per-cell head, if any.
        network: start from this network instead of the ImageNet weights.
        threads: decoding threads.
    """

    same_heads = "give --boxes exactly as before"

    def __init__(
        self,
        settings: AdaptSettings,
        *,
        train: list[Picture],
        val: list[Picture],
        folder: str | os.PathLike[str],
        boxes: BoxLabels | None = None,
        network: efficientnet.EfficientNetLite | None = None,
        threads: int = 2,
    ) -> None:
        self.settings = settings
        self.words = caption_words(train, size=settings.words)
        self._targets = {"train": word_targets(train, self.words), "val": word_targets(val, self.words)}
        cells = math.ceil(settings.input_size / 32)
        self._train, self._val = (
            Loader(
                pictures,
                size=size,
                boxes=labels,
                cells=cells,
                threads=threads,
                min_area=settings.min_area,
                seed=settings.seed,
            )
            for pictures, labels, size in ((train, boxes, settings.input_size), (val, None, settings.test_size))
        )
        torch.manual_seed(settings.seed)
        network = network if network is not None else efficientnet.load_imagenet(settings.network)[0]
        classes = len(boxes.classes) if boxes is not None else 0
        model = WordModel(network, words=settings.words, classes=classes, dropout=settings.dropout)
        share = torch.from_numpy(self._targets["train"].mean(axis=0)).clamp(1e-4, 1 - 1e-4)
        model.words.bias = nn.Parameter(torch.logit(share))
        if model.things is not None and model.things.bias is not None:
            nn.init.constant_(model.things.bias, -4.0)
        super().__init__(
            model.to(memory_format=torch.channels_last).train(),  # type: ignore[call-overload]
            self._train,
            folder=folder,
            batch=settings.batch,
            total_steps=max(1, round(settings.epochs * self._train.steps_per_epoch(settings.batch))),
            is_head=lambda name: not name.startswith("network."),
            rate=settings.rate,
            head_rate=settings.head_rate,
            weight_decay=settings.weight_decay,
            warmup=settings.warmup,
            average=settings.average,
            clip=20.0,
            rate_setting=f"--rate (it is {settings.rate})",
        )

    def finish_epoch(self, stop: StopRequest) -> dict[str, float]:
        """Evaluate and write the averaged network."""
        scores = self.evaluate(stop)
        self._save_vision()
        return scores

    def losses(self, batch: list[Sample]) -> tuple[Tensor, dict[str, Tensor]]:
        """Of the words, and of the cells where there are boxes."""
        torch.manual_seed(self.settings.seed * 1_000_003 + self.step)  # dropout, the same when resumed
        targets = torch.from_numpy(self._targets["train"][[sample.number for sample in batch]])
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bf16"):
            logits, things = self.model(normalise([sample.pixels for sample in batch]))
        logits, things = logits.float(), things.float() if things is not None else None
        word_loss = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(batch)
        cell_loss = word_loss.new_zeros(())
        if things is not None:
            cells = torch.from_numpy(np.stack([sample.cells for sample in batch if sample.cells is not None]))
            known = ~cells.isnan()
            summed = functional.binary_cross_entropy_with_logits(things[known], cells[known], reduction="sum")
            cell_loss = summed / (len(batch) * things.shape[2] * things.shape[3])
        return word_loss + self.settings.box_weight * cell_loss, {"loss": word_loss, "cell_loss": cell_loss}

    def evaluate(self, stop: StopRequest | None = None) -> dict[str, float]:
        """Validation loss per picture, and mean average precision over words (relevant: any caption mentions it)."""
        model = self.averaged()
        scores = np.zeros_like(self._targets["val"])
        with torch.inference_mode():
            for batch in self._val.evaluation(batch=self.settings.batch):
                if stop is not None:
                    stop.check()
                logits, _ = model(normalise([sample.pixels for sample in batch]))
                scores[[sample.number for sample in batch]] = logits.numpy()
        targets = self._targets["val"]
        loss = functional.binary_cross_entropy_with_logits(
            torch.from_numpy(scores), torch.from_numpy(targets), reduction="sum"
        )
        return {
            "val_loss": round(float(loss) / len(targets), 4),
            "val_map": round(mean_average_precision(scores, targets > 0), 4),
        }

    def _save_vision(self) -> None:
        settings = GridSettings(network=self.settings.network, input_size=self.settings.test_size)
        averaged = self.averaged()
        save_vision(self.folder / VISION, averaged.network, settings)
        averaged.word_head(self.words).save(self.folder / WORDS)

    def header(self) -> dict[str, str]:
        """Settings and words."""
        return {"settings": json.dumps(asdict(self.settings)), "words": json.dumps(self.words)}

    def check_header(self, header: Mapping[str, str]) -> None:
        """Settings and words must be the same."""
        path = self.folder / CHECKPOINT
        before = {**asdict(AdaptSettings()), **json.loads(header["settings"])}  # older runs lack later settings
        check_same(path, before, asdict(self.settings))
        if json.loads(header["words"]) != self.words:
            raise TrainingError(f"{path}: was started with other captions; choose another folder")
