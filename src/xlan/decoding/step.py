"""What decoding needs of a model, and nothing more.

A *row* is one unfinished sentence. `start` opens one row per image, in the order of the images; from then on the
search decides which rows live by `state.select(index)`: repeating an index copies a row (a beam that branches),
leaving one out drops it. States are values: `step` returns a new one and never changes the one it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Self

    import torch
    from torch import Tensor

    from xlan.types import StepTrace

MAX_LENGTH = 17  # steps of the released code: at most 16 words and the end, or 17 words of a sentence cut off

IMPOSSIBLE = float("-inf")  # log-probability of a word that may not be said; score of a place without a sentence

EncodedT = TypeVar("EncodedT", contravariant=True)


class State(Protocol):
    """Everything a model remembers of R rows."""

    @property
    def rows(self) -> int:
        """The number R of rows."""

    @property
    def device(self) -> torch.device:
        """Where tokens and indices for this state have to be."""

    @property
    def trace(self) -> StepTrace | None:
        """Attention of the step that made this state, when `start` was asked for it."""

    def select(self, index: Tensor) -> Self:
        """Rows `index` (`[R']`, int64) of this state, in that order; an index may repeat."""


StateT = TypeVar("StateT", bound=State)


class Stepper(Protocol[EncodedT, StateT]):
    """A model that can be asked for the next word."""

    @property
    def vocab_size(self) -> int:
        """Number of ids V."""

    def start(self, encoded: EncodedT, *, trace: bool = False) -> StateT:
        """Open one row per encoded image; with `trace`, states carry the attention of each step."""

    def step(self, tokens: Tensor, state: StateT) -> tuple[Tensor, StateT]:
        """Feed `tokens` (`[R]`, int64; first `bos`) and return natural log-probabilities `[R, V]` and the new state."""
