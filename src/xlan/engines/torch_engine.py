"""The engine on PyTorch: model.encode → decoding (beam search or draws over model.step) → numpy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xlan.decoding import (
    Control,
    DecodingResult,
    Forbid,
    MinLength,
    NoBadEnding,
    Require,
    SuppressUnknown,
    alternatives,
    beam_search,
    sample,
)
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
from xlan.errors import ModelError, ShapeError
from xlan.model.captioner import CaptionModel
from xlan.model.interface import Encoded, check_captions
from xlan.model.rows import row_groups
from xlan.model.spec import spec_to_dict
from xlan.types import Regions, SpecialIds
from xlan.vision.padding import pad_boxes, pad_regions


class TorchEngine:
    """A `CaptionModel` as an engine (see `xlan.engines.interface.Engine`).

    Args:
        model: what `build_model` made or `from_pretrained` read; it is put in evaluation mode.
        special: the special ids of its vocabulary.
    """

    name = "torch"

    def __init__(self, model: CaptionModel, special: SpecialIds) -> None:
        self.model = model.eval()
        self.feature_dim, self.vocab_size = model.feature_dim, model.vocab_size
        self.special = special

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.model.parameters()).device

    @property
    def description(self) -> dict[str, Any]:
        """Engine, device, architecture and number of parameters, as JSON values."""
        return {
            "engine": self.name,
            "device": str(self.device),
            "architecture": spec_to_dict(self.model.spec),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
        }

    def encode(self, regions: Sequence[Regions]) -> list[Encoding]:
        """What the encoder knows of each image, see `Engine.encode`."""
        if not regions:
            return []
        with torch.inference_mode():
            encoded = self._encoded(regions)
        summary, known = (tensor.float().cpu().numpy() for tensor in (encoded.summary, encoded.regions))
        return [
            Encoding({"summary": summary[row], "regions": known[row, : len(image)]}, len(image))
            for row, image in enumerate(regions)
        ]

    def decode(
        self, images: Images, request: SearchRequest, worths: Sequence[Worth | None] | None = None
    ) -> list[list[Decoded]]:
        """Captions of each image, see `Engine.decode`."""
        if not images:
            return []
        with torch.inference_mode():
            encoded = self._encoded(images)
            found = self._search(encoded, request)
            captions = _records(found, [len(image) for image in images])
            orders = [request.order(*pair) for pair in zip(captions, worths or [None] * len(captions), strict=True)]
            first = torch.tensor([order[0] for order in orders], device=found.ids.device)
            chosen = found.ids[torch.arange(len(orders), device=found.ids.device), first]
            others = self._runners_up(encoded, chosen, request)
        captions = [[image[place] for place in order] for image, order in zip(captions, orders, strict=True)]
        for image, places in zip(captions, others, strict=True):
            image[0] = replace(image[0], runners_up=tuple(places[: len(image[0].ids)]))
        return captions

    def score(self, images: Images, sentences: Sequence[Sequence[Sequence[int]]]) -> list[list[Floats]]:
        """Log-probabilities of given sentences, see `Engine.score`."""
        return score_in_passes(images, sentences, self._score)

    def _inputs(self, regions: Sequence[Regions]) -> tuple[Tensor, Tensor, Tensor | None]:
        features, mask = pad_regions(regions, self.feature_dim)
        boxes = pad_boxes(regions).to(self.device) if self.model.wants_boxes else None
        return features.to(self.device, next(self.model.parameters()).dtype), mask.to(self.device), boxes

    def _encoded(self, images: Iterable[Regions | Encoding]) -> Encoded:
        regions, encodings = by_kind(images)
        if not encodings:
            return self.model.encode(*self._inputs(regions))
        if any(set(one.arrays) != {"summary", "regions"} for one in encodings):
            raise ShapeError("expected encodings that this engine made with this model, got others")
        dtype = next(self.model.parameters()).dtype
        known = [torch.from_numpy(np.array(one.arrays["regions"])) for one in encodings]
        summary = torch.from_numpy(np.stack([one.arrays["summary"] for one in encodings]))
        counts = torch.tensor([len(one) for one in encodings])
        mask = torch.arange(int(counts.max())) < counts[:, None]
        return Encoded(
            summary.to(self.device, dtype),
            torch.nn.utils.rnn.pad_sequence(known, batch_first=True).to(self.device, dtype),
            None if bool(mask.all()) else mask.to(self.device),
        )

    def _search(self, encoded: Encoded, request: SearchRequest) -> DecodingResult:
        controls = _controls(request)
        if not request.samples:
            return beam_search(
                self.model,
                encoded,
                self.special,
                width=request.beams,
                rule=request.rule,
                max_length=request.max_length,
                controls=controls,
                trace=request.attention,
            )
        return sample(
            self.model,
            encoded,
            self.special,
            n=request.samples,
            temperature=request.temperature,
            top_p=request.top_p,
            uniform=torch.from_numpy(request.chances()).repeat(len(encoded), 1).to(self.device),
            max_length=request.max_length,
            controls=controls,
            trace=request.attention,
        )

    def _runners_up(
        self, encoded: Encoded, captions: Tensor, request: SearchRequest
    ) -> list[list[tuple[tuple[int, float], ...]]]:
        """Per image, per place of its caption `[B, T]`: other ids and their log-probabilities."""
        count = min(request.runners_up, self.vocab_size - len(request.never_named) - 1)
        if count < 1:
            return [[] for _ in range(len(encoded))]
        ids, log_probs = alternatives(
            self.model, encoded, self.special, captions, count=count, without=request.never_named
        )
        return [
            [tuple(zip(*place, strict=True)) for place in zip(*image, strict=True)]
            for image in zip(ids.tolist(), log_probs.tolist(), strict=True)
        ]

    def _score(
        self, images: Sequence[Regions | Encoding], sentences: Sequence[Sequence[int]], owner: Ints
    ) -> list[Floats]:
        lengths = [len(ids) + 1 for ids in sentences]
        tokens = torch.full((len(sentences), max(lengths)), self.special.pad, dtype=torch.int64)
        for row, ids in enumerate(sentences):
            tokens[row, : lengths[row]] = torch.tensor([self.special.bos, *ids], dtype=torch.int64)
        targets = torch.tensor([i for ids in sentences for i in (*ids, self.special.eos)], dtype=torch.int64)
        with torch.inference_mode():
            device, encoded = self.device, self._encoded(images)
            rows, counts = torch.from_numpy(owner).to(device), torch.tensor(lengths, device=device)
            check_captions(tokens, counts, rows, images=len(images), vocab_size=self.vocab_size)
            groups = row_groups(rows, len(sentences), len(images), device)
            logits = self.model.decoder(encoded, tokens.to(device), counts, groups, scheduled_sampling=0.0)
            chosen = torch.log_softmax(logits.float(), dim=1).gather(1, targets.to(device).unsqueeze(1)).squeeze(1)
        ends = itertools.accumulate(lengths)
        return [part.astype(np.float32) for part in np.split(chosen.cpu().numpy(), list(ends)[:-1])]


def _controls(request: SearchRequest) -> list[Control]:
    controls: list[Control] = [SuppressUnknown(), NoBadEnding(request.bad_endings), MinLength(1)]
    if request.forbidden:
        controls.append(Forbid(sorted(request.forbidden)))
    if request.required:
        controls.append(Require(request.required))
    return controls


def _records(found: DecodingResult, regions: Sequence[int]) -> list[list[Decoded]]:
    """A search's tensors as records, each image's attention over its own number of regions."""
    return [
        [
            Decoded(
                one.ids,
                one.log_probs,
                one.total,
                one.finished,
                None if one.spatial is None else one.spatial[:, :count].float().cpu().numpy(),
                None if one.channel is None else one.channel.float().cpu().numpy(),
            )
            for one in image
        ]
        for image, count in zip(found.hypotheses(), regions, strict=True)
    ]


def torch_device(name: str | torch.device) -> torch.device:
    """The device of that name.

    Raises:
        ModelError: no such device, or this computer does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ModelError(f"device {str(name)!r} cannot be used here ({reason}); use cpu") from None
    return device


# A forked child inherits torch's thread pool without its threads and would wait for them forever: it computes alone.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
