"""Graphs that run: onnxruntime sessions, with what can go wrong in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.errors import MissingExtraError, ModelError, WeightsError
from xlan.export.graph import Graph

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

MAX_GRAPH_BYTES = (1 << 31) - 1  # a protocol buffer cannot be larger


class OnnxSession:
    """One graph, ready to run; `run` may be called from several threads at once.

    Args:
        content: the graph, or the path of a `.onnx` file.
        source: names it in error messages.
        weights: tensors that the graph does not hold itself; they are used where they are, not copied.

    Raises:
        WeightsError: not an ONNX graph, or one that this version of onnxruntime cannot run.
    """

    def __init__(self, content: bytes | Path, *, source: str, weights: Mapping[str, Array] | None = None) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("the onnx engine", "onnx") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised; the rest is of no use to a user
        options.intra_op_num_threads = threads()
        # Three sessions take turns: threads that wait in a busy loop for their next turn would be in each other's way.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._weights = dict(weights or {})  # kept: the session reads them where they are
        if self._weights:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._weights.values()]
            options.add_external_initializers(list(self._weights), values)
        graph = content if isinstance(content, bytes) else str(content)
        try:
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a dozen types without a common base
            raise WeightsError(f"{source}: cannot be run by onnxruntime: {_one_line(error)}") from None
        self.inputs: dict[str, list[int | str]] = {value.name: value.shape for value in self._session.get_inputs()}
        self.outputs: dict[str, list[int | str]] = {value.name: value.shape for value in self._session.get_outputs()}
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self._names = list(self.outputs)

    @classmethod
    def of_graph(cls, graph: Graph, name: str, *, source: str) -> OnnxSession:
        """A graph that was just made."""
        content, weights = graph.model_and_weights(name, {})
        return cls(content, source=source, weights=weights)

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Arrays in by name, arrays out by name."""
        try:
            return dict(zip(self._names, self._session.run(None, dict(inputs)), strict=True))
        except Exception as error:
            raise ModelError(f"the onnx engine failed: {_one_line(error)}") from None


def threads() -> int:
    """How many threads a graph gets: OMP_NUM_THREADS where it is set, else 0, onnxruntime's own choice."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() else 0


def zeros(shape: list[int | str], sizes: Mapping[str, int]) -> npt.NDArray[np.float32]:
    """Zeros of a shape whose named dimensions have these sizes."""
    return np.zeros([size if isinstance(size, int) else sizes[size] for size in shape], np.float32)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
