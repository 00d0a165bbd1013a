"""Sentences that grow one word at a time without competing: what greedy decoding and sampling keep."""

from __future__ import annotations

import torch
from torch import Tensor

from xlan.decoding.arguments import SearchArguments
from xlan.decoding.controls import Prefix
from xlan.decoding.result import DecodingResult, sum_in_order
from xlan.decoding.step import IMPOSSIBLE
from xlan.required import not_a_number
from xlan.types import StepTrace


class Sentences:
    """B × K sentences, of which only the unfinished are still computed.

    Args:
        arguments: the checked arguments of the search.
        images: number B of images.
        per_image: number K of sentences per image.
        device: where the tensors live.
    """

    def __init__(self, arguments: SearchArguments, *, images: int, per_image: int, device: torch.device) -> None:
        self._arguments = arguments
        self._per_image = per_image
        total = images * per_image
        self._tokens = torch.full((total, arguments.max_length), arguments.special.pad, device=device)
        self._lengths = torch.zeros(total, dtype=torch.int64, device=device)
        self._finished = torch.zeros(total, dtype=torch.bool, device=device)
        self._log_probs: list[Tensor] = []
        self._places: list[Tensor] = []
        self._traces: list[StepTrace] = []
        self.alive = torch.arange(total, device=device)
        """`[R]` places of the unfinished sentences, in ascending order: row r of the state is place `alive[r]`."""

    @property
    def step(self) -> int:
        """Number of words every unfinished sentence has."""
        return len(self._places)

    def last_tokens(self) -> Tensor:
        """What to feed next: `[R]`."""
        if self.step == 0:
            return torch.full_like(self.alive, self._arguments.special.bos)
        return self._tokens[self.alive, self.step - 1]

    def prefix(self) -> Prefix:
        """What the unfinished sentences said so far."""
        return self._arguments.prefix(self._tokens[self.alive, : self.step], self.alive // self._per_image)

    def append(self, words: Tensor, log_probs: Tensor, trace: StepTrace | None) -> Tensor | None:
        """Add a word to every unfinished sentence.

        Args:
            words: `[R]` ids.
            log_probs: `[R]` their log-probabilities; they may carry gradients.
            trace: attention of these rows.

        Returns:
            Indices into the R rows of those that continue (`[R']`), or None when all do.
        """
        places = self.alive
        self._tokens[places, self.step] = words
        self._lengths[places] = self.step + 1
        self._places.append(places)
        self._log_probs.append(log_probs)
        if trace is not None:
            self._traces.append(trace)
        ended = words == self._arguments.special.eos
        self._finished[places] = ended
        if not bool(ended.any()):
            return None
        kept = (~ended).nonzero().squeeze(1)
        self.alive = places[kept]
        return kept

    def refuse_impossible(self, best: Tensor) -> None:
        """Raise when an unfinished sentence has no possible next word.

        Args:
            best: `[R]` largest log-probability of each row after the controls.
        """
        if bool((best > IMPOSSIBLE).all()):
            return
        lost = (~(best > IMPOSSIBLE)).nonzero().squeeze(1)
        images = sorted(set((self.alive[lost] // self._per_image).tolist()))
        raise not_a_number(images) if bool(best.isnan().any()) else self._arguments.dead_end(images)

    def result(self) -> DecodingResult:
        """The sentences as tensors."""
        length = self.step
        places = torch.cat(self._places)
        steps = torch.repeat_interleave(
            torch.arange(length, device=places.device),
            torch.tensor([len(some) for some in self._places], device=places.device),
        )
        values = torch.cat(self._log_probs)
        log_probs = values.new_zeros(self._tokens.shape[0], length).index_put((places, steps), values)
        spatial, channel = self._gather_traces()

        def shaped(tensor: Tensor) -> Tensor:
            return tensor.view(-1, self._per_image, *tensor.shape[1:])

        return DecodingResult(
            ids=shaped(self._tokens[:, :length]),
            lengths=shaped(self._lengths),
            log_probs=shaped(log_probs),
            scores=shaped(sum_in_order(log_probs)),
            finished=shaped(self._finished),
            spatial=None if spatial is None else shaped(spatial),
            channel=None if channel is None else shaped(channel),
        )

    def _gather_traces(self) -> tuple[Tensor | None, Tensor | None]:
        if not self._traces:
            return None, None

        def gathered(parts: list[Tensor]) -> Tensor:
            out = parts[0].new_zeros(self._tokens.shape[0], self.step, parts[0].shape[1])
            for step, (places, part) in enumerate(zip(self._places, parts, strict=True)):
                out[places, step] = part.detach()
            return out

        gates = [trace.channel for trace in self._traces if trace.channel is not None]
        return gathered([trace.spatial for trace in self._traces]), gathered(gates) if gates else None
