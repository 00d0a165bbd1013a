"""How well a detector finds things: COCO's own average precision, and the recall of proposals.

Precision is computed by pycocotools' COCOeval on whole pictures. Classes that nobody marked in the truth are left out:
a detection of one of them is neither right nor wrong.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xlan.detector_training.data import DetectionLoader
from xlan.errors import DataError, MissingExtraError
from xlan.training.stop import StopRequest
from xlan.vision.detector.boxes import iou
from xlan.vision.detector.lite import LiteDetector
from xlan.vision.detector.lite_settings import BEFORE, PROPOSALS, Boxes
from xlan.vision.grid import normalise

Floats = npt.NDArray[np.float32]
_LEAST_MEASURED = 0.02  # the score of a detection that counts


def coco_program() -> tuple[Any, Any]:
    """The classes COCO and COCOeval of pycocotools.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise MissingExtraError("average precision of detectors", "train") from None
    return COCO, COCOeval


def average_precision(
    truth: Sequence[tuple[Floats, npt.NDArray[np.int64]]],
    found: Sequence[Boxes],
    *,
    classes: int,
    marked: Collection[int] | None = None,
) -> dict[str, float]:
    """AP (mean over overlaps 0.50 to 0.95), AP50, AP75 and AR100 in percent, by pycocotools.

    Args:
        truth: boxes `[G, 4]` and labels `[G]` of each picture.
        found: detections of each picture.
        classes: how many there are.
        marked: classes that were marked; None for all.

    Raises:
        MissingExtraError: pycocotools is not installed.
    """
    COCO, COCOeval = coco_program()
    counted = sorted(range(classes) if marked is None else set(marked))
    annotations: list[dict[str, Any]] = []
    for image, (boxes, labels) in enumerate(truth, start=1):
        for box, label in zip(boxes.tolist(), labels.tolist(), strict=True):
            side = [box[2] - box[0], box[3] - box[1]]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": label,
                    "bbox": [*box[:2], *side],
                    "area": side[0] * side[1],
                    "iscrowd": 0,
                }
            )
    if not annotations:
        raise DataError("the pictures to measure on have no boxes; precision cannot be computed")
    results = [
        {"image_id": image, "category_id": label, "bbox": [*box[:2], box[2] - box[0], box[3] - box[1]], "score": score}
        for image, one in enumerate(found, start=1)
        for box, label, score in zip(one.boxes.tolist(), one.classes.tolist(), one.scores.tolist(), strict=True)
    ]
    if not results:
        return {"AP": 0.0, "AP50": 0.0, "AP75": 0.0, "AR100": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):  # it reports on standard output as it goes
        coco = COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": image} for image in range(1, len(truth) + 1)],
            "categories": [{"id": number, "name": str(number)} for number in range(classes)],
            "annotations": annotations,
        }
        coco.createIndex()
        run = COCOeval(coco, coco.loadRes(results), "bbox")
        run.params.catIds = counted
        run.evaluate()
        run.accumulate()
        run.summarize()
    stats = {"AP": run.stats[0], "AP50": run.stats[1], "AP75": run.stats[2], "AR100": run.stats[8]}
    return {name: round(100 * max(0.0, float(value)), 2) for name, value in stats.items()}


def proposal_recall(truth: Iterable[Floats], proposals: Iterable[Tensor]) -> float:
    """Share of the true boxes, in percent, that some proposal of their picture overlaps by at least a half."""
    hit = total = 0
    for boxes, proposed in zip(truth, proposals, strict=True):
        total += len(boxes)
        if len(boxes) and len(proposed):
            hit += int((iou(torch.from_numpy(boxes), proposed).amax(dim=1) >= 0.5).sum())
    return round(100 * hit / total, 2) if total else 0.0


def fit_scores(
    truth: Sequence[tuple[Floats, npt.NDArray[np.int64]]],
    found: Sequence[Boxes],
    *,
    marked: Collection[int] | None = None,
) -> tuple[float, float]:
    """Slope and offset that bring the logits of scores to the share of detections that are right.

    A detection is right when it overlaps a thing of its class by at least a half that no better one has taken.
    Logistic regression by Newton's method; where everything or nothing is right there is nothing to fit.
    """
    rows: list[tuple[float, bool]] = []
    for (boxes, labels), one in zip(truth, found, strict=True):
        overlaps = iou(torch.from_numpy(one.boxes), torch.from_numpy(boxes)).numpy()  # [n, G]
        free = np.ones(len(boxes), dtype=bool)
        for overlap, label, score in zip(overlaps, one.classes, one.scores, strict=True):
            if marked is not None and label not in marked:
                continue
            hits = np.where(free & (labels == label) & (overlap >= 0.5), overlap, 0.0)
            hit = bool(hits.max(initial=0.0) > 0)
            if hit:
                free[int(hits.argmax())] = False
            rows.append((float(score), hit))
    scores, right = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=np.float64)
    if not 0 < right.sum() < len(right):
        return 1.0, 0.0
    likely = np.clip(scores, 1e-6, 1 - 1e-6)
    inputs = np.stack([np.log(likely / (1 - likely)), np.ones_like(likely)], axis=1)
    weights = np.array([1.0, 0.0])
    for _ in range(50):
        chance = 1 / (1 + np.exp(-inputs @ weights))
        spread = inputs * (chance * (1 - chance))[:, None]
        curvature = inputs.T @ spread + 1e-3 * np.eye(2)
        move = np.linalg.solve(curvature, inputs.T @ (right - chance) - 1e-3 * (weights - [1.0, 0.0]))
        weights = weights + np.clip(move, -1, 1)
        if np.abs(move).max() < 1e-6:
            break
    return max(0.01, float(weights[0])), float(weights[1])


def evaluate(
    detector: LiteDetector,
    loader: DetectionLoader,
    *,
    batch: int,
    marked: Collection[int] | None = None,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Precision and recall of a detector on whole pictures, and what `fit_scores` makes of its scores.

    A request to stop is heeded between batches.
    """
    truth: list[tuple[Floats, npt.NDArray[np.int64]]] = []
    found: list[Boxes] = []
    proposed: list[Tensor] = []
    with torch.inference_mode():
        for samples in loader.evaluation(batch=batch):
            if stop is not None:
                stop.check()
            maps = detector.network(normalise([sample.pixels for sample in samples]))
            heads = detector.heads
            proposals = heads.propose(heads.score(heads.neck(maps)), before=BEFORE * PROPOSALS, count=PROPOSALS)
            proposed += [one.boxes for one in proposals]
            for sample, boxes in zip(samples, detector.detect(maps, min_score=_LEAST_MEASURED), strict=True):
                rows = loader.boxes.boxes[loader.pictures[sample.number].id]
                corners = (rows[:, 2:] * loader.size).astype(np.float32)
                truth.append((corners, rows[:, 0].astype(np.int64)))
                found.append(boxes)
    scores = average_precision(truth, found, classes=len(detector.spec.classes), marked=marked)
    slope, offset = fit_scores(truth, found, marked=marked)
    recall = proposal_recall((boxes for boxes, _ in truth), proposed)
    return {**scores, "recall100": recall, "score_slope": round(slope, 4), "score_offset": round(offset, 4)}
