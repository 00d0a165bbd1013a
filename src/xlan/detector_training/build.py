"""A configuration → a run: which pictures, which boxes, which classes count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from xlan.adapt.data import BoxLabels
from xlan.config import DetectorConfig
from xlan.detector_training.evaluate import coco_program
from xlan.detector_training.run import DetectorRun, DetectorSettings
from xlan.errors import DataError
from xlan.vision.sources import Picture, karpathy_pictures


def build_run(config: DetectorConfig, *, on_missing: Callable[[str], None] | None = None) -> DetectorRun:
    """Read the files that a configuration names and set up the run, new or continued.

    Args:
        config: of the run.
        on_missing: told the id of each image without a picture; it is left out.

    Raises:
        DataError: a file cannot be used, or there is nothing to train or to measure on.
        MissingExtraError: pycocotools, which measures, is not installed.
    """
    coco_program()  # better to hear now than after the first epoch that it is missing
    boxes = BoxLabels.load(*config.boxes)
    truth = BoxLabels.load(config.true_boxes) if config.true_boxes is not None else None
    if truth is not None and truth.classes != boxes.classes:
        raise DataError(f"{config.true_boxes}: its classes differ from those of {', '.join(config.boxes)}")
    pictures = karpathy_pictures(config.dataset, folder=config.pictures, on_missing=on_missing)
    train = repeated(with_boxes(pictures, boxes, ("train",))[: config.limit_train], boxes, config.repeat_true)
    val = with_boxes(pictures, truth or boxes, config.measure)[: config.limit_val]
    if not train or not val:
        raise DataError(
            f"{config.dataset}: needs pictures with boxes, to train on in the split train and to measure on in "
            f"{', '.join(config.measure)}; found {len(train)} and {len(val)}"
        )
    names = {field.name for field in fields(DetectorSettings)}
    settings = DetectorSettings(**{name: value for name, value in config.model_dump().items() if name in names})
    return DetectorRun(
        settings,
        train=train,
        boxes=boxes,
        val=val,
        val_boxes=truth,
        marked=marked_classes(truth) if truth is not None else None,
        folder=config.output,
        vision=config.vision,
        network=config.network,
        threads=config.threads,
    )


def with_boxes(pictures: list[Picture], boxes: BoxLabels, splits: tuple[str, ...]) -> list[Picture]:
    """Pictures of these splits that are listed among the boxes; others are unknown, not empty."""
    return [picture for picture in pictures if picture.split in splits and picture.id in boxes.boxes]


def repeated(pictures: list[Picture], boxes: BoxLabels, times: int) -> list[Picture]:
    """Pictures that people looked at so many times, all others once; where people saw all or none, all once."""
    true = [picture for picture in pictures if picture.id in boxes.by_people]
    return pictures + (times - 1) * true if len(true) < len(pictures) else pictures


def marked_classes(boxes: BoxLabels) -> tuple[int, ...]:
    """Classes that occur at all: a class that nobody marked anywhere is unknown, not absent."""
    every = [rows[:, 0] for rows in boxes.boxes.values() if len(rows)]
    return tuple(int(label) for label in np.unique(np.concatenate(every))) if every else ()
