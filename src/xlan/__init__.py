"""X-Linear attention networks for image captioning.

The names below are the public surface; everything else may move between releases. Nothing is imported before it is
asked for, so `import xlan` costs nothing and what needs no
torch (`Captioner`, `CaptionOptions`, `Vocabulary`, `xlan.metrics`) works without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlan.engines.torch_engine import TorchEngine
    from xlan.errors import XlanError
    from xlan.model.attention import ConventionalAttention
    from xlan.model.build import build_model
    from xlan.model.captioner import CaptionModel
    from xlan.model.stack import XLinearStack
    from xlan.model.xlinear import XLinearAttention
    from xlan.options import CaptionOptions
    from xlan.packing import import_checkpoint, pack_model
    from xlan.pipeline import Captioner
    from xlan.pretrained import Pretrained, from_pretrained, save_pretrained
    from xlan.text.vocab import Vocabulary
    from xlan.types import Caption, Regions, SpecialIds

__version__ = "0.1.0"

_HOME = {
    "Caption": "xlan.types",
    "CaptionModel": "xlan.model.captioner",
    "CaptionOptions": "xlan.options",
    "Captioner": "xlan.pipeline",
    "ConventionalAttention": "xlan.model.attention",
    "Pretrained": "xlan.pretrained",
    "Regions": "xlan.types",
    "SpecialIds": "xlan.types",
    "TorchEngine": "xlan.engines.torch_engine",
    "Vocabulary": "xlan.text.vocab",
    "XLinearAttention": "xlan.model.xlinear",
    "XLinearStack": "xlan.model.stack",
    "XlanError": "xlan.errors",
    "build_model": "xlan.model.build",
    "from_pretrained": "xlan.pretrained",
    "import_checkpoint": "xlan.packing",
    "pack_model": "xlan.packing",
    "save_pretrained": "xlan.pretrained",
}

__all__ = [
    "Caption",
    "CaptionModel",
    "CaptionOptions",
    "Captioner",
    "ConventionalAttention",
    "Pretrained",
    "Regions",
    "SpecialIds",
    "TorchEngine",
    "Vocabulary",
    "XLinearAttention",
    "XLinearStack",
    "XlanError",
    "__version__",
    "build_model",
    "from_pretrained",
    "import_checkpoint",
    "pack_model",
    "save_pretrained",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'xlan' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
