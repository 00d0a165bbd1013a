"""The network with its two heads while it is adapted, and how well it does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xlan.adapt.data import Floats
from xlan.errors import TrainingError
from xlan.vision import efficientnet
from xlan.vision.words import WordHead


class WordModel(nn.Module):
    """Network and heads.

    Args:
        network: the vision network.
        words: outputs of the word head.
        classes: outputs of the per-cell head; 0 for none.
        dropout: of the features before the word head.
    """

    def __init__(
        self, network: efficientnet.EfficientNetLite, *, words: int, classes: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.network = network
        self.words = nn.Conv2d(network.stride32_channels, words, 1)
        self.things = nn.Conv2d(network.stride32_channels, classes, 1) if classes else None
        self.dropout = nn.Dropout(dropout)
        self.frozen_blocks = network.stride8_blocks
        for head in (self.words, self.things):
            if head is not None:
                nn.init.normal_(head.weight, std=0.01)
        for part in (network.stem, *network.blocks[: self.frozen_blocks]):
            part.requires_grad_(False)

    def train(self, mode: bool = True) -> WordModel:
        """Training mode of the heads; the network's batch statistics stay fixed."""
        super().train(mode)
        self.network.eval()
        return self

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """`[B, 3, S, S]` → word logits `[B, W]` and per-cell logits `[B, K, G, G]` (None without boxes)."""
        features = self.network(images, frozen_blocks=self.frozen_blocks).stride32
        votes = self.words(self.dropout(features)).flatten(2)
        pooled = torch.logsumexp(votes, dim=2) - math.log(votes.shape[2])
        return pooled, self.things(features) if self.things is not None else None

    def word_head(self, words: Sequence[str]) -> WordHead:
        """The head that names words, without torch; `words` are its outputs in order."""
        bias = self.words.bias if self.words.bias is not None else torch.zeros(len(words))
        return WordHead(tuple(words), self.words.weight.detach().flatten(1).numpy(), bias.detach().numpy())


def mean_average_precision(scores: Floats, relevant: npt.NDArray[np.bool_]) -> float:
    """Mean over columns (words) of average precision over rows (pictures); columns without a relevant row are left out.

    Args:
        scores: `[P, W]`.
        relevant: `[P, W]`.
    """
    order = np.argsort(-scores, axis=0, kind="stable")
    hits = np.take_along_axis(relevant, order, axis=0)
    precision = np.cumsum(hits, axis=0) / np.arange(1, len(hits) + 1)[:, None]
    count = hits.sum(axis=0)
    known = count > 0
    if not known.any():
        raise TrainingError("no validation caption mentions any of the words; is this the right split?")
    return float(((precision * hits).sum(axis=0)[known] / count[known]).mean())
