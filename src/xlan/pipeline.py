"""A picture in, a sentence out: the path through the library, in one class.

    from xlan import Captioner
    captioner = Captioner.from_pretrained("model-directory")
    print(captioner.caption("photo.jpg").text)
    for result in captioner.caption_stream(Path("holiday").glob("*.jpg"), beams=5): ...

image → extractor (pixels → Regions) → engine (Regions → ids) → wording (ids → words) → judge (confidence) → Caption
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from xlan.confidence.evidence import Sight
from xlan.confidence.judge import Judge
from xlan.engines.interface import Engine, Worth
from xlan.engines.load import ComputePrecision, EngineName, load
from xlan.errors import ImageError, ModelError
from xlan.options import DEFAULT_OPTIONS, CaptionOptions, check_batch_size
from xlan.text.vocab import Vocabulary
from xlan.types import Caption, Regions
from xlan.vision.image import DEFAULT_LIMITS, ImageLimits, ImageSource, open_image
from xlan.vision.many import extract_many
from xlan.vision.naming import NamingExtractor, unnamed
from xlan.vision.regions import PreparedImage, RegionExtractor
from xlan.wording import caption_of, cost_of, request_of, worth_of


class Captioner:
    """Captions pictures.

    Args:
        engine: the model, for instance `TorchEngine(model, vocabulary.special)`.
        vocabulary: its words.
        extractor: turns pictures into regions, as wide as the model expects; None to caption regions only.
        judge: adds confidences to captions; by default from the probabilities of their words alone.
        identity: distinguishes this model from others, such as a hash of its files; empty if unknown.

    Methods that caption take options as a `CaptionOptions`, by name (`beams=5, max_length=20`), or both, and
    `batch_size`, the number of pictures per call of the model.
    """

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        extractor: RegionExtractor | None = None,
        judge: Judge | None = None,
        identity: str = "",
    ) -> None:
        width = engine.feature_dim
        if extractor is not None and extractor.feature_dim != width:
            raise ModelError(f"the extractor makes features {extractor.feature_dim} wide, the model expects {width}")
        self.judge = judge if judge is not None else Judge()
        self.judge.witness.check(width)
        self.engine, self.vocabulary, self.extractor, self.identity = engine, vocabulary, extractor, identity

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str] | None = None,
        *,
        engine: EngineName = "auto",
        device: str = "cpu",
        threads: int | None = None,
        detector: str | os.PathLike[str] | None = None,
        precision: ComputePrecision = "float32",
        revision: str | None = None,
    ) -> Captioner:
        """Load a model directory; without one, the model that ships with the package.

        Args:
            directory: what `xlan train` or `xlan pack` wrote; or, if no such folder exists, the name of a model on the
                Hub: `owner/name` or `owner/name@revision` (needs the extra `hub`).
            engine: `onnx`, `torch`, or `auto`: onnx where it is installed and can compute this model on this device.
            device: where to compute, pictures and words alike: `cpu`, `cuda`, `cuda:1`, `mps`.
            threads: how many threads compute; None leaves it to the engine.
            detector: a detector directory that makes the regions, for models trained on its features; beside a model on
                grid cells it names what the words look at (`Word.look`, `Caption.things`).
            precision: `float32`, `int8` (with onnx) or `bf16` (with torch): fewer bits are faster for large models.
            revision: of a model on the Hub: a branch, a tag or a commit.

        Raises:
            ModelError: the directory is missing or not a model, or the package came without one.
            HubError: a model cannot be fetched from the Hub (a `ModelError` too).
        """
        found = load(
            directory,
            engine=engine,
            device=device,
            threads=threads,
            detector=detector,
            precision=precision,
            revision=revision,
        )
        return cls(**vars(found))

    @overload
    def caption(self, images: ImageSource, options: CaptionOptions | None = ..., **given: Any) -> Caption: ...

    @overload
    def caption(
        self, images: Sequence[ImageSource], options: CaptionOptions | None = ..., *, batch_size: int = 16, **given: Any
    ) -> list[Caption]: ...

    def caption(
        self,
        images: ImageSource | Sequence[ImageSource],
        options: CaptionOptions | None = None,
        *,
        batch_size: int = 16,
        **given: Any,
    ) -> Caption | list[Caption]:
        """Caption one picture, or a list of them: paths, bytes, open files, PIL images, arrays or tensors.

        Raises:
            ImageError: a picture cannot be used; the message says which and why.
            DecodingError: an option is unknown, of the wrong type or out of its limits.
        """
        chosen = CaptionOptions.combine(options, given)
        if not isinstance(images, list | tuple):
            return self.caption_prepared([self.prepare(images)], chosen)[0]  # type: ignore[arg-type]
        check_batch_size(batch_size)
        parts = (images[i : i + batch_size] for i in range(0, len(images), batch_size))
        return [one for part in parts for one in self.caption_prepared([self.prepare(x) for x in part], chosen)]

    def caption_stream(
        self,
        images: Iterable[ImageSource],
        options: CaptionOptions | None = None,
        *,
        batch_size: int = 16,
        threads: int = 2,
        limits: ImageLimits = DEFAULT_LIMITS,
        **given: Any,
    ) -> Iterator[Caption | ImageError]:
        """Caption pictures as they come, any number of them; see `caption_many`, which keeps names beside them."""
        named = (
            (os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}", image)
            for number, image in enumerate(images)
        )
        found = self.caption_many(named, options, batch_size=batch_size, threads=threads, limits=limits, **given)
        return (result for _, result in found)

    def caption_many(
        self,
        pictures: Iterable[tuple[str, ImageSource]],
        options: CaptionOptions | None = None,
        *,
        batch_size: int = 16,
        threads: int = 2,
        limits: ImageLimits = DEFAULT_LIMITS,
        **given: Any,
    ) -> Iterator[tuple[str, Caption | ImageError]]:
        """Caption any number of pictures in order, in constant memory: threads open them while the model is busy.

        Args:
            pictures: pairs of a name, which you choose, and a picture.
            options: how to search for the words; `given`, single options by name.
            batch_size: pictures per call of the model.
            threads: threads that open pictures.
            limits: larger pictures are refused.

        Yields:
            The name, and the caption or the error of the picture; one that fails does not stop the others.
        """
        check_batch_size(batch_size)
        chosen = CaptionOptions.combine(options, given)
        self.check(chosen)

        def prepare(picture: tuple[str, ImageSource]) -> PreparedImage:
            opened = self.prepare(picture[1], limits=limits, name=picture[0])
            return opened if chosen.attention else unnamed(opened)

        parts = extract_many(
            self._extractor(), pictures, prepare, name=lambda picture: picture[0], batch=batch_size, threads=threads
        )
        for part in parts:
            captions = iter(self.caption_regions([one for _, one in part if isinstance(one, Regions)], chosen))
            for (name, _), found in part:
                yield name, found if isinstance(found, ImageError) else next(captions)

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
        if not images:
            return []
        wanted = images if options.attention else [unnamed(image) for image in images]
        return self.caption_regions(self._extractor().extract(wanted), options)

    def caption_regions(self, regions: Sequence[Regions], options: CaptionOptions = DEFAULT_OPTIONS) -> list[Caption]:
        """Caption images from their regions, as one batch."""
        if not regions:
            return []
        sights = [self.judge.witness.look(image) for image in regions]
        found = self.engine.decode(regions, request_of(options, self.vocabulary), self.worths(sights))
        return [
            self.judge.judge(caption_of(beams, image, self.vocabulary), sight)
            for beams, image, sight in zip(found, regions, sights, strict=True)
        ]

    def worths(self, sights: Sequence[Sight]) -> list[Worth | None]:
        """What the vision network's own opinion of some pictures is worth when their captions are put in order."""
        return [worth_of(sight.worth, self.vocabulary) for sight in sights]

    @property
    def names_things(self) -> bool:
        """Whether its captions can say what a word looked at: a detector makes its regions, or runs beside them."""
        return isinstance(self.extractor, NamingExtractor) or hasattr(self.extractor, "detect")

    def check(self, options: CaptionOptions) -> None:
        """Refuse what this model cannot do, before any picture is opened.

        Raises:
            DecodingError: a required word is not in its vocabulary.
            ModelError: this model does not caption pictures.
        """
        self._extractor()
        request_of(options, self.vocabulary)

    def cost(self, options: CaptionOptions) -> int:
        """How many steps of the model captioning one picture may take; see `xlan.wording.cost_of`."""
        return cost_of(options, self.vocabulary)

    def _extractor(self) -> RegionExtractor:
        if self.extractor is None:
            raise ModelError(
                "this model captions region features, not pictures: its directory has no vision.safetensors; "
                "add one with `xlan pack`, or use caption_regions"
            )
        return self.extractor
