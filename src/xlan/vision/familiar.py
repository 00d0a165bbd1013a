"""Does a picture resemble those a model has seen? Word probabilities alone do not tell: a model is sure of its grammar.

A picture is the mean of its region features, as a direction, compared with those of a few hundred training pictures in
two ways. Its distance is 1 - cosine, averaged over the nearest of them. Its richness is the share of the network's
features that take part: blank pictures, noise and documents excite few of them, photos many. Up to the distance within
which 95 % of the training pictures lie from one another, and down to the richness that 95 % of them have, a picture is
as familiar as any (1); beyond, familiarity falls off quickly towards 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from xlan.errors import DataError, ShapeError, WeightsError
from xlan.files import write_bytes
from xlan.weights import packed_rows, read_tensors, unpacked_rows

NEIGHBOURS = 10
EXAMPLES = 1000
WITHIN = 0.95
FALL = 6.0  # a picture 1.2 times as far as familiar ones, or as poor, keeps 30 %
MAX_BYTES = 64 << 20

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Familiar:
    """What a model's training pictures look like.

    Attributes:
        examples: `[M, D]` float32, one direction of length 1 for each of some training pictures.
        near: the distance up to which a picture is as familiar as any.
        rich: the richness down to which it is; 0 where that was not measured.
    """

    examples: Floats
    near: float
    rich: float = 0.0

    @classmethod
    def of(cls, pictures: Iterable[npt.NDArray[np.floating]]) -> Familiar:
        """From the region features `[N, D]` of some training pictures; a few hundred do.

        Raises:
            DataError: there are too few to tell what is usual.
        """
        directions = [_direction(features) for features in pictures]
        if len(directions) <= NEIGHBOURS:
            raise DataError(f"expected more than {NEIGHBOURS} pictures to compare with, got {len(directions)}")
        examples = np.stack(directions)
        similar = examples @ examples.T
        np.fill_diagonal(similar, -np.inf)  # not to itself
        near, rich = np.quantile(_distances(similar), WITHIN), np.quantile(_richness(examples), 1 - WITHIN)
        return cls(examples, max(1e-6, float(near)), min(1.0, float(rich)))  # rounding may exceed 1

    def distance(self, features: npt.NDArray[np.floating]) -> float:
        """How far a picture with region features `[N, D]` is from its nearest examples, 0 to 2."""
        return float(_distances(self._direction(features) @ self.examples.T))

    def familiarity(self, features: npt.NDArray[np.floating]) -> float:
        """How familiar a picture with region features `[N, D]` is, 0 to 1."""
        too_far = max(0.0, self.distance(features) / self.near - 1)
        too_poor = max(0.0, self.rich / max(1e-9, float(_richness(self._direction(features)))) - 1)
        return math.exp(-FALL * (too_far + too_poor))

    def _direction(self, features: npt.NDArray[np.floating]) -> Floats:
        if features.ndim != 2 or features.shape[1] != self.examples.shape[1]:
            raise ShapeError(f"expected features [N, {self.examples.shape[1]}], got {list(features.shape)}")
        return _direction(features)

    def to_bytes(self, *, int8: bool = False) -> bytes:
        """The content of `familiar.safetensors`: float16, or 8 bits."""
        limits: dict[str, npt.NDArray[Any]] = {"near": np.array([self.near], np.float32)}
        if self.rich:
            limits["rich"] = np.array([self.rich], np.float32)
        return save({**packed_rows("examples", self.examples, int8=int8), **limits})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically."""
        write_bytes(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Familiar:
        """Read what `save` wrote.

        Raises:
            WeightsError: missing, damaged, or something else.
        """
        source = Path(path)
        tensors, _ = read_tensors(source, max_bytes=MAX_BYTES)
        examples, near = unpacked_rows("examples", tensors), tensors.get("near")
        rich = tensors.get("rich", np.zeros(1, np.float32))  # older files have none
        if examples is None or near is None or len(examples) <= NEIGHBOURS or near.shape != (1,) or rich.shape != (1,):
            raise WeightsError(
                f"{source}: expected more than {NEIGHBOURS} examples [M, D] and numbers 'near' and 'rich'"
            )
        usable = all(np.isfinite(values).all() for values in (examples, near, rich))
        if not usable or float(near[0]) <= 0 or not 0 <= float(rich[0]) <= 1:
            raise WeightsError(f"{source}: has values that are not usable numbers; the file is damaged")
        return cls(examples, float(near[0]), float(rich[0]))


def _direction(features: npt.NDArray[np.floating]) -> Floats:
    mean = features.astype(np.float32).mean(axis=0)
    return np.asarray(mean / max(1e-12, float(np.linalg.norm(mean))), dtype=np.float32)


def _distances(similar: Floats) -> Floats:
    """`[..., M]` cosines → `[...]` mean distance of the nearest."""
    return np.asarray(1 - np.sort(similar, axis=-1)[..., -NEIGHBOURS:].mean(axis=-1), dtype=np.float32)


def _richness(directions: Floats) -> Floats:
    """`[..., D]` directions of length 1 → `[...]` share of features that take part: 1/D for one alone, 1 for all."""
    return np.asarray(np.abs(directions).sum(axis=-1) ** 2 / directions.shape[-1], dtype=np.float32)
