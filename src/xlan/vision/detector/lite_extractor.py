"""The small detector on PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xlan.vision.detector.lite import LiteDetector, as_rois, region_features
from xlan.vision.detector.lite_settings import LEAST_SCORE, LiteFront, LiteSelection, Seen
from xlan.vision.grid import normalise
from xlan.vision.grid_settings import PICTURES_PER_PASS
from xlan.vision.regions import PreparedImage


class LiteExtractor(LiteFront):
    """Regions of the small detector.

    Args:
        detector: backbone and heads; brought into evaluation mode.
        selection: which regions.
        weights_name: which weights these are, for `description`.
        bf16: multiply in bfloat16, up to twice as fast where the processor has it.
    """

    def __init__(
        self,
        detector: LiteDetector,
        selection: LiteSelection | None = None,
        *,
        weights_name: str = "",
        bf16: bool = False,
    ) -> None:
        super().__init__(detector.spec, selection, weights_name)
        self.bf16 = bf16
        self.detector: LiteDetector = detector.eval().requires_grad_(False)
        self.detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def see(self, images: Sequence[PreparedImage]) -> list[Seen]:
        """Run the network on each picture."""
        result = []
        for i in range(0, len(images), PICTURES_PER_PASS):
            part = images[i : i + PICTURES_PER_PASS]
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                maps = self.detector.network(normalise([image.pixels for image in part]))
                every = self.detector.detect(maps, min_score=LEAST_SCORE, most=self.most_found)
            for number, found in enumerate(map(self.selection.chosen, every)):
                stride32 = maps.stride32[number : number + 1].float()
                features = region_features(stride32, as_rois([torch.from_numpy(found.boxes)]))
                cells = stride32[0].permute(1, 2, 0)
                result.append(Seen(found, features.numpy(), cells.contiguous().numpy()))
        return result
