"""The small detector on onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xlan.engines.onnx_session import OnnxSession
from xlan.engines.onnx_weights import MappedWeights
from xlan.errors import WeightsError
from xlan.export.detector import detector_graphs
from xlan.folders import check_files
from xlan.vision.detector.directory_settings import CONFIG, WEIGHTS, read_settings, shared_vision, weights_name
from xlan.vision.detector.lite_settings import (
    LEAST_SCORE,
    PROPOSALS,
    LiteDetectorSpec,
    LiteFront,
    LiteSelection,
    Seen,
    joined,
    kept_detections,
    kept_proposals,
)
from xlan.vision.grid_settings import read_vision
from xlan.vision.regions import PreparedImage


class OnnxLiteDetector(LiteFront):
    """Regions of the small detector.

    Args:
        sessions: its three graphs, as `xlan.export.detector` makes them.
        spec: its sizes.
        selection: which regions.
        weights_name: which weights these are, for `description`.
    """

    def __init__(
        self,
        sessions: Sequence[OnnxSession],
        spec: LiteDetectorSpec,
        selection: LiteSelection | None = None,
        *,
        weights_name: str = "",
    ) -> None:
        super().__init__(spec, selection, weights_name)
        self._proposals, self._regions_of, self._features = sessions

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        selection: LiteSelection | None = None,
        *,
        vision: str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> OnnxLiteDetector:
        """From a detector directory.

        Args:
            directory: what `xlan detector train` wrote.
            selection: which regions.
            vision: a captioner's vision.safetensors, for a detector that shares it.
            threads: as for `OnnxSession`.

        Raises:
            ModelError: not such a directory, or of another format.
            WeightsError: the weights are damaged or do not fit.
        """
        settings, source = read_settings(directory), Path(directory) / WEIGHTS
        spec = LiteDetectorSpec.from_dict(settings.get("spec", {}), what=str(source.with_name(CONFIG)))
        check_files(source.with_name(CONFIG), {WEIGHTS: settings["file"]}, [WEIGHTS], verify=False)
        file = shared_vision(directory, settings, vision)
        network = read_vision(file).settings.network  # which also looks for values that are not finite
        if network != spec.network:
            raise WeightsError(f"{file}: is {network}, the detector needs {spec.network}")
        backbone, heads = MappedWeights(file), MappedWeights(source)
        for name, array in heads.items():
            if not np.isfinite(array).all():
                raise WeightsError(f"{source}: {name} holds values that are not finite; the file is damaged")
        graphs = detector_graphs(spec, backbone, heads, source=str(source))
        sessions = [
            OnnxSession.of_graph(graph, name, source=str(source), threads=threads)
            for graph, name in zip(graphs, graphs._fields, strict=True)
        ]
        backbone.release()  # the sessions hold what they need in the form they need
        heads.release()
        return cls(sessions, spec, selection, weights_name=weights_name(settings))

    def see(self, images: Sequence[PreparedImage]) -> list[Seen]:
        """Run the network on each picture."""
        return [self._see(image) for image in images]

    def _see(self, image: PreparedImage) -> Seen:
        first = self._proposals.run({"pixels": image.pixels[None]})
        boxes, objectness = first.pop("rois"), first.pop("objectness")
        kept = kept_proposals(boxes, count=PROPOSALS)
        second = self._regions_of.run({**first, "rois": boxes[kept]})
        scores = joined(second["probabilities"], objectness[kept])
        every = kept_detections(scores, second["corners"], min_score=LEAST_SCORE, most=self.most_found)
        found = self.selection.chosen(every._replace(scores=self.spec.calibrated(every.scores)))
        features = self._features.run({"stride32": first["stride32"], "rois": found.boxes})["features"]
        return Seen(found, features, np.ascontiguousarray(first["stride32"][0].transpose(1, 2, 0)))
