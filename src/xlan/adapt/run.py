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

import copy
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from xlan.adapt.data import BoxLabels, Loader, Sample, caption_words, word_targets
from xlan.adapt.network import WordModel, mean_average_precision
from xlan.errors import TrainingError
from xlan.files import remove_leftovers
from xlan.training.average import AveragedWeights
from xlan.training.schedule import Cosine
from xlan.training.single import OnLog, RunLog, Window, check_same, load_run, rate_groups, save_run, train_epochs
from xlan.training.stop import StopRequest
from xlan.vision import efficientnet
from xlan.vision.grid import normalise, save_vision
from xlan.vision.grid_settings import GridSettings
from xlan.vision.sources import Picture

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
VISION = "vision.safetensors"
WORDS = "words.safetensors"


@dataclass(frozen=True)
class AdaptSettings:
    """One run of adaptation.

    Attributes:
        network: a name of `xlan.vision.lite.SPECS`.
        input_size: side in pixels of the views. A random view shows things larger than the whole picture does, by 1.15
            on average; training at 192 and extracting at 224 shows them equally large, and saves a quarter of the time.
        test_size: side in pixels for evaluation, and for the extractor that is left.
        words: how many caption words to predict.
        epochs: passes over the training pictures.
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
    """

    network: str = "efficientnet-lite2"
    input_size: int = 192
    test_size: int = 224
    words: int = 1000
    epochs: int = 4
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

    def __post_init__(self) -> None:
        for name in ("words", "epochs", "batch", "warmup"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rate", "head_rate", "min_area"):
            if not 0 < getattr(self, name) <= 1:
                raise TrainingError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")


class Adaptation:
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
        self.settings, self.folder, self.step = settings, Path(folder), 0
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
        self.total_steps = settings.epochs * self._train.steps_per_epoch(settings.batch)
        torch.manual_seed(settings.seed)
        network = network if network is not None else efficientnet.load_imagenet(settings.network)[0]
        classes = len(boxes.classes) if boxes is not None else 0
        model = WordModel(network, words=settings.words, classes=classes, dropout=settings.dropout)
        share = torch.from_numpy(self._targets["train"].mean(axis=0)).clamp(1e-4, 1 - 1e-4)
        model.words.bias = nn.Parameter(torch.logit(share))
        if model.things is not None and model.things.bias is not None:
            nn.init.constant_(model.things.bias, -4.0)
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._average = AveragedWeights(self._trained(), settings.average)
        self._schedule = Cosine(1.0, total=self.total_steps, warmup=settings.warmup)
        self.window, self.lines = Window(), RunLog(self.folder / LOG)
        self._optimizer = torch.optim.AdamW(
            rate_groups(
                self._trained(),
                is_head=lambda name: not name.startswith("network."),
                rate=settings.rate,
                head_rate=settings.head_rate,
                weight_decay=settings.weight_decay,
            ),
            betas=(0.9, 0.99),
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        self.resumed = (self.folder / CHECKPOINT).exists()
        if self.resumed:
            self._resume()

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, tensor) for name, tensor in self.model.named_parameters() if tensor.requires_grad)

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

        A request to stop ends it early and saves, as an exception does. The evaluation of a finished epoch that was cut
        short is made up for when the run continues.
        """
        self.model.train()
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
        self._save_vision()
        return scores

    def train_step(self, batch: list[Sample]) -> dict[str, float]:
        """One step of the optimiser; returns the losses."""
        torch.manual_seed(self.settings.seed * 1_000_003 + self.step)  # dropout, the same when resumed
        factor = self._schedule.rate(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        targets = torch.from_numpy(self._targets["train"][[sample.number for sample in batch]])
        logits, things = self.model(normalise([sample.pixels for sample in batch]))
        word_loss = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(batch)
        cell_loss = word_loss.new_zeros(())
        if things is not None:
            cells = torch.from_numpy(np.stack([sample.cells for sample in batch if sample.cells is not None]))
            known = ~cells.isnan()
            summed = functional.binary_cross_entropy_with_logits(things[known], cells[known], reduction="sum")
            cell_loss = summed / (len(batch) * things.shape[2] * things.shape[3])
        loss = word_loss + self.settings.box_weight * cell_loss
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss.item()} at step {self.step}; lower --rate (it is {self.settings.rate})"
            )
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([tensor for _, tensor in self._trained()], 20.0)
        self._optimizer.step()
        self.step += 1
        self._average.update(self.step)
        return {"loss": word_loss.item(), "cell_loss": cell_loss.item()}

    def averaged(self) -> WordModel:
        """A copy of the model with averaged weights, for evaluation."""
        model: WordModel = copy.deepcopy(self.model).eval()
        model.load_state_dict({**model.state_dict(), **self._average.tensors})
        return model

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

    def save(self) -> None:
        """Write a checkpoint."""
        header = {
            "step": str(self.step),
            "settings": json.dumps(asdict(self.settings)),
            "words": json.dumps(self.words),
            "window": self.window.to_json(),
        }
        save_run(self.folder / CHECKPOINT, self._trained(), self._average, self._optimizer, header)

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        header = load_run(
            path,
            self._trained(),
            self._average,
            self._optimizer,
            self._check_same,
            otherwise="give --boxes exactly as then",
        )
        self.step = int(header["step"])
        self.window = Window.from_json(header.get("window", "{}"))
        self.lines.trim(self.step)

    def _check_same(self, header: dict[str, str]) -> None:
        path = self.folder / CHECKPOINT
        check_same(path, json.loads(header["settings"]), asdict(self.settings))
        if json.loads(header["words"]) != self.words:
            raise TrainingError(f"{path}: was started with other captions; choose another folder")
