"""The bottom-up network behind the extractor interface: a picture in, named regions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from xlan.types import Regions
from xlan.vision.detector.bottom_up import BottomUp, Found
from xlan.vision.detector.detections import Detections, name_of
from xlan.vision.detector.resize import picture_scales, target_scale, to_batch, to_input
from xlan.vision.image import original_size
from xlan.vision.regions import PreparedImage


class BottomUpExtractor:
    """Regions of the bottom-up network.

    Args:
        network: with its weights; brought into evaluation mode.
        objects: names of its classes, without background.
        attributes: names of its attributes, without "none".
        weights_name: which weights these are, for `description`.

    Pictures are looked at one by one: padding them to one size would change the features.
    """

    def __init__(
        self,
        network: BottomUp,
        *,
        objects: Sequence[str] = (),
        attributes: Sequence[str] = (),
        weights_name: str = "",
    ) -> None:
        self.network: BottomUp = network.eval().requires_grad_(False)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.objects, self.attributes = tuple(objects), tuple(attributes)
        self.weights_name = weights_name

    @property
    def feature_dim(self) -> int:
        """2,048 for the public weights."""
        return self.network.spec.feature_dim

    @property
    def min_side(self) -> None:
        """No reduced decoding: features would differ from those of the public versions."""
        return

    @property
    def description(self) -> dict[str, Any]:
        """Weights and convention, as JSON values."""
        convention = self.network.convention.to_dict()
        lists = {name: list(value) for name, value in convention.items() if isinstance(value, tuple)}
        rule = dict(convention["selection"], thresholds=list(convention["selection"]["thresholds"]))
        return {"extractor": "bottom-up", "weights": self.weights_name, **convention, **lists, "selection": rule}

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Resize an upright RGB image as the convention does and subtract the mean: `[H, W, 3]` float32, blue first."""
        width, height = original_size(image)
        return PreparedImage(to_input(image, self.network.convention), width, height)

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        """Regions of each image, in the order of its convention's rule; with names where they are known."""
        found = self.detect(images)
        return [one.named() if self.objects else one.regions for one in found]

    def detect(self, images: Sequence[PreparedImage]) -> list[Detections]:
        """Named regions of each image."""
        with torch.inference_mode():
            return [self._detect(image) for image in images]

    def _detect(self, image: PreparedImage) -> Detections:
        convention = self.network.convention
        rows, columns = image.pixels.shape[:2]
        scale_y, scale_x = picture_scales(image.height, image.width, convention)
        found: Found = self.network(
            to_batch(image.pixels),
            height=rows,
            width=columns,
            scale=target_scale(image.height, image.width, convention),
            picture_per_input=torch.tensor([scale_x, scale_y, scale_x, scale_y]),
        )
        fractions = torch.tensor([scale_x / image.width, scale_y / image.height] * 2)
        regions = Regions(
            found.features.numpy(),
            (found.boxes * fractions).clamp(0, 1).numpy(),
            found.scores.numpy(),
            width=image.width,
            height=image.height,
        )
        names = tuple(name_of(self.objects, number, "object") for number in found.classes.tolist())
        if found.attributes is None or found.attribute_scores is None:
            return Detections(regions, found.classes.numpy(), names)
        attributes = tuple(name_of(self.attributes, number, "attribute") for number in found.attributes.tolist())
        scores = found.attribute_scores.numpy().astype(np.float32)
        return Detections(regions, found.classes.numpy(), names, attributes, scores)
