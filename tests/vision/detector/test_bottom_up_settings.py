"""Settings of bottom-up detectors that come from files: other types are refused, not tripped over."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from xlan.errors import ModelError
from xlan.vision.detector.bottom_up import BottomUp, BottomUpSpec
from xlan.vision.detector.conventions import LXMERT
from xlan.vision.detector.directory import CONFIG, feature_width, load_detector, save_bottom_up
from xlan.vision.detector.resnet import ResNetSpec

SMALL = BottomUpSpec(
    resnet=ResNetSpec(stem=8, blocks=(1, 1, 1, 1), width=4, out=8),
    rpn=8,
    classes=2,
    attributes=1,
    embedding=4,
    attribute_hidden=8,
)
# A value of every type of JSON, as examples of what is wrong where another type is expected.
NULL, TRUE, WHOLE, NUMBER, TEXT, LIST, OBJECT = None, True, 1, 1.5, "x", [], {}
# What may be at each place, and everything else that is tried there.
NOT_WHOLE = (NULL, TRUE, NUMBER, 1.0, TEXT, "1", LIST, [1], OBJECT)
NOT_NUMBER = (NULL, TRUE, TEXT, "1", LIST, [1], OBJECT, math.nan, math.inf, 10**400)
NOT_FLAG = (NULL, WHOLE, 0, NUMBER, TEXT, "true", LIST, OBJECT)
NOT_TEXT = (NULL, TRUE, WHOLE, NUMBER, LIST, OBJECT)
NOT_CHOICE = (*NOT_TEXT, TEXT)
NOT_OBJECT = (NULL, TRUE, WHOLE, NUMBER, TEXT, LIST, [1])
NOT_LIST = (NULL, TRUE, WHOLE, NUMBER, TEXT, OBJECT)
NOT_NUMBERS = (*NOT_LIST, LIST, *([value] * 4 for value in NOT_NUMBER), *([value] * 3 for value in NOT_NUMBER))
WRONG: dict[str, tuple[Any, ...]] = {
    "format": (NULL, NUMBER, TEXT, "1", LIST, OBJECT),
    "kind": NOT_CHOICE,
    "file": NOT_OBJECT,
    "file/bytes": NOT_WHOLE,
    "file/sha256": NOT_TEXT,
    "objects": (*NOT_LIST, [1], [NULL]),
    "attributes": (*NOT_LIST, [1], [NULL]),
    "spec": NOT_OBJECT,
    "spec/resnet": NOT_OBJECT,
    "spec/resnet/stem": NOT_WHOLE,
    "spec/resnet/blocks": (*NOT_LIST, LIST, [1] * 3, [1] * 5, *([value] * 4 for value in NOT_WHOLE)),
    "spec/resnet/width": NOT_WHOLE,
    "spec/resnet/out": NOT_WHOLE,
    "spec/rpn": NOT_WHOLE,
    "spec/classes": NOT_WHOLE,
    "spec/attributes": NOT_WHOLE,
    "spec/embedding": NOT_WHOLE,
    "spec/attribute_hidden": NOT_WHOLE,
    "convention": NOT_OBJECT,
    "convention/name": NOT_TEXT,
    "convention/short_side": NOT_WHOLE,
    "convention/long_side": NOT_WHOLE,
    "convention/resize": NOT_CHOICE,
    "convention/anchors": NOT_CHOICE,
    "convention/offset": (*NOT_WHOLE, 2),
    "convention/cap_growth": NOT_FLAG,
    "convention/min_side": NOT_NUMBER,
    "convention/min_side_kept": NOT_FLAG,
    "convention/filter_first": NOT_FLAG,
    "convention/nms_inclusive": NOT_FLAG,
    "convention/box_weights": (*NOT_NUMBERS, [1] * 3, [0] * 4),
    "convention/none_competes": NOT_FLAG,
    "convention/mean": (*NOT_NUMBERS, [1] * 4),
    "convention/proposals_before": NOT_WHOLE,
    "convention/proposals": NOT_WHOLE,
    "convention/proposal_overlap": NOT_NUMBER,
    "convention/selection": NOT_OBJECT,
    "convention/selection/rule": NOT_CHOICE,
    "convention/selection/fewest": NOT_WHOLE,
    "convention/selection/most": NOT_WHOLE,
    "convention/selection/thresholds": NOT_NUMBERS,
    "convention/selection/confidence": NOT_NUMBER,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("detectors") / "small"
    with torch.random.fork_rng():
        network = BottomUp(SMALL, LXMERT)
    save_bottom_up(place, SMALL, LXMERT, network.state_dict(), objects=["dog", "cat"], attributes=["red"])
    return place


@pytest.fixture
def settings(directory: Path) -> Iterator[dict[str, Any]]:
    """What the detector says of itself; the file is as before after the test."""
    text = (directory / CONFIG).read_text()
    yield json.loads(text)
    (directory / CONFIG).write_text(text)


def changed(values: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    first, _, rest = place.partition("/")
    return {**values, first: changed(values[first], rest, value) if rest else value}


def places(values: dict[str, Any], before: str = "") -> set[str]:
    found = {before + name for name in values}
    return found.union(*(places(value, f"{before}{name}/") for name, value in values.items() if type(value) is dict))


def test_every_setting_is_tried(settings: dict[str, Any]) -> None:
    assert places(settings) == set(WRONG)


@pytest.mark.parametrize("place", WRONG)
def test_values_of_other_types_are_one_line_that_names_file_and_setting(
    directory: Path, settings: dict[str, Any], place: str
) -> None:
    for value in WRONG[place]:
        (directory / CONFIG).write_text(json.dumps(changed(settings, place, value)))
        with pytest.raises(ModelError) as caught:
            load_detector(directory)
        message = str(caught.value)
        assert message.startswith(f"{directory / CONFIG}: "), value
        assert place.rpartition("/")[2] in message.removeprefix(str(directory / CONFIG)), value
        assert "\n" not in message, value


@pytest.mark.parametrize("place", [place for place in WRONG if place.startswith("spec")])
def test_the_width_of_features_is_not_read_from_sizes_of_other_types(
    directory: Path, settings: dict[str, Any], place: str
) -> None:
    for value in WRONG[place]:
        (directory / CONFIG).write_text(json.dumps(changed(settings, place, value)))
        with pytest.raises(ModelError, match="its sizes cannot be read"):
            feature_width(directory)


def test_whole_numbers_are_numbers(directory: Path, settings: dict[str, Any]) -> None:
    (directory / CONFIG).write_text(json.dumps(changed(settings, "convention/box_weights", [10, 10, 5, 5])))
    assert load_detector(directory).feature_dim == 64
