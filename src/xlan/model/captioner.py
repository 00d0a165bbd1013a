"""A captioning model is an encoder and a decoder behind one interface: encode an image once, then ask for words.

    encoded = model.encode(features, mask)                 # once per image
    state = model.start(encoded)                           # one row per image
    log_probs, state = model.step(tokens, state)           # one word more in every row

and, for training, all words of all captions at once:

    logits = model(features, mask, tokens, lengths, owner)

Nothing is remembered inside a module: state goes in and comes out.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from xlan.errors import ModelError, ShapeError
from xlan.model.interface import Encoded, check_boxes, check_captions, check_features
from xlan.model.rows import RowGroups, row_groups
from xlan.model.spec import Spec


class Encoder(Protocol):
    """Region features → `Encoded`; an `nn.Module`.

    It is given checked input: zeros in padding, and a mask only where something is padded. An encoder with an attribute
    `wants_boxes` that is true is given the boxes too, as a third argument.
    """

    def __call__(self, features: Tensor, mask: Tensor | None, /) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]` (bool)."""


class Decoder(Protocol):
    """`Encoded` → words; an `nn.Module`."""

    def start(self, encoded: Encoded, *, trace: bool = False) -> Any:
        """Open one row per image; with `trace`, states carry the attention of each step."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Ids `[R]` → log-probabilities `[R, V]` and the state behind them."""

    def __call__(
        self, encoded: Encoded, tokens: Tensor, lengths: Tensor, groups: RowGroups, *, scheduled_sampling: float
    ) -> Tensor:
        """Teacher forcing: ids `[C, T]` → logits `[lengths.sum(), V]`."""


class CaptionModel(nn.Module):
    """X-LAN, X-Transformer or a baseline, as `xlan.build_model` makes them.

    Args:
        encoder: region features → encoded images.
        decoder: encoded images → words.
        spec: the numbers they were built from, kept so that the model can be saved.
    """

    def __init__(self, encoder: Encoder, decoder: Decoder, spec: Spec) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.spec = spec

    @property
    def vocab_size(self) -> int:
        """Number of ids V."""
        return self.spec.vocab_size

    @property
    def feature_dim(self) -> int:
        """Width of the region features that `encode` takes."""
        return self.spec.feature_dim

    @property
    def wants_boxes(self) -> bool:
        """Whether `encode` needs the boxes of the regions; other models ignore them."""
        return bool(getattr(self.encoder, "wants_boxes", False))

    def encode(self, features: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None) -> Encoded:
        """Encode region features.

        Args:
            features: `[B, N, feature_dim]`.
            mask: `[B, N]` bool, True where a region exists; None when all do.
            boxes: `[B, N, 4]` as `Regions.boxes_by_diagonal` gives them; only for models that want them.
        """
        features, mask = check_features(features, self.feature_dim, mask)
        if self.wants_boxes:
            encode: Any = self.encoder
            encoded: Encoded = encode(features, mask, check_boxes(boxes, features))
            return encoded
        return self.encoder(features, mask)

    def start(self, encoded: Encoded, *, trace: bool = False) -> Any:
        """Open one row per image; with `trace`, states carry the attention of each step."""
        return self.decoder.start(encoded, trace=trace)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Feed one id per row (`[R]`, first `bos`) and return log-probabilities `[R, V]` and the new state."""
        if not torch.compiler.is_compiling() and tokens.shape != (state.rows,):
            raise ShapeError(f"tokens: expected one id per row [{state.rows}], got {list(tokens.shape)}")
        try:
            return self.decoder.step(tokens, state)
        except IndexError:
            got = f"{int(tokens.min())} to {int(tokens.max())}"
            raise ShapeError(f"tokens: expected ids 0 to {self.vocab_size - 1}, got {got}") from None

    def forward(
        self,
        features: Tensor,
        mask: Tensor | None,
        tokens: Tensor,
        lengths: Tensor,
        owner: Tensor | None = None,
        *,
        boxes: Tensor | None = None,
        scheduled_sampling: float = 0.0,
    ) -> Tensor:
        """Teacher forcing.

        Args:
            features: `[B, N, feature_dim]`.
            mask: `[B, N]` bool or None.
            tokens: `[C, T]` input ids, each caption starting with `bos`.
            lengths: `[C]` how many positions of each caption are real (at least 1).
            owner: `[C]` image of each caption; default: C / B consecutive captions per image.
            boxes: `[B, N, 4]`, see `encode`.
            scheduled_sampling: probability of feeding a word drawn from the model instead of the caption's own.

        Returns:
            `[lengths.sum(), V]` logits of the real positions only: captions in order, and within each its words.
        """
        if not 0.0 <= scheduled_sampling <= 1.0:
            raise ModelError(f"scheduled_sampling: expected a probability from 0 to 1, got {scheduled_sampling}")
        images = features.shape[0]
        check_captions(tokens, lengths, owner, images=images, vocab_size=self.vocab_size)
        groups = row_groups(owner, tokens.shape[0], images, tokens.device)
        encoded = self.encode(features, mask, boxes)
        return self.decoder(encoded, tokens, lengths, groups, scheduled_sampling=scheduled_sampling)
