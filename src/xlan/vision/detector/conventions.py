"""One network, several readings: what the public implementations of bottom-up attention do differently.

    caffe      the original (Anderson et al., "Bottom-Up and Top-Down Attention", 2018); made the paper's features
    milvlg     its port to detectron2 by MILVLG, `caffe` mode: the same but for two details
    lxmert     the pure PyTorch version that comes with LXMERT and VisualBERT: other anchors, boxes and selection
    airsplay   the detectron2 version that LXMERT's weights come from: as lxmert, but pictures are resized by Pillow

Weights are the same numbers in another order; `weights` brings every file to one layout, so that a convention is only
a set of values and the network exists once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from xlan.errors import ModelError
from xlan.vision.values import (
    check_choice,
    check_flags,
    check_lists,
    check_numbers,
    check_objects,
    check_text,
    check_whole,
)

Resize = Literal["opencv", "torch", "pillow"]
Anchors = Literal["caffe", "centred"]
Rule = Literal["confident", "regressed"]


def _check_within(low: float, high: float, **values: float) -> None:
    check_numbers(**values)
    for name, value in values.items():
        if not low <= value <= high:
            raise ModelError(f"{name} must be from {low} to {high}, got {value}")


@dataclass(frozen=True)
class Selection:
    """Which proposals become regions.

    Attributes:
        rule: `confident` keeps proposals that some class is sure of (Caffe); `regressed` gives every proposal its best
            class and that class's box, and suppresses overlapping boxes until the number fits (LXMERT).
        fewest: never fewer regions than this, if there are as many proposals.
        most: never more.
        thresholds: overlaps for suppression. `confident` uses the first; `regressed` tries them in order until it has
            at least `fewest`.
        confidence: what `confident` calls sure.
    """

    rule: Rule
    fewest: int
    most: int
    thresholds: tuple[float, ...]
    confidence: float = 0.2

    def __post_init__(self) -> None:
        check_choice(get_args(Rule), rule=self.rule)
        check_whole(fewest=self.fewest, most=self.most)
        _check_within(0, 1, confidence=self.confidence)
        for threshold in self.thresholds:
            _check_within(0, 1, **{"an overlap in thresholds": threshold})
        if not 1 <= self.fewest <= self.most:
            raise ModelError(f"expected 1 <= fewest <= most regions, got {self.fewest} and {self.most}")
        if not self.thresholds:
            raise ModelError("thresholds must be at least one overlap, got none")


@dataclass(frozen=True)
class Convention:
    """How pictures, boxes and scores are read.

    Attributes:
        name: of the implementation.
        short_side: pixels of the shorter side after resizing, unless the longer side would exceed `long_side`.
        long_side: most pixels of the longer side.
        resize: whose bilinear resizing: OpenCV's on floats after the mean was subtracted, torch's on floats, or
            Pillow's on bytes.
        mean: subtracted from blue, green and red.
        anchors: Caffe's rounded shapes, ratio by ratio, or exact shapes around the cell's corner, size by size.
        offset: 1 when corners are pixels that belong to the box (see `boxes`), else 0.
        cap_growth: whether a box may grow at most by exp(ln(1000 / 16)).
        min_side: smallest side of a proposal in pixels of the picture; 0 drops only empty ones.
        min_side_kept: whether a proposal of exactly that side stays.
        filter_first: drop small proposals before the best are taken, not after.
        nms_inclusive: suppress at exactly the threshold too.
        proposals_before: how many proposals enter suppression.
        proposals: how many leave it.
        proposal_overlap: its threshold.
        box_weights: what the deltas of the box head are divided by.
        none_competes: whether "no attribute" takes part in the softmax over attributes.
        selection: the rule for regions.
    """

    name: str
    short_side: int
    long_side: int
    resize: Resize
    anchors: Anchors
    offset: int
    cap_growth: bool
    min_side: float
    min_side_kept: bool
    filter_first: bool
    nms_inclusive: bool
    box_weights: tuple[float, float, float, float]
    none_competes: bool
    selection: Selection
    mean: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)
    proposals_before: int = 6000
    proposals: int = 300
    proposal_overlap: float = 0.7

    def __post_init__(self) -> None:
        check_text(name=self.name)
        check_choice(get_args(Resize), resize=self.resize)
        check_choice(get_args(Anchors), anchors=self.anchors)
        check_choice((0, 1), offset=self.offset)
        check_whole(short_side=self.short_side, long_side=self.long_side)
        check_whole(proposals=self.proposals, proposals_before=self.proposals_before)
        check_flags(cap_growth=self.cap_growth, min_side_kept=self.min_side_kept, filter_first=self.filter_first)
        check_flags(nms_inclusive=self.nms_inclusive, none_competes=self.none_competes)
        _check_within(0, 1, proposal_overlap=self.proposal_overlap)
        _check_within(0, 100_000, min_side=self.min_side)
        for name, values, count in (("mean", self.mean, 3), ("box_weights", self.box_weights, 4)):
            if len(values) != count:
                raise ModelError(f"{name} must be {count} numbers, got {len(values)}")
        for value in self.mean:
            _check_within(0, 255, **{"a number in mean": value})
        for value in self.box_weights:
            _check_within(0.01, 1000, **{"a number in box_weights": value})
        if not 1 <= self.short_side <= self.long_side <= 4096:
            raise ModelError(f"expected 1 <= short_side <= long_side <= 4096, got {self.short_side}, {self.long_side}")
        if not 1 <= self.proposals <= self.proposals_before <= 100_000:
            raise ModelError(
                f"expected 1 <= proposals <= proposals_before <= 100000, got {self.proposals}, {self.proposals_before}"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, what: str) -> Convention:
        """Read what `to_dict` wrote; errors begin with `what`."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict):
            raise ModelError(f"{what}: convention must be an object, got {values!r}")
        if set(values) != known:
            got = ", ".join(sorted(set(values) ^ known))
            raise ModelError(f"{what}: not the settings of a detector; missing or unknown: {got}")
        try:
            check_objects(selection=values["selection"])
            check_lists(thresholds=values["selection"]["thresholds"])
            check_lists(mean=values["mean"], box_weights=values["box_weights"])
            selection = Selection(**{**values["selection"], "thresholds": tuple(values["selection"]["thresholds"])})
            tuples = {name: tuple(values[name]) for name in ("mean", "box_weights")}
            return cls(**{**values, **tuples, "selection": selection})
        except (ModelError, TypeError, KeyError) as error:
            raise ModelError(f"{what}: its settings cannot be read: {error}") from None


