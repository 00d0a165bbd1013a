"""Values of `--engine` and `--detector`, the same in every command that captions."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xlan.engines.load import EngineName

ENGINE_HELP = "What computes: onnxruntime, PyTorch, or whichever is installed (onnx first)."

MODEL_WORDS = "Model directory, or owner/name[@revision] on the Hub"
MODEL_HELP = f"{MODEL_WORDS}; without it, the model that comes with xlan."


class EngineChoice(StrEnum):
    """Values of `--engine`."""

    auto = "auto"
    onnx = "onnx"
    torch = "torch"

    @property
    def engine(self) -> EngineName:
        """The value as the library takes it."""
        return self.value


def detector_for_names(given: Path | None, model: Path | None) -> Path | None:
    """The detector for an explanation: the one given, else the one in the model directory, if it can run here."""
    from xlan.engines.load import is_installed
    from xlan.pretrained import DETECTOR, SHIPPED
    from xlan.vision.detector.directory_settings import LITE, is_detector_directory, read_settings

    own = (SHIPPED if model is None else model) / DETECTOR
    if given is not None or not is_detector_directory(own):
        return given
    return own if is_installed("torch") or read_settings(own).get("kind") == LITE else None
