"""Grid regions on onnxruntime: the extractor of the onnx engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xlan.engines.onnx_session import OnnxSession
from xlan.engines.onnx_weights import MappedWeights
from xlan.export.vision import grid_side, vision_graph
from xlan.types import Regions
from xlan.vision.grid_settings import PICTURES_PER_PASS, GridFront, GridSettings, read_vision
from xlan.vision.regions import PreparedImage


class OnnxGridExtractor(GridFront):
    """Grid regions of an EfficientNet-Lite (see `xlan.vision.regions.RegionExtractor`).

    Args:
        session: its graph, as `xlan.export.vision` makes it.
        settings: sizes.
        weights_name: which weights these are, for `description`.
    """

    def __init__(self, session: OnnxSession, settings: GridSettings, *, weights_name: str = "") -> None:
        super().__init__(settings, weights_name)
        self._session = session

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, threads: int | None = None, **changes: Any) -> OnnxGridExtractor:
        """With the weights and settings of a `vision.safetensors`; `changes` replace single settings.

        `threads` as for `OnnxSession`.

        Raises:
            WeightsError: missing, damaged, or tensors that do not fit the network it names.
        """
        file = read_vision(path, **changes)
        weights = MappedWeights(path)
        graph = vision_graph(replace(file, weights=weights), precision="stored", source=str(path))
        session = OnnxSession.of_graph(graph, "vision", source=str(path), threads=threads)
        weights.release()  # the session holds what it needs in the form it needs
        return cls(session, file.settings, weights_name=file.digest)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image: the image itself first (if set), then the cells row by row."""
        if not images:
            return []
        passes = [images[i : i + PICTURES_PER_PASS] for i in range(0, len(images), PICTURES_PER_PASS)]
        found = [
            self._session.run({"pixels": np.stack([image.pixels for image in part])})["features"] for part in passes
        ]
        side = grid_side(self.settings)
        return self.settings.regions(np.concatenate(found), (side, side), images)
