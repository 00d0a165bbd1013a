"""Regions from a detector the user brings as an ONNX file: boxes and their pooled features.

The file has one image input `[1, 3, H, W]` and outputs `boxes` `[N, 4]`, `features` `[N, D]` and, if it likes, `scores`
`[N]` (a leading batch dimension of 1 is fine everywhere). Whatever N it finds, the best `max_regions` are kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from xlan.errors import ImageError, ModelError, WeightsError, one_line
from xlan.files import file_sha256
from xlan.types import Regions
from xlan.vision.image import original_size
from xlan.vision.regions import PreparedImage

MAX_ONNX_BYTES = 2 << 30
BoxUnits = Literal["fraction", "pixel"]


class OnnxDetector:
    """A detector in an ONNX file behind the extractor interface.

    Args:
        path: the file.
        input_size: height and width that pictures are squashed to, when the file leaves them open.
        box_units: whether the file's boxes are fractions (0–1) or pixels of its input.
        mean: subtracted from each of the red, green and blue values (0–255).
        scale: what the difference is divided by.
        bgr: the file wants blue first.
        max_regions: keep at most this many, best scores first.
        min_score: drop regions below this score, but never all of them.
        threads: threads of the runtime; 0 lets it choose.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        input_size: tuple[int, int] | None = None,
        box_units: BoxUnits = "fraction",
        mean: tuple[float, float, float] = (0.0, 0.0, 0.0),
        scale: tuple[float, float, float] = (255.0, 255.0, 255.0),
        bgr: bool = False,
        max_regions: int = 100,
        min_score: float = 0.0,
        threads: int = 0,
    ) -> None:
        if max_regions < 1:
            raise ModelError(f"max_regions must be at least 1, got {max_regions}")
        self._path = Path(path)
        self._session, digest = _open(self._path, threads)
        self._input, self._height, self._width = self._input_of(input_size)
        self._outputs = self._outputs_of()
        self._mean, self._scale = np.array(mean, dtype=np.float32), np.array(scale, dtype=np.float32)
        self._bgr = bgr
        self._box_units, self._max_regions, self._min_score = box_units, max_regions, min_score
        self._description = {
            "extractor": "onnx",
            "weights": digest,
            "input_size": [self._height, self._width],
            "box_units": box_units,
            "mean": list(mean),
            "scale": list(scale),
            "bgr": bgr,
            "max_regions": max_regions,
            "min_score": min_score,
        }
        grey = np.full((self._height, self._width, 3), 127, dtype=np.uint8)
        self._feature_dim = self._run(grey)["features"].shape[1]

    def _input_of(self, input_size: tuple[int, int] | None) -> tuple[str, int, int]:
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
            got = ", ".join(f"{item.name} {item.type} {item.shape}" for item in inputs)
            raise WeightsError(f"{self._path}: expected one float input [1, 3, H, W], got {got}")
        sides = inputs[0].shape[2:]
        if all(isinstance(side, int) for side in sides):
            return inputs[0].name, sides[0], sides[1]
        if input_size is None:
            raise WeightsError(f"{self._path}: leaves the size of its input open; give input_size (height, width)")
        return inputs[0].name, *input_size

    def _outputs_of(self) -> list[str]:
        names = [output.name for output in self._session.get_outputs()]
        if not {"boxes", "features"} <= set(names):
            raise WeightsError(f"{self._path}: expected outputs 'boxes' and 'features', got {', '.join(names)}")
        return [name for name in ("boxes", "features", "scores") if name in names]

    @property
    def feature_dim(self) -> int:
        """Width of the file's features."""
        return int(self._feature_dim)

    @property
    def min_side(self) -> int:
        """The longer side of the input."""
        return max(self._height, self._width)

    @property
    def description(self) -> dict[str, Any]:
        """The file's hash and the settings."""
        return dict(self._description)

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Squash an upright RGB image to the file's input size."""
        width, height = original_size(image)
        if image.size != (self._width, self._height):
            image = image.resize((self._width, self._height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        return PreparedImage(np.array(image, dtype=np.uint8), width, height)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image, best score first.

        Raises:
            ImageError: the detector found nothing in one of the pictures.
            WeightsError: its outputs do not fit together.
        """
        return [self._regions(image) for image in images]

    def _regions(self, image: PreparedImage) -> Regions:
        found = self._run(image.pixels)
        boxes, features, scores = found["boxes"], found["features"], found.get("scores")
        if len(features) == 0:
            raise ImageError("the detector found nothing")
        if self._box_units == "pixel":
            boxes = np.divide(boxes, np.array([self._width, self._height] * 2), dtype=np.float32)
        boxes = np.clip(boxes, 0.0, 1.0).astype(np.float32)
        if scores is not None:
            order = np.argsort(-scores, kind="stable")
            keep = order[: max(1, min(self._max_regions, int((scores >= self._min_score).sum())))]
        else:
            keep = np.arange(min(self._max_regions, len(features)))
        chosen = None if scores is None else scores[keep]
        return Regions(features[keep], boxes[keep], chosen, width=image.width, height=image.height)

    def _run(self, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.float32]]:
        values = (pixels.astype(np.float32) - self._mean) / self._scale
        if self._bgr:
            values = values[:, :, ::-1]
        feed = {self._input: np.ascontiguousarray(values.transpose(2, 0, 1)[None])}
        try:
            arrays = self._session.run(self._outputs, feed)
        except Exception as error:  # the runtime has its own exception family, private by name
            raise WeightsError(f"{self._path}: failed on a picture: {one_line(error)}") from None
        return self._checked(dict(zip(self._outputs, arrays, strict=True)))

    def _checked(self, found: dict[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
        dimensions = {"boxes": 2, "features": 2, "scores": 1}
        result: dict[str, npt.NDArray[np.float32]] = {}
        for name, value in found.items():
            array = np.asarray(value)
            if array.ndim == dimensions[name] + 1 and array.shape[0] == 1:
                array = array[0]
            if array.ndim != dimensions[name] or array.dtype.kind != "f":
                raise WeightsError(f"{self._path}: output {name!r} has shape {list(array.shape)} of {array.dtype}")
            if not np.isfinite(array).all():
                raise WeightsError(f"{self._path}: output {name!r} has values that are not finite")
            result[name] = array.astype(np.float32, copy=False)
        counts = {name: len(array) for name, array in result.items()}
        if len(set(counts.values())) != 1 or result["boxes"].shape[1] != 4:
            raise WeightsError(f"{self._path}: expected boxes [N, 4] and as many features and scores, got {counts}")
        return result


def _open(path: Path, threads: int) -> tuple[Any, str]:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else its import collects data about this computer
    try:
        import onnxruntime
    except ImportError:
        raise ModelError("a detector in an ONNX file needs onnxruntime; type: pip install onnxruntime") from None
    try:
        size = path.stat().st_size
        if size > MAX_ONNX_BYTES:
            raise WeightsError(f"{path}: {size:,} bytes is more than an ONNX file can have ({MAX_ONNX_BYTES:,})")
        digest = file_sha256(path)
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise WeightsError(f"{path}: is not an ONNX file this runtime can load: {one_line(error)}") from None
    return session, f"sha256:{digest[:16]}"
