"""The vision network in 8 bits: ranges of its maps are measured on pictures, then weights and maps are quantised."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.errors import MissingExtraError

MOST_PICTURES = 200  # more do not change the ranges
# The first convolutions have few weights and suffer most from 8 bits: they stay as they are.
FLOAT_LAYERS = 8


def quantise_vision(graph: bytes, pictures: Iterable[npt.NDArray[np.uint8]]) -> bytes:
    """The graph of a vision network with convolutions in 8 bits.

    Args:
        graph: what `xlan.export.vision` made, float32.
        pictures: `[S, S, 3]` pixels of pictures like those it will see; a few dozen are enough.

    Raises:
        MissingExtraError: `onnx` is not installed.
    """
    try:
        import onnx
        from onnxruntime import quantization
    except ImportError:
        raise MissingExtraError("8 bits for the vision network", "export") from None

    class Pictures(quantization.CalibrationDataReader):  # type: ignore[misc]
        """One picture at a time, as the calibrator asks for them."""

        def __init__(self) -> None:
            self._left: Iterator[dict[str, Any]] = ({"pixels": picture[None]} for picture in pictures)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    before = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it advises a preprocessing that has nothing to do here
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
            original = onnx.load_from_string(graph)
            for number, node in enumerate(original.graph.node):
                node.name = f"node_{number}"
            first = [node.name for node in original.graph.node if node.op_type == "Conv"][:FLOAT_LAYERS]
            source.write_bytes(original.SerializeToString())
            quantization.quantize_static(
                source,
                target,
                Pictures(),
                quant_format=quantization.QuantFormat.QDQ,
                # With the clip behind it, the range of a convolution is 0 to 6, not what the clip cuts off.
                op_types_to_quantize=["Conv", "Clip"],
                nodes_to_exclude=first,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
            made = onnx.load(target)
    finally:
        logging.root.setLevel(before)
    del made.metadata_props[:]
    made.metadata_props.extend(original.metadata_props)
    return bytes(made.SerializeToString())
