"""The part every search shares: its arguments, checked once, and the controls, put together once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from xlan.decoding.controls import Control, Forbid, Limits, MaxLength, NoBadEnding, Prefix
from xlan.decoding.required import Require
from xlan.errors import DecodingError
from xlan.required import no_sentence, refuse_forbidden
from xlan.types import SpecialIds


@dataclass(frozen=True)
class SearchArguments:
    """Checked arguments of a search.

    Attributes:
        vocab_size: number of ids V.
        special: the special ids.
        max_length: steps, the one that emits `eos` included.
        word_limit: most words of a sentence.
        controls: controls other than required words.
        required: all required words in one, or None.
    """

    vocab_size: int
    special: SpecialIds
    max_length: int
    word_limit: int
    controls: tuple[Control, ...]
    required: Require | None

    def prefix(self, tokens: Tensor, image: Tensor) -> Prefix:
        """What rows said so far: `tokens` `[R, t]` of images `image` `[R]`."""
        return Prefix(tokens, image, self.special, self.max_length, self.word_limit)

    def apply(self, log_probs: Tensor, prefix: Prefix) -> Tensor:
        """`log_probs` (`[R, V]`, left as it is) after all controls but required words."""
        if self.controls:
            log_probs = log_probs.clone()
            for control in self.controls:
                log_probs = control(log_probs, prefix)
        return log_probs

    def dead_end(self, images: Sequence[int]) -> DecodingError:
        """The error for images that were left without any sentence."""
        return no_sentence(images, self.word_limit)


def check_arguments(
    vocab_size: int, special: SpecialIds, *, max_length: int, controls: Sequence[Control]
) -> SearchArguments:
    """Check what a search was asked for.

    Raises:
        DecodingError: something no sentence can satisfy.
    """
    if max_length < 1:
        raise DecodingError(f"maximum length: expected at least 1 step, got {max_length}")
    for name in ("bos", "eos"):
        if not 0 <= getattr(special, name) < vocab_size:
            raise DecodingError(
                f"special id {name}={getattr(special, name)} is outside the model's vocabulary (0 to {vocab_size - 1})"
            )
    limit = min([max_length, *(control.words for control in controls if isinstance(control, MaxLength))])
    limits = Limits(vocab_size, special, limit)
    required = _join_required(controls)
    others = tuple(control for control in controls if not isinstance(control, Require))
    for control in (*others, *([required] if required else [])):
        check = getattr(control, "check", None)
        if check is not None:
            check(limits)
    return SearchArguments(vocab_size, special, max_length, limit, others, required)


def _join_required(controls: Sequence[Control]) -> Require | None:
    requirements = [r for control in controls if isinstance(control, Require) for r in control.requirements]
    if not requirements:
        return None
    forbidden = frozenset[int]().union(*(control.words for control in controls if isinstance(control, Forbid)))
    refuse_forbidden(requirements, forbidden)
    bad = frozenset[int]().union(*(control.words for control in controls if isinstance(control, NoBadEnding)))
    return Require(requirements, bad_endings=bad)
