"""What `Captioner` needs of an engine: regions and ids in, ids and log-probabilities out, all numpy.

An engine knows ids, never words, and nothing of pictures. Every engine gives the same answers, so `Captioner`, the
command line and the server do not know which one they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xlan.errors import ShapeError
from xlan.types import Regions, Rule

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

# Sentences per pass of `score`: the logits of this many take a few hundred megabytes at COCO's vocabulary.
_SENTENCES_PER_PASS = 256


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
        may_repeat: ids that a sentence may say twice, see `order`; None when it may say any twice.
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
    may_repeat: frozenset[int] | None = None

    def order(self, found: Sequence[Decoded], worth: Worth | None = None) -> list[int]:
        """In which order the sentences that a search found are given back.

        Those that say a word twice come last: a beam search likes to repeat what it is sure of ("a cat laying on top of
        a cat"). Among the rest, the likelier comes first, or what is likelier and names more of what the picture shows.

        Args:
            found: the sentences, the likeliest first.
            worth: what their words are worth for this picture; None for nothing.

        Returns:
            Their places.
        """
        places = list(range(len(found)))
        if self.samples:
            return places
        if worth is not None:
            places.sort(key=lambda place: -(found[place].total + worth.of(found[place].words)))
        return sorted(places, key=lambda place: self._repeats(found[place].words))

    def _repeats(self, ids: Sequence[int]) -> bool:
        counted = [i for i in ids if self.may_repeat is not None and i not in self.may_repeat]
        return len(set(counted)) < len(counted)

    def chances(self) -> Floats:
        """`[samples, max_length]` numbers from 0 to below 1, one for each draw: the same for every image and engine.

        At each step a draw takes the first id at which the cumulative probability exceeds its number. What is drawn for
        an image therefore depends on the seed and the image, not on the batch it came in.
        """
        return np.random.default_rng(self.seed).random((self.samples, self.max_length), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Worth:
    """What a picture itself says for the words of a sentence about it, besides their probability.

    Attributes:
        ids: `[V]` what each id adds to the log-probability of a sentence that has it.
        forms: `[V]` ids with the same number are forms of one word, which counts once.
    """

    ids: Floats
    forms: Ints

    def of(self, sentence: Sequence[int]) -> float:
        """What the words of a sentence are worth together."""
        return float(sum({int(self.forms[i]): float(self.ids[i]) for i in sentence}.values()))


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


@dataclass(frozen=True, eq=False)
class Encoding:
    """What an engine's encoder knows of one image. It may stand for the image's regions, which then need no encoder.

    Attributes:
        arrays: by name, float32. Which there are is up to the engine and the model: another engine cannot use them.
        regions: number of regions N of the image.
    """

    arrays: Mapping[str, Floats]
    regions: int

    def __len__(self) -> int:
        return self.regions


# Either all regions, or all encodings.
Images = Sequence[Regions] | Sequence[Encoding]


def by_kind(images: Iterable[Regions | Encoding]) -> tuple[list[Regions], list[Encoding]]:
    """Images as they are given: the regions of all of them and no encodings, or the other way round.

    Raises:
        ShapeError: there are both.
    """
    given = list(images)
    regions = [image for image in given if isinstance(image, Regions)]
    encodings = [image for image in given if isinstance(image, Encoding)]
    if regions and encodings:
        got = f"got {len(encodings)} encodings"
        raise ShapeError(f"expected regions or encodings for all {len(given)} images, {got}")
    return regions, encodings


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

    def encode(self, regions: Sequence[Regions]) -> list[Encoding]:
        """What the encoder knows of each image, to be kept and given to `decode` and `score` instead of its regions.

        Args:
            regions: B images, each with at least one region; features `[N, D]`, N may differ.

        Raises:
            ShapeError: the features are not `[N, D]`.
        """

    def decode(
        self, images: Images, request: SearchRequest, worths: Sequence[Worth | None] | None = None
    ) -> list[list[Decoded]]:
        """Captions of each image, at least one: beams from best to worst, or samples as drawn.

        Args:
            images: the regions of B images, as for `encode`, or what `encode` made of them.
            request: how to look for the words.
            worths: for each image, what else decides which sentence comes first, see `SearchRequest.order`.

        Raises:
            ShapeError: the features are not `[N, D]`.
            DecodingError: no sentence satisfies the request.
        """

    def score(self, images: Images, sentences: Sequence[Sequence[Sequence[int]]]) -> list[list[Floats]]:
        """Log-probabilities of given sentences (teacher forcing).

        Args:
            images: B images, as for `decode`.
            sentences: for each image any number of sentences, each the ids of its words without start and end.

        Returns:
            For each image and sentence `[words + 1]` natural log-probabilities: of each word and of the end.
        """


def score_in_passes(
    images: Images,
    sentences: Sequence[Sequence[Sequence[int]]],
    score: Callable[[Sequence[Regions | Encoding], Sequence[Sequence[int]], Ints], list[Floats]],
) -> list[list[Floats]]:
    """`Engine.score`, a limited number of sentences at a time.

    `score` gets some images, some sentences and, for each sentence, the place of its image among those.
    """
    if len(sentences) != len(images):
        raise ShapeError(f"expected sentences for each of {len(images)} images, got {len(sentences)}")
    pairs = [(image, ids) for image, several in enumerate(sentences) for ids in several]
    result: list[list[Floats]] = [[] for _ in images]
    for start in range(0, len(pairs), _SENTENCES_PER_PASS):
        part = pairs[start : start + _SENTENCES_PER_PASS]
        used, owner = np.unique([image for image, _ in part], return_inverse=True)
        scores = score([images[image] for image in used], [ids for _, ids in part], owner)
        for (image, _), values in zip(part, scores, strict=True):
            result[image].append(values)
    return result
