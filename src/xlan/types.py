"""Frozen records that cross borders between folders.

Only annotations mention torch here, so code without torch (`xlan.metrics`) may import this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor


# What happens to finished beams, see `xlan.decoding.beam`.
Rule = Literal["released", "earlier"]


@dataclass(frozen=True)
class SpecialIds:
    """Ids with a meaning of their own.

    New vocabularies keep the four apart; the released checkpoints use one id (0) for `pad`, `bos` and `eos`.
    Code therefore names the id it means and never assumes that two of them differ.
    """

    pad: int
    bos: int
    eos: int
    unk: int


@dataclass(frozen=True)
class Thing:
    """Something that a detector found in a picture.

    Attributes:
        name: what it is ("car").
        box: `x0 y0 x1 y1` as fractions (0 to 1) of the picture's width and height.
        score: how sure the detector is, 0 to 1.
        attribute: how it is ("red"); empty where the detector does not say.
    """

    name: str
    box: tuple[float, float, float, float]
    score: float
    attribute: str = ""

    @property
    def label(self) -> str:
        """Attribute and name: "red car"."""
        return f"{self.attribute} {self.name}".strip()


@dataclass(frozen=True)
class Regions:
    """What vision knows of one image: N regions, each a feature vector with a box. A grid cell is a region too.

    Attributes:
        features: `[N, D]` float16 or float32.
        boxes: `[N, 4]` float32, `x0 y0 x1 y1` as fractions (0 to 1) of the image's width and height.
        scores: `[N]` float32 detector confidence, or None where the extractor has none.
        width: width in pixels of the image the boxes refer to, 0 when unknown.
        height: its height in pixels, 0 when unknown.
        things: what a detector found, if one looked.
        thing_of: `[N]` number of the thing that each region is, -1 for a region that is none (a cell, the whole image);
            None where no region is a thing, also when a detector looked beside a grid.
    """

    features: npt.NDArray[np.floating]
    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32] | None = None
    width: int = 0
    height: int = 0
    things: tuple[Thing, ...] = ()
    thing_of: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def boxes_by_diagonal(self) -> npt.NDArray[np.float32]:
        """Boxes `[N, 4]` in units of the image's diagonal, so that distances and angles are true.

        An image of unknown size is taken to be square.
        """
        width, height = (self.width, self.height) if self.width and self.height else (1, 1)
        diagonal = float(width**2 + height**2) ** 0.5
        boxes = self.boxes.copy()
        boxes[:, 0::2] *= width / diagonal
        boxes[:, 1::2] *= height / diagonal
        return boxes


@dataclass(frozen=True)
class StepTrace:
    """Where a decoder looked in one step.

    Attributes:
        spatial: `[R, N]` attention over regions, averaged over heads; rows sum to 1 over valid regions.
        channel: `[R, C]` channel gate in 0–1 (Eq. 5), heads concatenated; None for models without such a gate.
    """

    spatial: Tensor
    channel: Tensor | None


@dataclass(frozen=True)
class Look:
    """Where a model looked most for a word.

    Attributes:
        box: `x0 y0 x1 y1` as fractions of the picture.
        share: of the word's attention that the box has, 0 to 1.
        region: number of the region with that box; None where the box is a thing that was found beside the regions.
        thing: number of the thing in `Caption.things`; None where the box is of nothing that has a name.
    """

    box: tuple[float, float, float, float]
    share: float
    region: int | None = None
    thing: int | None = None


@dataclass(frozen=True)
class Word:
    """One word of a caption.

    Attributes:
        text: the word.
        probability: how likely the model found it at its place, 0 to 1.
        spatial: `[N]` attention over the regions while it was chosen (sums to 1); None unless asked for.
        channel: `[C]` channel gate, 0 to 1; None unless asked for, or where the model has none.
        runners_up: the likeliest other words at its place with their probabilities, best first; empty unless asked for.
        confidence: the chance that people use this word for the picture too, 0 to 1; None for words that say nothing
            about the picture ("a", "of"), and for models that are not calibrated.
        look: where the model looked most (see `xlan.looking`); None unless attention was asked for, or where it looked
            at the picture as a whole only.
    """

    text: str
    probability: float
    spatial: npt.NDArray[np.float32] | None = None
    channel: npt.NDArray[np.float32] | None = None
    runners_up: tuple[tuple[str, float], ...] = ()
    confidence: float | None = None
    look: Look | None = None


@dataclass(frozen=True)
class Caption:
    """What a model says of one image.

    Attributes:
        text: the sentence.
        score: natural log-probability of the whole sentence, its end included.
        confidence: the expected share of its content words that people also use for the picture, 0 to 1. For models
            that are not calibrated: geometric mean of the probabilities of its words and its end, lowered for pictures
            unlike those of training.
        words: its words in order.
        others: further captions of the same image, from better to worse (beams) or as drawn (samples).
        boxes: `[N, 4]` boxes of the regions that `spatial` refers to; None unless attention was asked for.
        things: what a detector found in the picture; empty unless one looked and attention was asked for.
    """

    text: str
    score: float
    confidence: float
    words: tuple[Word, ...]
    others: tuple[Caption, ...] = ()
    boxes: npt.NDArray[np.float32] | None = None
    things: tuple[Thing, ...] = ()
