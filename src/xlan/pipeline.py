"""The whole library on one screen: a picture in, a sentence out.

    from xlan import Captioner
    captioner = Captioner.from_pretrained("model-directory")
    print(captioner.caption("photo.jpg").text)
    for name, result in captioner.caption_many((path.name, path) for path in folder.iterdir()): ...

image → vision (pixels → Regions) → model.encode → decoding (beam over model.step) → text (ids → words) → Caption
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch import Tensor

from xlan.ahead import map_ahead
from xlan.decoding import (
    Control,
    DecodingResult,
    Forbid,
    Hypothesis,
    MinLength,
    NoBadEnding,
    Require,
    Rule,
    SuppressUnknown,
    alternatives,
    beam_search,
    sample,
)
from xlan.errors import DecodingError, ImageError, ModelError
from xlan.model.captioner import CaptionModel
from xlan.model.interface import Encoded
from xlan.pretrained import Pretrained, from_pretrained
from xlan.text.endings import bad_ending_ids
from xlan.text.vocab import Vocabulary
from xlan.types import Caption, Regions, Word
from xlan.vision.familiar import Familiar
from xlan.vision.grid import GridExtractor
from xlan.vision.image import DEFAULT_LIMITS, ImageLimits, ImageSource, open_image
from xlan.vision.padding import pad_regions
from xlan.vision.regions import PreparedImage, RegionExtractor

SHIPPED = Path(__file__).parent / "models" / "default"


@dataclass(frozen=True)
class CaptionOptions:
    """How to look for the words.

    Attributes:
        beams: width of the beam search.
        samples: draw this many captions instead of searching; 0 searches.
        temperature: of the draw; below 1 is bolder.
        top_p: draw from the likeliest words that together have this probability; None for all.
        seed: of the draw; what is drawn for a picture depends on the seed and the picture, not on its neighbours.
        must: words that have to appear; `dog|dogs` means either.
        rule: what happens to finished beams (see `xlan.decoding.beam`).
        max_length: most words, the end included.
        attention: also return where the model looked for each word.
        runners_up: also return this many other words for each word of the first caption.
    """

    beams: int = 3
    samples: int = 0
    temperature: float = 1.0
    top_p: float | None = None
    seed: int = 0
    must: tuple[str, ...] = ()
    rule: Rule = "released"
    max_length: int = 20
    attention: bool = False
    runners_up: int = 0

    def __post_init__(self) -> None:
        if self.beams < 1 or self.samples < 0:
            raise DecodingError(f"expected at least 1 beam and 0 samples, got {self.beams} and {self.samples}")
        if self.runners_up < 0:
            raise DecodingError(f"expected 0 or more runners-up, got {self.runners_up}")


DEFAULT_OPTIONS = CaptionOptions()


class Captioner:
    """Captions pictures.

    Args:
        model: a captioning model.
        vocabulary: its words.
        extractor: makes regions of pictures, as wide as the model wants them; None for regions only.
        familiar: what its training pictures look like, so that others lower its confidence; None where unknown.
    """

    def __init__(
        self,
        model: CaptionModel,
        vocabulary: Vocabulary,
        extractor: RegionExtractor | None = None,
        familiar: Familiar | None = None,
    ) -> None:
        if extractor is not None and extractor.feature_dim != model.feature_dim:
            raise ModelError(
                f"the extractor makes features {extractor.feature_dim} wide, the model expects {model.feature_dim}"
            )
        if familiar is not None and familiar.examples.shape[1] != model.feature_dim:
            width = familiar.examples.shape[1]
            raise ModelError(f"familiar pictures have features {width} wide, the model expects {model.feature_dim}")
        self.model = model.eval()
        self.vocabulary = vocabulary
        self.extractor = extractor
        self.familiar = familiar

    @classmethod
    def from_pretrained(
        cls, directory: str | os.PathLike[str] | None = None, *, device: torch.device | str = "cpu"
    ) -> Captioner:
        """Load a model directory; without one, the model that ships with the package.

        Raises:
            ModelError: no such directory, or it is not one, or the package came without a model.
        """
        if directory is None and not SHIPPED.is_dir():
            raise ModelError("this version of xlan ships no trained model; give a model directory (--model DIR)")
        loaded: Pretrained = from_pretrained(SHIPPED if directory is None else directory, device=device)
        extractor = None if loaded.vision is None else GridExtractor.load(loaded.vision)
        familiar = None if loaded.familiar is None else Familiar.load(loaded.familiar)
        return cls(loaded.model, loaded.vocabulary, extractor, familiar)

    @overload
    def caption(self, images: ImageSource, options: CaptionOptions = ...) -> Caption: ...  # type: ignore[overload-overlap]

    @overload
    def caption(self, images: Sequence[ImageSource], options: CaptionOptions = ...) -> list[Caption]: ...

    def caption(
        self, images: ImageSource | Sequence[ImageSource], options: CaptionOptions = DEFAULT_OPTIONS
    ) -> Caption | list[Caption]:
        """Caption one picture, or a list of them as one batch: paths, bytes, open files, PIL images or arrays.

        Raises:
            ImageError: a picture cannot be used; the message says which and why.
        """
        if isinstance(images, list | tuple):
            return self.caption_prepared([self.prepare(image) for image in images], options)
        return self.caption_prepared([self.prepare(images)], options)[0]  # type: ignore[arg-type]

    def caption_many(
        self,
        pictures: Iterable[tuple[str, ImageSource]],
        options: CaptionOptions = DEFAULT_OPTIONS,
        *,
        batch: int = 16,
        threads: int = 2,
        limits: ImageLimits = DEFAULT_LIMITS,
    ) -> Iterator[tuple[str, Caption | ImageError]]:
        """Caption any number of pictures in order, memory flat: threads open them while the model is busy.

        Args:
            pictures: a name of yours and the picture, each.
            options: how to look for the words.
            batch: pictures per call of the model.
            threads: threads that open pictures.
            limits: what to refuse.

        Yields:
            The name, and the caption or what is wrong with the picture; the others go on.
        """

        def work(picture: tuple[str, ImageSource]) -> tuple[str, PreparedImage | ImageError]:
            name, image = picture
            try:
                return name, self.prepare(image, limits=limits, name=name)
            except ImageError as error:
                return name, error

        self.check(options)
        ready: list[tuple[str, PreparedImage | ImageError]] = []
        for item in map_ahead(work, pictures, threads=threads, ahead=2 * batch):
            ready.append(item)
            if len(ready) == batch:
                yield from self._caption_ready(ready, options)
                ready = []
        yield from self._caption_ready(ready, options)

    def _caption_ready(
        self, ready: Sequence[tuple[str, PreparedImage | ImageError]], options: CaptionOptions
    ) -> Iterator[tuple[str, Caption | ImageError]]:
        good = [image for _, image in ready if isinstance(image, PreparedImage)]
        captions = iter(self.caption_prepared(good, options))
        for name, image in ready:
            yield name, image if isinstance(image, ImageError) else next(captions)

    def check(self, options: CaptionOptions) -> None:
        """Refuse what this model cannot do, before any picture is opened.

        Raises:
            DecodingError: a required word is not in its vocabulary.
            ModelError: it does not caption pictures.
        """
        self._extractor()
        self._controls(options)

    def prepare(
        self, image: ImageSource, *, limits: ImageLimits = DEFAULT_LIMITS, name: str | None = None
    ) -> PreparedImage:
        """Open a picture and bring it to the extractor's size; may run in any thread. Errors call it `name`."""
        extractor = self._extractor()
        return extractor.prepare(open_image(image, limits=limits, min_side=extractor.min_side, name=name))

    def caption_prepared(
        self, images: Sequence[PreparedImage], options: CaptionOptions = DEFAULT_OPTIONS
    ) -> list[Caption]:
        """Caption pictures that `prepare` has opened, as one batch."""
        return self.caption_regions(self._extractor().extract(images), options) if images else []

    def caption_regions(self, regions: Sequence[Regions], options: CaptionOptions = DEFAULT_OPTIONS) -> list[Caption]:
        """Caption images whose regions are known already, as one batch."""
        if not regions:
            return []
        device = next(self.model.parameters()).device
        features, mask = pad_regions(regions, self.model.feature_dim)
        with torch.inference_mode():
            encoded = self.model.encode(features.to(device), mask.to(device))
            found = self._decode(encoded, options)
            runners_up = self._runners_up(encoded, found, options.runners_up)
        return [
            self._caption(beams, image, others)
            for beams, image, others in zip(found.hypotheses(), regions, runners_up, strict=True)
        ]

    def _decode(self, encoded: Encoded, options: CaptionOptions) -> DecodingResult:
        special = self.vocabulary.special
        controls = self._controls(options)
        if not options.samples:
            return beam_search(
                self.model,
                encoded,
                special,
                width=options.beams,
                rule=options.rule,
                max_length=options.max_length,
                controls=controls,
                trace=options.attention,
            )
        # The same numbers for every picture: what is drawn for one does not depend on the batch it came in.
        generator = torch.Generator().manual_seed(options.seed)
        uniform = torch.rand(options.samples, options.max_length, generator=generator)
        return sample(
            self.model,
            encoded,
            special,
            n=options.samples,
            temperature=options.temperature,
            top_p=options.top_p,
            uniform=uniform.repeat(len(encoded), 1).to(encoded.summary.device),
            max_length=options.max_length,
            controls=controls,
            trace=options.attention,
        )

    def _controls(self, options: CaptionOptions) -> list[Control]:
        special = self.vocabulary.special
        no_words = {special.pad, special.bos} - {special.eos}
        controls: list[Control] = [SuppressUnknown(), NoBadEnding(bad_ending_ids(self.vocabulary)), MinLength(1)]
        if no_words:
            controls.append(Forbid(sorted(no_words)))
        if options.must:
            controls.append(Require([self._known_ids(word) for word in options.must]))
        return controls

    def _known_ids(self, wanted: str) -> list[list[int]]:
        """Ids of `dog|dogs`, each alternative being a word or a phrase."""
        alternatives = [part.lower().split() for part in wanted.split("|")]
        for word in (word for part in alternatives for word in part):
            if word not in self.vocabulary:
                raise DecodingError(f"must: the model does not know the word {word!r}")
        if not all(alternatives):
            raise DecodingError(f"must: expected a word, or words separated by |, got {wanted!r}")
        return [self.vocabulary.encode(part) for part in alternatives]

    def _runners_up(
        self, encoded: Encoded, found: DecodingResult, count: int
    ) -> list[list[tuple[tuple[str, float], ...]]]:
        """Per image, per place of its first caption: other words and their probabilities."""
        special = self.vocabulary.special
        without = {special.pad, special.bos, special.eos, special.unk}
        count = min(count, self.model.vocab_size - len(without) - 1)
        if count < 1:
            return [[] for _ in range(len(encoded))]
        first = found.ids[:, 0]
        ids, log_probs = alternatives(self.model, encoded, special, first, count=count, without=without)
        return [
            [
                tuple((self.vocabulary.words[i], math.exp(p)) for i, p in zip(*place, strict=True))
                for place in zip(*image, strict=True)
            ]
            for image in zip(ids.tolist(), log_probs.tolist(), strict=True)
        ]

    def _caption(
        self, beams: list[Hypothesis], regions: Regions, runners_up: list[tuple[tuple[str, float], ...]]
    ) -> Caption:
        familiarity = 1.0 if self.familiar is None else self.familiar.familiarity(regions.features)
        first, *others = [self._one(beam, familiarity) for beam in beams]
        if runners_up:
            pairs = zip(first.words, runners_up, strict=False)  # the end has alternatives too, but is no word
            first = replace(first, words=tuple(replace(word, runners_up=places) for word, places in pairs))
        boxes = None if beams[0].spatial is None else regions.boxes
        return replace(first, others=tuple(others), boxes=boxes)

    def _one(self, beam: Hypothesis, familiarity: float) -> Caption:
        count = len(beam.words)
        texts = [self.vocabulary.words[i] for i in beam.words]
        spatial = _rows(beam.spatial, count)
        channel = _rows(beam.channel, count)
        words = tuple(
            Word(text, math.exp(log_prob), where, gate)
            for text, log_prob, where, gate in zip(texts, beam.log_probs[:count], spatial, channel, strict=True)
        )
        confidence = familiarity * math.exp(beam.total / max(1, len(beam.ids)))
        return Caption(" ".join(texts), beam.total, confidence, words)

    def _extractor(self) -> RegionExtractor:
        if self.extractor is None:
            raise ModelError(
                "this model captions region features, not pictures: its directory has no vision.safetensors; "
                "use caption_regions, or a model that has one"
            )
        return self.extractor


def _rows(tensor: Tensor | None, count: int) -> Iterable[np.ndarray | None]:
    return [None] * count if tensor is None else list(tensor[:count].float().cpu().numpy())
