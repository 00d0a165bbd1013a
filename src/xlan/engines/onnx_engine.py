"""The engine on onnxruntime: the encoder's graph once, the decoder's graph for every word, search over numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xlan.engines.interface import (
    Decoded,
    Encoding,
    Floats,
    Images,
    Ints,
    SearchRequest,
    Worth,
    by_kind,
    score_in_passes,
)
from xlan.engines.numpy_search import runners_up, score, search
from xlan.engines.onnx_session import Array, Arrays, OnnxSession, zeros
from xlan.errors import ModelError, ShapeError
from xlan.export.borders import MEMORY, NEXT, REGIONS, ROWS, STATE, WORDS
from xlan.types import Regions, SpecialIds
from xlan.vision.regions import pad_arrays

# Images leave the memory when at least this share of them has no row left: each time costs one copy.
SHRINK_AT = 0.25
# Of the memory, what follows from the number of regions alone (see `xlan.export.borders.encoder_inputs`).
_BIAS, _MEAN = f"{MEMORY}bias", f"{MEMORY}mean"


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
        # Which axis of one image's memory counts its regions; None where there is none.
        self._axes = {
            name: encoder.outputs[name].index(REGIONS) - 1 if REGIONS in encoder.outputs[name] else None
            for name in sorted(wanted - {_BIAS, _MEAN})
        }

    def encode(self, features: Floats, mask: np.ndarray) -> Arrays:
        """Region features `[B, N, D]` with mask `[B, N]` → memory."""
        found = self._encoder.run({"features": features, "mask": mask})
        return {name: value for name, value in found.items() if name in self._wanted}

    def split(self, memory: Arrays, counts: Sequence[int]) -> list[Encoding]:
        """The memory of B images as that of each one, without padding."""
        return [
            Encoding(
                {
                    name: memory[name][row] if axis is None else _first(memory[name][row], axis, count)
                    for name, axis in self._axes.items()
                },
                count,
            )
            for row, count in enumerate(counts)
        ]

    def join(self, encodings: Sequence[Encoding]) -> Arrays:
        """What `split` gave, as the memory of a batch again.

        Raises:
            ShapeError: another model or engine made them.
        """
        counts = np.array([len(one) for one in encodings])
        longest = int(counts.max())
        memory: Arrays = {}
        for name, axis in self._axes.items():
            arrays = [one.arrays.get(name) for one in encodings]
            shapes = {None if array is None else _without(array.shape, axis) for array in arrays}
            if len(shapes) != 1 or None in shapes or any(set(one.arrays) != set(self._axes) for one in encodings):
                raise ShapeError("expected encodings that this engine made with this model, got others")
            shape = list(arrays[0].shape)  # type: ignore[union-attr]
            if axis is not None:
                shape[axis] = longest
            joined = np.zeros((len(arrays), *shape), np.float32)
            for row, array in enumerate(arrays):
                _first(joined[row], axis, counts[row])[...] = array
            memory[name] = joined
        exists = np.arange(longest) < counts[:, None]
        if _BIAS in self._wanted:
            memory[_BIAS] = np.where(exists, 0, -np.inf).astype(np.float32)[:, None, None]
        if _MEAN in self._wanted:
            memory[_MEAN] = (exists / counts[:, None]).astype(np.float32)[:, None, None]
        return memory

    def start(self, memory: Arrays, owner: Ints, images: int) -> OnnxRows:
        """A fresh row for each of `owner`, without a word."""
        sizes = {ROWS: len(owner), WORDS: 0}
        return OnnxRows(memory, {name: zeros(shape, sizes) for name, shape in self._states.items()}, owner, images)

    def select(self, rows: OnnxRows, index: Ints) -> OnnxRows:
        """Rows `index`; images without a row are dropped once there are enough of them."""
        owner, memory, images = rows.owner[index], rows.memory, rows.images
        kept = owner[np.flatnonzero(np.diff(owner, prepend=-1))]  # each once, as they ascend
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


def _first(array: Array, axis: int | None, count: int) -> Array:
    """The first `count` along an axis, a view; everything where there is no axis."""
    return array if axis is None else array[(slice(None),) * axis + (slice(0, count),)]


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[:axis] + shape[axis + 1 :]


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
        self.feature_dim, self.vocab_size = model.feature_dim, model.vocab_size
        self.special = special
        self._about = dict(about)

    @property
    def description(self) -> dict[str, Any]:
        """Engine, device, architecture and number of parameters, as JSON values."""
        return {"engine": self.name, "device": "cpu", **self._about}

    def encode(self, regions: Sequence[Regions]) -> list[Encoding]:
        """What the encoder knows of each image, see `Engine.encode`."""
        if not regions:
            return []
        return self.model.split(self._memory(regions), [len(image) for image in regions])

    def decode(
        self, images: Images, request: SearchRequest, worths: Sequence[Worth | None] | None = None
    ) -> list[list[Decoded]]:
        """Captions of each image, see `Engine.decode`."""
        if not images:
            return []
        fresh = self.model.start(self._memory(images), np.arange(len(images)), len(images))
        found = [
            [image[place] for place in request.order(image, worth)]
            for image, worth in zip(
                search(self.model, fresh, len(images), self.special, request),
                worths or [None] * len(images),
                strict=True,
            )
        ]
        others = runners_up(self.model, fresh, self.special, [image[0] for image in found], request)
        for image, places in zip(found, others, strict=True):
            image[0] = replace(image[0], runners_up=places)
        return [
            [one if one.spatial is None else replace(one, spatial=one.spatial[:, :count]) for one in image]
            for image, count in zip(found, [len(image) for image in images], strict=True)
        ]

    def score(self, images: Images, sentences: Sequence[Sequence[Sequence[int]]]) -> list[list[Floats]]:
        """Log-probabilities of given sentences, see `Engine.score`."""
        return score_in_passes(images, sentences, self._score)

    def _score(
        self, images: Sequence[Regions | Encoding], sentences: Sequence[Sequence[int]], owner: Ints
    ) -> list[Floats]:
        fresh = self.model.start(self._memory(images), owner, len(images))
        return score(self.model, fresh, self.special, sentences)

    def _memory(self, images: Iterable[Regions | Encoding]) -> Arrays:
        regions, encodings = by_kind(images)
        return self.model.join(encodings) if encodings else self.model.encode(*pad_arrays(regions, self.feature_dim))


def _fixed(size: int | str) -> int:
    if not isinstance(size, int):
        raise ModelError("these graphs are not the encoder and decoder of a captioning model")
    return size
