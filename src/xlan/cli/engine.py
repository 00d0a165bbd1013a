"""The options `--engine` and `--model`, the same in every command that captions."""

from __future__ import annotations

from enum import StrEnum
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
