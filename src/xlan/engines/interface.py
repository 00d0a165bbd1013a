"""What `Captioner` needs of an engine: regions and ids in, ids and log-probabilities out, all numpy.

An engine knows ids, never words, and nothing of pictures. Every engine gives the same answers, so `Captioner`, the
command line and the server do not know which one they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xlan.types import Regions, Rule

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SearchRequest:
    """How to look for the words, in ids. `xlan.wording` makes one from `CaptionOptions`, which checks the numbers.

    Attributes:
        beams: width of the beam search; not used when `samples` is above 0.
        samples: draw this many captions per image instead of searching; 0 searches.
        temperature: of the draw; log-probabilities are divided by it.
        top_p: draw from the likeliest ids that have this probability together; None for all.
        seed: of the draw, see `chances`.
        rule: what happens to finished beams (see `xlan.decoding.beam`).
        max_length: most ids, the end included.
        required: each entry has to appear; an entry is a choice of phrases, a phrase a sequence of ids.
        bad_endings: ids a caption does not end on, not even when it is cut off.
        forbidden: ids that never appear.
        attention: also return `Decoded.spatial` and, where the model has one, `Decoded.channel`.
        runners_up: also return this many other ids for each place of the first caption.
        never_named: ids that are never runners-up.
    """

    beams: int = 3
    samples: int = 0
    temperature: float = 1.0
    top_p: float | None = None
    seed: int = 0
    rule: Rule = "released"
    max_length: int = 20
    required: tuple[tuple[tuple[int, ...], ...], ...] = ()
    bad_endings: frozenset[int] = frozenset()
    forbidden: frozenset[int] = frozenset()
    attention: bool = False
    runners_up: int = 0
    never_named: frozenset[int] = frozenset()

    def chances(self) -> Floats:
        """`[samples, max_length]` numbers from 0 to below 1, one for each draw: the same for every image and engine.

        At each step a draw takes the first id at which the cumulative probability exceeds its number. What is drawn for
        an image therefore depends on the seed and the image, not on the batch it came in.
        """
        return np.random.default_rng(self.seed).random((self.samples, self.max_length), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Decoded:
    """One caption, in ids.

    Attributes:
        ids: what was emitted, in order, without `bos`; the last one is `eos` when `finished`.
        log_probs: natural log-probability of each of `ids`.
        total: their sum.
        finished: the model ended the sentence; False when it was cut off at the maximum length.
        spatial: `[T, N]` attention over the image's own N regions for each of the T `ids`; None unless asked for.
        channel: `[T, C]` channel gate likewise; None unless asked for, or where the model has none.
        runners_up: for each of `ids`, other ids and their log-probabilities, likelier first; empty unless asked for.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    total: float
    finished: bool
    spatial: Floats | None = None
    channel: Floats | None = None
    runners_up: tuple[tuple[tuple[int, float], ...], ...] = ()

    @property
    def words(self) -> tuple[int, ...]:
        """`ids` without the final `eos`."""
        return self.ids[:-1] if self.finished else self.ids


class Engine(Protocol):
    """A captioning model, wherever it runs. All methods may be called from several threads at once."""

    @property
    def name(self) -> str:
        """`torch` or `onnx`."""

    @property
    def feature_dim(self) -> int:
        """Width D of the region features it takes."""

    @property
    def vocab_size(self) -> int:
        """Number of ids V."""

    @property
    def description(self) -> Mapping[str, Any]:
        """As JSON values: `engine`, `device`, `architecture` (its kind and numbers) and `parameters`, a count."""

    def decode(self, regions: Sequence[Regions], request: SearchRequest) -> list[list[Decoded]]:
        """Captions of each image, at least one: beams from best to worst, or samples as drawn.

        Args:
            regions: B images, each with at least one region; features `[N, D]`, N may differ.
            request: how to look for the words.

        Raises:
            ShapeError: the features are not `[N, D]`.
            DecodingError: no sentence satisfies the request.
        """

    def score(self, regions: Sequence[Regions], sentences: Sequence[Sequence[Sequence[int]]]) -> list[list[Floats]]:
        """Log-probabilities of given sentences (teacher forcing).

        Args:
            regions: B images, as for `decode`.
            sentences: for each image any number of sentences, each the ids of its words without start and end.

        Returns:
            For each image and sentence `[words + 1]` natural log-probabilities: of each word and of the end.
        """
