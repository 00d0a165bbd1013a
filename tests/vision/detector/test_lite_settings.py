"""Settings of the small detector that come from files: other types are refused, not tripped over."""

from __future__ import annotations

import pytest

from xlan.errors import ModelError
from xlan.vision.detector.lite_settings import LiteDetectorSpec, LiteSelection


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fewest": "10"}, "fewest must be a whole number, got '10'"),
        ({"most": 36.0}, "most must be a whole number, got 36.0"),
        ({"confidence": "x"}, "confidence must be a number, got 'x'"),
        ({"confidence": True}, "confidence must be a number, got True"),
        ({"grid": "no"}, "grid must be true or false, got 'no'"),
        ({"image_region": 1}, "image_region must be true or false, got 1"),
    ],
)
def test_selections_of_other_types_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        LiteSelection(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_size": 256.5}, "input_size must be a whole number, got 256.5"),
        ({"rounds": 1.5}, "rounds must be a whole number, got 1.5"),
        ({"channels": True}, "channels must be a whole number, got True"),
        ({"fine_sizes": ["a", "b", "c"]}, "a side in fine_sizes or coarse_sizes must be a number, got 'a'"),
        ({"coarse_sizes": [1, 2, -3]}, "fine_sizes and coarse_sizes must be above 0 and at most 4096, got -3"),
        ({"fine_sizes": [1, 2, 10**400]}, "fine_sizes and coarse_sizes must be above 0 and at most 4096, got 1000"),
        ({"classes": "dog"}, "classes must be a list, got 'dog'"),
        ({"classes": [1]}, "a name in classes must be text, got 1"),
        ({"score_slope": "1"}, "score_slope must be a number, got '1'"),
        ({"network": []}, "network must be text"),
    ],
)
def test_sizes_of_other_types_are_refused(wrong: dict[str, object], message: str) -> None:
    values = LiteDetectorSpec("efficientnet-lite0", ("dog",)).to_dict()
    with pytest.raises(ModelError, match=f"detector.json: its sizes cannot be read: {message}"):
        LiteDetectorSpec.from_dict({**values, **wrong}, what="detector.json")


@pytest.mark.parametrize("values", [None, True, 1, "x", [], ["classes"]])
def test_sizes_that_are_no_object_are_refused(values: object) -> None:
    with pytest.raises(ModelError, match=r"detector\.json: its sizes cannot be read: spec must be an object, got"):
        LiteDetectorSpec.from_dict(values, what="detector.json")  # type: ignore[arg-type]
