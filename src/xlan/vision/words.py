"""The words that a vision network sees in a picture by itself, before any captioner speaks.

`xlan adapt` trains the network to name caption words; this is the head that names them, kept as one small file. It is
an opinion of its own beside the captioner's, which is what confidence needs, and it ranks pictures for a word quickly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from xlan.errors import ShapeError, WeightsError
from xlan.files import write_bytes
from xlan.types import Regions
from xlan.weights import packed_rows, read_tensors, unpacked_rows

MAX_BYTES = 64 << 20

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WordHead:
    """A linear layer from a region's features to words; a picture's logit pools those of its regions.

    Attributes:
        words: what the outputs stand for, commonest first.
        weight: `[W, D]` float32.
        bias: `[W]` float32.
    """

    words: tuple[str, ...]
    weight: Floats
    bias: Floats

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.weight.shape[0] != len(self.words) or self.bias.shape != (len(self.words),):
            shapes = f"weight {list(self.weight.shape)} and bias {list(self.bias.shape)}"
            raise ShapeError(f"expected a weight [W, D] and a bias [W] for {len(self.words)} words, got {shapes}")

    @cached_property
    def index(self) -> dict[str, int]:
        """Word → its output."""
        return {word: i for i, word in enumerate(self.words)}

    def logits(self, regions: Regions, outputs: Sequence[int] | None = None) -> Floats:
        """`[W]` log-odds that people mention each word (or only `outputs`): log-mean-exp over the picture's regions."""
        weight, bias = self.weight, self.bias
        if outputs is not None:
            chosen = np.asarray(outputs, dtype=np.int64)
            weight, bias = weight[chosen], bias[chosen]
        if regions.features.ndim != 2 or regions.features.shape[1] != weight.shape[1]:
            raise ShapeError(f"expected features [N, {weight.shape[1]}], got {list(regions.features.shape)}")
        votes = parts(regions).astype(np.float32) @ weight.T + bias  # [N, W]
        highest = votes.max(axis=0)
        pooled = highest + np.log(np.exp(votes - highest).mean(axis=0))
        return np.asarray(pooled, dtype=np.float32)

    def to_bytes(self, *, int8: bool = False) -> bytes:
        """The content of `words.safetensors`: weights in float16, or in 8 bits."""
        tensors = {**packed_rows("weight", self.weight, int8=int8), "bias": self.bias}
        return save(tensors, metadata={"words": json.dumps(self.words)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically."""
        write_bytes(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WordHead:
        """Read what `save` wrote.

        Raises:
            WeightsError: missing, damaged, or something else.
        """
        source = Path(path)
        tensors, header = read_tensors(source, max_bytes=MAX_BYTES)
        try:
            words = json.loads(header.get("words", "null"))
        except ValueError as error:
            raise WeightsError(f"{source}: its words cannot be read: {error}") from None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise WeightsError(f"{source}: expected a list of words in its header")
        weight, bias = unpacked_rows("weight", tensors), tensors.get("bias")
        if weight is None or bias is None or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise WeightsError(f"{source}: expected finite tensors 'weight' and 'bias', got {sorted(tensors)}")
        try:
            return cls(tuple(words), weight, bias.astype(np.float32))
        except ShapeError as error:
            raise WeightsError(f"{source}: {error}") from None


def parts(regions: Regions) -> npt.NDArray[np.floating]:
    """`[N', D]` features of the regions that are parts of the picture; all of them if each is the whole picture."""
    whole = (regions.boxes == np.array([0, 0, 1, 1], dtype=np.float32)).all(axis=1)
    return regions.features if whole.all() else regions.features[~whole]
