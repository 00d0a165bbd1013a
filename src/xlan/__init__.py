"""X-Linear attention networks for image captioning.

The names below are the public surface; everything else may move between releases. Nothing is imported before it is
asked for, so `import xlan` costs nothing and `xlan.metrics` works without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlan.errors import XlanError
    from xlan.text.vocab import Vocabulary
    from xlan.types import Regions, SpecialIds

__version__ = "0.1.0"

_HOME = {
    "Regions": "xlan.types",
    "SpecialIds": "xlan.types",
    "Vocabulary": "xlan.text.vocab",
    "XlanError": "xlan.errors",
}

__all__ = ["Regions", "SpecialIds", "Vocabulary", "XlanError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'xlan' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
