"""Sentences from a model that is stepped with numpy arrays: beam search, draws, runners-up, scores.

The rules are those of `xlan.decoding.beam` and `xlan.decoding.sample`, and tests hold the two together. The model
computes all images at once; what to keep is decided image by image, on the handful of hypotheses that each image has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from xlan.engines.interface import Decoded, Floats, Ints, SearchRequest
from xlan.errors import DecodingError
from xlan.required import RequiredWords, no_sentence, not_a_number, refuse_forbidden
from xlan.types import SpecialIds

NEVER = -np.inf


class Rows(Protocol):
    """What a model remembers of R sentences, and where it looked in the step before; a value, never changed."""

    @property
    def spatial(self) -> Floats | None:
        """`[R, N]` attention over regions in the step that made these rows."""

    @property
    def channel(self) -> Floats | None:
        """`[R, C]` channel gate likewise; None where the model has none."""


RowsT = TypeVar("RowsT", bound=Rows)


class Stepper(Protocol[RowsT]):
    """A model that can be asked for the next word of every row."""

    @property
    def vocab_size(self) -> int:
        """Number of ids V."""

    def step(self, tokens: Ints, rows: RowsT) -> tuple[Floats, RowsT]:
        """Feed `tokens` `[R]`; returns log-probabilities `[R, V]`, which may be written into, and the new rows."""

    def select(self, rows: RowsT, index: Ints) -> RowsT:
        """Rows `index` (`[R']`) in that order, those of an image together and images in order; one may repeat."""


class Controls:
    """What a sentence may and may not say.

    Args:
        request: what was asked for.
        special: ids with a meaning of their own.
        vocab_size: number of ids.

    Raises:
        DecodingError: something no sentence can satisfy.
    """

    def __init__(self, request: SearchRequest, special: SpecialIds, vocab_size: int) -> None:
        if request.max_length < 1:
            raise DecodingError(f"maximum length: expected at least 1 step, got {request.max_length}")
        if not 0 <= max(special.bos, special.eos) < vocab_size:
            raise DecodingError(f"the special ids are outside the model's vocabulary (0 to {vocab_size - 1})")
        self._special = special
        self._max_length = request.max_length
        unknown = {special.unk} - {special.eos}
        self._forbidden = sorted(request.forbidden | unknown)
        self._bad_endings = np.array(sorted(request.bad_endings), np.int64)
        self.required: RequiredWords | None = None
        if request.required:
            refuse_forbidden(request.required, request.forbidden)
            self.required = RequiredWords(request.required, bad_endings=request.bad_endings)
            self.required.check_room(request.max_length)
            self._needed = np.array(self.required.still_needed)

    def apply(self, log_probs: Floats, last: Ints, said: Ints, step: int) -> Floats:
        """Forbid words, in place.

        Args:
            log_probs: `[R, V]`.
            last: `[R]` the word before, without a meaning in step 0.
            said: `[R]` state of the required words.
            step: words so far.
        """
        end, words_left = self._special.eos, self._max_length - step
        log_probs[:, self._forbidden] = NEVER
        if step == 0:
            log_probs[:, end] = NEVER
        else:
            log_probs[np.isin(last, self._bad_endings), end] = NEVER
        if words_left == 1:
            log_probs[:, self._bad_endings] = NEVER
        if self.required is not None:
            missing = said != self.required.states - 1
            refused = (self._needed[said] > words_left - 1) & missing[:, None]  # columns as in `successors`
            words = list(self.required.words)
            named = np.where(refused[:, 1:], NEVER, log_probs[:, words])
            log_probs[missing, end] = NEVER
            log_probs[refused[:, 0]] = NEVER
            log_probs[:, words] = named
        return log_probs


@dataclass(frozen=True, slots=True)
class _Beam:
    """A hypothesis: what it said, the rows that said it, its row now and its state of the required words."""

    row: int
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0
    rows: tuple[int, ...] = ()
    said: int = 0
    finished: bool = False


class _Search(Generic[RowsT]):
    """What beam search and draws share: the model, the controls and the attention of every step."""

    def __init__(self, model: Stepper[RowsT], special: SpecialIds, request: SearchRequest) -> None:
        self.model = model
        self.special = special
        self.request = request
        self.controls = Controls(request, special, model.vocab_size)
        self._spatial: list[Floats] = []
        self._channel: list[Floats] = []

    def step(self, tokens: Ints, rows: RowsT) -> tuple[Floats, RowsT]:
        """One step; attention is kept when it is wanted."""
        log_probs, rows = self.model.step(tokens, rows)
        if self.request.attention and rows.spatial is not None:
            self._spatial.append(rows.spatial)
            if rows.channel is not None:
                self._channel.append(rows.channel)
        return log_probs, rows

    def record(self, ids: Sequence[int], log_probs: Sequence[float], rows: Sequence[int]) -> Decoded:
        """A sentence whose word t came from row `rows[t]` of step t."""

        def followed(steps: list[Floats]) -> Floats | None:
            return np.stack([part[row] for part, row in zip(steps, rows, strict=False)]) if steps else None

        total = float(np.sum(np.asarray(log_probs, np.float32), dtype=np.float64))
        finished = bool(ids) and ids[-1] == self.special.eos
        return Decoded(tuple(ids), tuple(log_probs), total, finished, followed(self._spatial), followed(self._channel))


def search(
    model: Stepper[RowsT], rows: RowsT, images: int, special: SpecialIds, request: SearchRequest
) -> list[list[Decoded]]:
    """Captions of each image, from fresh rows, one per image; see `Engine.decode`.

    Raises:
        DecodingError: no sentence satisfies the request, or the model returned NaN.
    """
    if request.samples:
        return _Draw(model, special, request).run(rows, images)
    return _BeamSearch(model, special, request).run(rows, images)


class _BeamSearch(_Search[RowsT]):
    """Beam search under both rules; a beam is kept for every state of the required words."""

    def run(self, rows: RowsT, images: int) -> list[list[Decoded]]:
        beams = {image: [_Beam(row=image)] for image in range(images)}
        pool: dict[int, list[_Beam]] = {image: [] for image in range(images)}  # finished ones, under the earlier rule
        found: dict[int, list[_Beam]] = {}
        tokens = np.full(images, self.special.bos, np.int64)
        for step in range(self.request.max_length):
            log_probs, rows = self.step(tokens, rows)
            beams = self._grow(beams, log_probs, step)
            last = step + 1 == self.request.max_length
            for image in list(beams):
                result = self._retire(image, beams, pool, last=last)
                if result is not None:
                    found[image] = result
                    del beams[image]
            if not beams:
                break
            kept = np.array([beam.row for some in beams.values() for beam in some if not beam.finished], np.int64)
            if not np.array_equal(kept, np.arange(len(log_probs))):
                rows = self.model.select(rows, kept)
            beams = self._renumbered(beams)
            tokens = np.array([b.ids[-1] for some in beams.values() for b in some if not b.finished], np.int64)
        lost = [image for image in range(images) if not found[image]]
        if lost:
            raise no_sentence(lost, self.request.max_length)
        return [[self.record(b.ids, b.log_probs, b.rows) for b in found[image]] for image in range(images)]

    def _grow(self, beams: dict[int, list[_Beam]], log_probs: Floats, step: int) -> dict[int, list[_Beam]]:
        """Add a word to every live beam and keep the best of each image and state."""
        live = [beam for some in beams.values() for beam in some if not beam.finished]
        last = np.array([beam.ids[-1] if beam.ids else -1 for beam in live], np.int64)
        said = np.array([beam.said for beam in live], np.int64)
        log_probs = self.controls.apply(log_probs, last, said, step)
        tokens, values, following = self._candidates(log_probs, said)
        if np.isnan(values).any():
            raise not_a_number([image for image, some in beams.items() if np.isnan(values[_rows_of(some)]).any()])
        totals = np.array([beam.total for beam in live], np.float32)
        worth = (totals[:, None] + values).tolist()
        words, each, states = tokens.tolist(), values.tolist(), following.tolist()
        grown: dict[int, list[_Beam]] = {}
        for image, some in beams.items():
            options: dict[int, list[tuple[float, _Beam, int]]] = {}  # by state: total, parent, column or -1
            for beam in some:
                if beam.finished:
                    options.setdefault(beam.said, []).append((beam.total, beam, -1))
                    continue
                for column, total in enumerate(worth[beam.row]):
                    if total > NEVER:
                        options.setdefault(states[beam.row][column], []).append((total, beam, column))
            chosen: list[_Beam] = []
            for state in sorted(options):
                # The sort keeps the order of equals: the lower beam first, then the likelier word, then the lower id.
                best = sorted(options[state], key=lambda option: -option[0])[: self.request.beams]
                for total, beam, column in best:
                    if column < 0:
                        chosen.append(beam)
                    else:
                        word = words[beam.row][column]
                        chosen.append(self._extended(beam, word, each[beam.row][column], total, state))
            grown[image] = chosen
        return grown

    def _extended(self, beam: _Beam, word: int, value: float, total: float, said: int) -> _Beam:
        return _Beam(
            row=beam.row,
            ids=(*beam.ids, word),
            log_probs=(*beam.log_probs, value),
            total=total,
            rows=(*beam.rows, beam.row),
            said=said,
            finished=word == self.special.eos,
        )

    def _candidates(self, log_probs: Floats, said: Ints) -> tuple[Ints, Floats, Ints]:
        """Words worth looking at, `[R, C]`, likeliest first: ids, log-probabilities, the state each leads to."""
        required, width = self.controls.required, self.request.beams
        if required is None:
            tokens, values = largest(log_probs, width)
            return tokens, values, np.zeros_like(tokens)
        # The best of the other words, and every word that brings a requirement forward.
        words = np.array(required.words, np.int64)
        named = log_probs[:, words]
        log_probs[:, words] = NEVER
        tokens, values = largest(log_probs, width)
        successors = np.array(required.successors)[said]  # [R, K + 1]
        following = np.concatenate([np.repeat(successors[:, :1], tokens.shape[1], axis=1), successors[:, 1:]], axis=1)
        tokens = np.concatenate([tokens, np.broadcast_to(words, named.shape)], axis=1)
        values = np.concatenate([values, named], axis=1)
        order = np.lexsort((tokens, -values), axis=1)
        return tuple(np.take_along_axis(part, order, axis=1) for part in (tokens, values, following))  # type: ignore[return-value]

    def _retire(
        self, image: int, beams: dict[int, list[_Beam]], pool: dict[int, list[_Beam]], *, last: bool
    ) -> list[_Beam] | None:
        """The result of an image when nothing can change it any more, else None; may empty beams into the pool."""
        goal = 0 if self.controls.required is None else self.controls.required.states - 1
        some, width = beams[image], self.request.beams
        ready = [beam for beam in some if beam.said == goal and (last or beam.finished)]
        if self.request.rule == "earlier":
            pool[image] = _best([*pool[image], *ready], width)
            ready = pool[image]
            some = beams[image] = [beam for beam in some if not beam.finished]
        live = [beam.total for beam in some if not beam.finished]
        if last or not live:
            return _best(ready, width)
        # A log-probability only ever lowers a total: what is live cannot overtake any more.
        settled = self.request.rule == "earlier" and len(ready) == width and ready[-1].total >= max(live)
        return ready if settled else None

    def _renumbered(self, beams: dict[int, list[_Beam]]) -> dict[int, list[_Beam]]:
        """Live beams with the rows they have after `select`."""
        numbers: Iterator[int] = iter(range(sum(map(len, beams.values()))))
        return {
            image: [beam if beam.finished else replace(beam, row=next(numbers)) for beam in some]
            for image, some in beams.items()
        }


def _best(beams: list[_Beam], width: int) -> list[_Beam]:
    return sorted(beams, key=lambda beam: -beam.total)[:width]


def _rows_of(beams: list[_Beam]) -> list[int]:
    return [beam.row for beam in beams if not beam.finished]


class _Draw(_Search[RowsT]):
    """Random captions, decided by `SearchRequest.chances`."""

    def run(self, rows: RowsT, images: int) -> list[list[Decoded]]:
        count = self.request.samples
        chances = np.tile(self.request.chances(), (images, 1))  # [B · n, T]
        ids: list[list[int]] = [[] for _ in range(images * count)]
        log_probs: list[list[float]] = [[] for _ in ids]
        came_from: list[list[int]] = [[] for _ in ids]
        alive = np.arange(len(ids))
        said = np.zeros(len(ids), np.int64)
        tokens = np.full(images, self.special.bos, np.int64)
        for step in range(self.request.max_length):
            answers, rows = self.step(tokens, rows)
            row_of = alive // count if step == 0 else np.arange(len(alive))  # one row per image in the first step
            if step == 0:
                answers, rows = answers[row_of], self.model.select(rows, row_of)
                tokens = tokens[row_of]
            allowed = self.controls.apply(answers.copy(), tokens, said, step)
            self._refuse_impossible(allowed, alive // count)
            words = draw(allowed / np.float32(self.request.temperature), self.request.top_p, chances[alive, step])
            for place, row, line, word in zip(alive.tolist(), row_of.tolist(), answers, words.tolist(), strict=True):
                ids[place].append(word)
                log_probs[place].append(float(line[word]))
                came_from[place].append(row)
            said = self._after(said, words)
            kept = (words != self.special.eos).nonzero()[0]
            alive, said, tokens = alive[kept], said[kept], words[kept]
            if not len(alive):
                break
            if len(kept) < len(words):
                rows = self.model.select(rows, kept)
        drawn = [self.record(*one) for one in zip(ids, log_probs, came_from, strict=True)]
        return [drawn[image * count : (image + 1) * count] for image in range(images)]

    def _after(self, said: Ints, words: Ints) -> Ints:
        """States of the required words after one word more."""
        required = self.controls.required
        if required is None:
            return said
        column = {word: i + 1 for i, word in enumerate(required.words)}
        table = required.successors
        return np.array(
            [table[s][column.get(w, 0)] for s, w in zip(said.tolist(), words.tolist(), strict=True)], np.int64
        )

    def _refuse_impossible(self, allowed: Floats, images: Ints) -> None:
        best = allowed.max(axis=1)
        if not (best > NEVER).all():
            lost = sorted(set(images[~(best > NEVER)].tolist()))
            raise not_a_number(lost) if np.isnan(best).any() else no_sentence(lost, self.request.max_length)


def draw(weights: Floats, top_p: float | None, chances: Floats) -> Ints:
    """One id for each row of `weights` (`[R, V]`, unnormalised log-probabilities), decided by `chances` `[R]`."""
    probs = np.exp(weights - weights.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    order = None
    if top_p is not None:
        order = np.argsort(-probs, axis=1, kind="stable")
        probs = np.take_along_axis(probs, order, axis=1)
        probs[np.cumsum(probs, axis=1) - probs >= top_p] = 0.0
    # The first id at which the cumulative probability exceeds the number given; never one of probability 0.
    reached = np.cumsum(probs, axis=1, dtype=np.float64)
    wanted = chances.astype(np.float64) * reached[:, -1]
    drawn = (reached <= wanted[:, None]).sum(axis=1)
    return drawn if order is None else np.take_along_axis(order, drawn[:, None], axis=1)[:, 0]


def largest(scores: Floats, count: int) -> tuple[Ints, Floats]:
    """The `count` largest of each row of `[R, V]`, which is written into: ids and values; of equals the lower id."""
    count = min(count, scores.shape[1])
    tokens = np.empty((len(scores), count), np.int64)
    values = np.empty((len(scores), count), scores.dtype)
    rows = np.arange(len(scores))
    for column in range(count):
        best = scores.argmax(axis=1)  # the first of equals
        tokens[:, column], values[:, column] = best, scores[rows, best]
        scores[rows, best] = NEVER
    return tokens, values


def runners_up(
    model: Stepper[RowsT], rows: RowsT, special: SpecialIds, captions: Sequence[Decoded], request: SearchRequest
) -> list[tuple[tuple[tuple[int, float], ...], ...]]:
    """For each image's caption, from fresh rows: at each of its places other ids and their log-probabilities."""
    count = min(request.runners_up, model.vocab_size - len(request.never_named) - 1)
    found: list[list[tuple[tuple[int, float], ...]]] = [[] for _ in captions]
    if count < 1:
        return [()] * len(captions)
    alive = list(range(len(captions)))
    tokens = np.full(len(captions), special.bos, np.int64)
    for step in range(max(len(caption.ids) for caption in captions)):
        going = [place for place, image in enumerate(alive) if len(captions[image].ids) > step]
        if len(going) < len(alive):
            alive, tokens, rows = [alive[place] for place in going], tokens[going], model.select(rows, np.array(going))
        log_probs, rows = model.step(tokens, rows)
        tokens = np.array([captions[image].ids[step] for image in alive], np.int64)
        log_probs[:, sorted(request.never_named)] = NEVER
        log_probs[np.arange(len(alive)), tokens] = NEVER
        ids, values = largest(log_probs, count)
        for image, names, numbers in zip(alive, ids.tolist(), values.tolist(), strict=True):
            found[image].append(tuple(zip(names, numbers, strict=True)))
    return [tuple(places) for places in found]


def score(model: Stepper[RowsT], rows: RowsT, special: SpecialIds, sentences: Sequence[Sequence[int]]) -> list[Floats]:
    """Log-probabilities of sentences and of their ends, from fresh rows, one per sentence."""
    wanted = [(*ids, special.eos) for ids in sentences]
    found: list[list[float]] = [[] for _ in sentences]
    alive = list(range(len(sentences)))
    tokens = np.full(len(sentences), special.bos, np.int64)
    step = 0
    while alive:
        log_probs, rows = model.step(tokens, rows)
        tokens = np.array([wanted[place][step] for place in alive], np.int64)
        for place, value in zip(alive, log_probs[np.arange(len(alive)), tokens].tolist(), strict=True):
            found[place].append(value)
        step += 1
        going = [row for row, place in enumerate(alive) if len(wanted[place]) > step]
        if going and len(going) < len(alive):
            rows = model.select(rows, np.array(going))
        alive, tokens = [alive[row] for row in going], tokens[going]
    return [np.array(values, np.float32) for values in found]
