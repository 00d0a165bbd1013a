"""The engine on onnxruntime: the encoder's graph once, the decoder's graph for every word, search over numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xlan.engines.interface import Decoded, Floats, SearchRequest
from xlan.engines.numpy_search import Ints, runners_up, score, search
from xlan.engines.onnx_session import Arrays, OnnxSession, zeros
from xlan.errors import ModelError, ShapeError
from xlan.export.borders import MEMORY, NEXT, ROWS, STATE, WORDS
from xlan.types import Regions, SpecialIds
from xlan.vision.regions import pad_arrays

# Images leave the memory when at least this share of them has no row left: each time costs one copy.
SHRINK_AT = 0.25
# Sentences per pass of `score`.
_SENTENCES_PER_PASS = 256


@dataclass(frozen=True)
class OnnxRows:
    """R sentences about B images.

    Attributes:
        memory: what the encoder knows of the images, `[B, …]` each.
        state: what the decoder remembers of the sentences, `[R, …]` each.
        owner: `[R]` image of each row, ascending.
        images: B.
        spatial: `[R, N]` attention of the step that made these rows; None where the model does not look.
        channel: `[R, C]` channel gate likewise; None where the model has none.
    """

    memory: Arrays
    state: Arrays
    owner: Ints
    images: int
    spatial: Floats | None = None
    channel: Floats | None = None


class OnnxModel:
    """Encoder and decoder as sessions, to be stepped; their borders are those of `xlan.export.borders`.

    Raises:
        ModelError: the graphs are something else.
    """

    def __init__(self, encoder: OnnxSession, decoder: OnnxSession) -> None:
        self._encoder, self._decoder = encoder, decoder
        memory = {name for name in encoder.outputs if name.startswith(MEMORY)}
        wanted = {name for name in decoder.inputs if name.startswith(MEMORY)}
        self._states = {name: shape for name, shape in decoder.inputs.items() if name.startswith(STATE)}
        given = {STATE + name.removeprefix(NEXT) for name in decoder.outputs if name.startswith(NEXT)}
        fits = set(encoder.inputs) == {"features", "mask"} and wanted <= memory and given == set(self._states)
        if not fits or "tokens" not in decoder.inputs or "log_probs" not in decoder.outputs:
            raise ModelError("these graphs are not the encoder and decoder of a captioning model")
        self.feature_dim = _fixed(encoder.inputs["features"][-1])
        self.vocab_size = _fixed(decoder.outputs["log_probs"][-1])
        self._wanted = wanted

    def encode(self, features: Floats, mask: np.ndarray) -> Arrays:
        """Region features `[B, N, D]` with mask `[B, N]` → memory."""
        found = self._encoder.run({"features": features, "mask": mask})
        return {name: value for name, value in found.items() if name in self._wanted}

    def start(self, memory: Arrays, owner: Ints, images: int) -> OnnxRows:
        """A fresh row for each of `owner`, without a word."""
        sizes = {ROWS: len(owner), WORDS: 0}
        return OnnxRows(memory, {name: zeros(shape, sizes) for name, shape in self._states.items()}, owner, images)

    def select(self, rows: OnnxRows, index: Ints) -> OnnxRows:
        """Rows `index`; images without a row are dropped once there are enough of them."""
        owner, memory, images = rows.owner[index], rows.memory, rows.images
        kept = np.unique(owner)
        if len(kept) <= (1 - SHRINK_AT) * images:
            memory = {name: value[kept] for name, value in memory.items()}
            owner, images = np.searchsorted(kept, owner), len(kept)
        return OnnxRows(memory, {name: value[index] for name, value in rows.state.items()}, owner, images)

    def step(self, tokens: Ints, rows: OnnxRows) -> tuple[Floats, OnnxRows]:
        """Feed one id per row; log-probabilities `[R, V]` and the new rows."""
        places = _places(rows.owner, rows.images)
        inputs = {"tokens": tokens, **rows.state}
        if places is not None:  # the graph wants as many rows of every image: fill up with any
            filled = np.zeros(places.size, np.int64)
            filled[places.slots] = np.arange(len(tokens))
            inputs = {name: value[filled] for name, value in inputs.items()}
        found = self._decoder.run({**rows.memory, **inputs})
        if places is not None:
            found = {name: value[places.slots] for name, value in found.items()}
        state = {STATE + name.removeprefix(NEXT): value for name, value in found.items() if name.startswith(NEXT)}
        after = replace(rows, state=state, spatial=found.get("spatial"), channel=found.get("channel"))
        return found["log_probs"], after


@dataclass(frozen=True)
class _Places:
    """Where rows of unequal numbers per image go in a grid of equal ones."""

    size: int
    slots: Ints


def _places(owner: Ints, images: int) -> _Places | None:
    counts = np.bincount(owner, minlength=images)
    width = int(counts.max())
    if images * width == len(owner):
        return None
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _Places(images * width, owner * width + rank)


class OnnxEngine:
    """A captioning model on onnxruntime (see `xlan.engines.interface.Engine`).

    Args:
        model: its encoder and decoder.
        special: the special ids of its vocabulary.
        about: what to add to `description`: the architecture, the precision, the number of parameters.
    """

    name = "onnx"

    def __init__(self, model: OnnxModel, special: SpecialIds, about: Mapping[str, Any]) -> None:
        self.model = model
        self.special = special
        self._about = dict(about)

    @property
    def feature_dim(self) -> int:
        """Width of the region features it takes."""
        return self.model.feature_dim

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.model.vocab_size

    @property
    def description(self) -> dict[str, Any]:
        """Engine, device, architecture and number of parameters, as JSON values."""
        return {"engine": self.name, "device": "cpu", **self._about}

    def decode(self, regions: Sequence[Regions], request: SearchRequest) -> list[list[Decoded]]:
        """Captions of each image, see `Engine.decode`."""
        if not regions:
            return []
        fresh = self._fresh(regions, np.arange(len(regions)))
        found = search(self.model, fresh, len(regions), self.special, request)
        others = runners_up(self.model, fresh, self.special, [image[0] for image in found], request)
        for image, places in zip(found, others, strict=True):
            image[0] = replace(image[0], runners_up=places)
        return [
            [one if one.spatial is None else replace(one, spatial=one.spatial[:, : len(own)]) for one in image]
            for image, own in zip(found, regions, strict=True)
        ]

    def score(self, regions: Sequence[Regions], sentences: Sequence[Sequence[Sequence[int]]]) -> list[list[Floats]]:
        """Log-probabilities of given sentences, see `Engine.score`."""
        if len(sentences) != len(regions):
            raise ShapeError(f"expected sentences for each of {len(regions)} images, got {len(sentences)}")
        pairs = [(image, ids) for image, several in enumerate(sentences) for ids in several]
        result: list[list[Floats]] = [[] for _ in regions]
        for start in range(0, len(pairs), _SENTENCES_PER_PASS):
            part = pairs[start : start + _SENTENCES_PER_PASS]
            images, owner = np.unique([image for image, _ in part], return_inverse=True)
            fresh = self._fresh([regions[image] for image in images], owner)
            for (image, _), values in zip(
                part, score(self.model, fresh, self.special, [ids for _, ids in part]), strict=True
            ):
                result[image].append(values)
        return result

    def _fresh(self, regions: Sequence[Regions], owner: Ints) -> OnnxRows:
        features, mask = pad_arrays(regions, self.feature_dim)
        return self.model.start(self.model.encode(features, mask), owner, len(regions))


def _fixed(size: int | str) -> int:
    if not isinstance(size, int):
        raise ModelError("these graphs are not the encoder and decoder of a captioning model")
    return size
