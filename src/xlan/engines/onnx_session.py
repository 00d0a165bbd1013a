"""Graphs that run: onnxruntime sessions, with what can go wrong in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlan.errors import ModelError, WeightsError, one_line
from xlan.export.graph import Graph

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


class OnnxSession:
    """One graph, ready to run; `run` may be called from several threads at once.

    Args:
        content: the graph, or the path of a `.onnx` file.
        source: names it in error messages.
        weights: tensors that the graph does not hold itself; they are used where they are, not copied.
        threads: how many threads compute; None is OMP_NUM_THREADS, or onnxruntime's own choice.

    Raises:
        WeightsError: not an ONNX graph, or one that this version of onnxruntime cannot run.
    """

    def __init__(
        self,
        content: bytes | Path,
        *,
        source: str,
        weights: Mapping[str, Array] | None = None,
        threads: int | None = None,
    ) -> None:
        self._content, self._source = content, source
        self._weights = dict(weights or {})  # kept: the session reads them where they are
        self._threads = threads if threads is not None else _default_threads()
        self._open()
        self.inputs: dict[str, list[int | str]] = {value.name: value.shape for value in self._session.get_inputs()}
        self.outputs: dict[str, list[int | str]] = {value.name: value.shape for value in self._session.get_outputs()}
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self._names = list(self.outputs)

    def _open(self) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else its import collects data about this computer
        try:
            import onnxruntime
        except ImportError:
            raise ModelError("the onnx engine needs onnxruntime; type: pip install onnxruntime") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised; the rest is of no use to a user
        options.intra_op_num_threads = self._threads
        options.enable_cpu_mem_arena = False  # 10 MB less for a photo, and no slower: the graphs are small
        # Three sessions take turns: threads that wait in a busy loop for their next turn would be in each other's way.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._weights:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._weights.values()]
            options.add_external_initializers(list(self._weights), values)
        graph = self._content if isinstance(self._content, bytes) else str(self._content)
        try:
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a dozen types without a common base
            raise WeightsError(f"{self._source}: cannot be run by onnxruntime: {one_line(error)}") from None
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @classmethod
    def of_graph(cls, graph: Graph, name: str, *, source: str, threads: int | None = None) -> OnnxSession:
        """A graph that was just made."""
        content, weights = graph.model_and_weights(name, {})
        return cls(content, source=source, weights=weights, threads=threads)

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Arrays in by name, arrays out by name."""
        if os.getpid() != self._process:  # a forked child has the session, but not the threads that compute
            self._open()
        try:
            return dict(zip(self._names, self._session.run(None, dict(inputs)), strict=True))
        except Exception as error:
            raise ModelError(f"the onnx engine failed: {one_line(error)}") from None


def _default_threads() -> int:
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() else 0


def zeros(shape: list[int | str], sizes: Mapping[str, int]) -> npt.NDArray[np.float32]:
    """Zeros of a shape whose named dimensions have these sizes."""
    return np.zeros([size if isinstance(size, int) else sizes[size] for size in shape], np.float32)