CAFFE = Convention(
    name="caffe",
    short_side=600,
    long_side=1000,
    resize="opencv",
    anchors="caffe",
    offset=1,
    cap_growth=False,
    min_side=16.0,
    min_side_kept=True,
    filter_first=True,
    nms_inclusive=True,
    box_weights=(1.0, 1.0, 1.0, 1.0),
    none_competes=True,
    selection=Selection("confident", fewest=10, most=100, thresholds=(0.3,)),
)
MILVLG = replace(CAFFE, name="milvlg", cap_growth=True, min_side_kept=False)
LXMERT = Convention(
    name="lxmert",
    short_side=800,
    long_side=1333,
    resize="torch",
    anchors="centred",
    offset=0,
    cap_growth=True,
    min_side=0.0,
    min_side_kept=False,
    filter_first=False,
    nms_inclusive=False,
    box_weights=(10.0, 10.0, 5.0, 5.0),
    none_competes=False,
    selection=Selection("regressed", fewest=36, most=36, thresholds=(0.5, 0.6, 0.7)),
)
AIRSPLAY = replace(
    LXMERT,
    name="airsplay",
    resize="pillow",
    selection=Selection("regressed", fewest=36, most=36, thresholds=(0.5, 0.6, 0.7, 0.8, 0.9)),
)
CONVENTIONS = {convention.name: convention for convention in (CAFFE, MILVLG, LXMERT, AIRSPLAY)}
