"""Toy models: what they say depends on the image and on every word so far, and can be computed again in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from xlan.types import SpecialIds, StepTrace


@dataclass(frozen=True)
class ToyState:
    """`key` `[R]` stands for the image and all words so far; `last` `[R]` is the word before the next."""

    key: Tensor
    last: Tensor
    wants_trace: bool
    trace: StepTrace | None = None

    @property
    def rows(self) -> int:
        return len(self.key)

    @property
    def device(self) -> torch.device:
        return self.key.device

    def select(self, index: Tensor) -> ToyState:
        assert index.dtype == torch.int64
        assert index.dim() == 1
        return ToyState(self.key[index], self.last[index], self.wants_trace)


def mixed(x: Tensor) -> Tensor:
    for factor in (-7046029254386353131, -4658895280553007687):
        x = (x ^ (x >> 29)) * factor
    return x ^ (x >> 32)


class ToyModel:
    """Images are numbers; `encoded` is a `[B]` int64 tensor of them."""

    regions, gates = 3, 2

    def __init__(self, vocab_size: int, *, dtype: torch.dtype = torch.float64) -> None:
        self.vocab_size = vocab_size
        self.dtype = dtype
        self.rows_asked: list[int] = []
        self.modes: list[bool] = []

    def encode(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        return features[:, 0, 0].long()

    def start(self, encoded: Tensor, *, trace: bool = False) -> ToyState:
        key = mixed(encoded.long() * 7919 + 17)
        return ToyState(key, torch.zeros_like(key), trace)

    def step(self, tokens: Tensor, state: ToyState) -> tuple[Tensor, ToyState]:
        assert tokens.shape == (state.rows,)
        self.rows_asked.append(state.rows)
        self.modes.append(torch.is_inference_mode_enabled())
        key = mixed(state.key * 31 + tokens + 1)
        state = replace(state, key=key, last=tokens, trace=self.look(key) if state.wants_trace else None)
        return self.logits(state).to(self.dtype).log_softmax(dim=1), state

    def look(self, key: Tensor) -> StepTrace:
        spatial = self.noise(key + 1, self.regions).softmax(dim=1)
        return StepTrace(spatial, self.noise(key + 2, self.gates))

    def noise(self, key: Tensor, size: int) -> Tensor:
        """Numbers in 0–1 that look random, `[R, size]`."""
        each = torch.arange(size, dtype=torch.int64) * 1000003
        return ((mixed(key.unsqueeze(1) + each) >> 11) & 0xFFFFF).double() / 0x100000

    def logits(self, state: ToyState) -> Tensor:
        raise NotImplementedError

    def replay(self, image: int, ids: Sequence[int], bos: int) -> tuple[list[float], list[StepTrace]]:
        """Log-probabilities and attention of a sentence, computed word by word."""
        state = self.start(torch.tensor([image]), trace=True)
        values, traces = [], []
        for token, word in zip([bos, *ids], ids, strict=False):
            log_probs, state = self.step(torch.tensor([token]), state)
            values.append(float(log_probs[0, word]))
            traces.append(state.trace)
        return values, traces


class RandomModel(ToyModel):
    """Log-probabilities that look random, from the image and the whole prefix.

    `levels`: logits are whole numbers below it, so that ties abound. `end`: added to the logit of `eos`.
    """

    def __init__(
        self, vocab_size: int = 6, *, seed: int = 0, levels: int = 0, end: float = 0.0, eos: int = 0, **kwargs
    ) -> None:
        super().__init__(vocab_size, **kwargs)
        self.seed, self.levels, self.end, self.eos = seed, levels, end, eos

    def logits(self, state: ToyState) -> Tensor:
        logits = self.noise(state.key + self.seed * 7919, self.vocab_size) * (self.levels or 4)
        if self.levels:
            logits = logits.floor()
        logits[:, self.eos] += self.end
        return logits


class TableModel(ToyModel):
    """A Markov chain: row i of a table has the probabilities of the words after word i."""

    def __init__(self, table: Sequence[Sequence[float]], **kwargs) -> None:
        super().__init__(len(table), **kwargs)
        self.table = torch.tensor(table, dtype=torch.float64)

    def logits(self, state: ToyState) -> Tensor:
        return self.table.log()[state.last]


class UniformModel(ToyModel):
    """Every word is as likely as any other: nothing but ties."""

    def logits(self, state: ToyState) -> Tensor:
        return torch.zeros(state.rows, self.vocab_size)


@pytest.fixture(scope="session")
def random_model() -> type[RandomModel]:
    return RandomModel


@pytest.fixture(scope="session")
def table_model() -> type[TableModel]:
    return TableModel


@pytest.fixture(scope="session")
def uniform_model() -> type[UniformModel]:
    return UniformModel


@pytest.fixture(scope="session")
def aliased() -> SpecialIds:
    """Ids as in the released checkpoints: one id is start, end and padding."""
    return SpecialIds(pad=0, bos=0, eos=0, unk=4)


@pytest.fixture(scope="session")
def apart() -> SpecialIds:
    """Ids as in new vocabularies."""
    return SpecialIds(pad=0, bos=1, eos=2, unk=3)


@pytest.fixture(scope="session")
def all_sentences() -> Callable[..., list[tuple[tuple[int, ...], float]]]:
    """Every sentence of at most `max_length` ids with its score, best first (equals in order of their ids)."""

    def enumerate_sentences(model, image: int, special: SpecialIds, max_length: int):
        found = []

        def grow(ids, total, state):
            token = ids[-1] if ids else special.bos
            log_probs, state = model.step(torch.tensor([token]), state)
            for word, value in enumerate(log_probs[0].tolist()):
                sentence = (*ids, word)
                if word == special.eos or len(sentence) == max_length:
                    found.append((sentence, total + value))
                else:
                    grow(sentence, total + value, state)

        grow((), 0.0, model.start(torch.tensor([image])))
        return sorted(found, key=lambda item: -item[1])

    return enumerate_sentences
