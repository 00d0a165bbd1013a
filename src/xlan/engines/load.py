"""A model directory → everything a `Captioner` is made of."""

from __future__ import annotations

import os
from dataclasses import dataclass

from xlan.engines.interface import Engine
from xlan.errors import MissingExtraError
from xlan.text.vocab import Vocabulary
from xlan.vision.familiar import Familiar
from xlan.vision.regions import RegionExtractor


@dataclass(frozen=True)
class Loaded:
    """The parts of a model directory, ready to use.

    Attributes:
        engine: regions → ids.
        vocabulary: ids ↔ words.
        extractor: pictures → regions, on the same device; None for models that take region features only.
        familiar: what its training pictures look like; None where the directory does not say.
    """

    engine: Engine
    vocabulary: Vocabulary
    extractor: RegionExtractor | None
    familiar: Familiar | None


def load(directory: str | os.PathLike[str], *, device: str = "cpu") -> Loaded:
    """Read a model directory.

    Args:
        directory: what `save_pretrained`, `xlan train` or `xlan pack` wrote.
        device: where to compute: `cpu`, `cuda`, `cuda:1`, `mps`.

    Raises:
        ModelError: not a model directory, or the device cannot be used here.
        MissingExtraError: torch is not installed.
    """
    try:
        from xlan.engines.torch_engine import TorchEngine, torch_device
        from xlan.pretrained import FAMILIAR, VISION, load_model, read_model_directory
        from xlan.vision.grid import GridExtractor
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("captioning with this model", "train") from None
    where = torch_device(device)
    found = read_model_directory(directory)
    return Loaded(
        engine=TorchEngine(load_model(found, device=where), found.vocabulary.special),
        vocabulary=found.vocabulary,
        extractor=GridExtractor.load(found.extras[VISION]).to(where) if VISION in found.extras else None,
        familiar=Familiar.load(found.extras[FAMILIAR]) if FAMILIAR in found.extras else None,
    )
