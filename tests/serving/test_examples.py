"""Pictures to try the page with."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from xlan.serving import examples


@pytest.fixture(params=[True, False], ids=["with scikit-image", "without"])
def names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if request.param:
        pytest.importorskip("skimage")
    else:
        monkeypatch.setattr(examples, "_photographs", dict)
    examples.picture.cache_clear()
    return examples.names()


def test_each_example_is_a_small_picture(names: list[str]) -> None:
    assert len(names) >= 3
    for name in names:
        found = examples.picture(name)
        assert found is not None
        with Image.open(io.BytesIO(found)) as image:
            assert (image.format, max(image.size) <= 640) == ("JPEG", True)


@pytest.mark.parametrize("name", ["", "..", "chelsea.png", "../image.py"])
def test_other_names_lead_nowhere(names: list[str], name: str) -> None:
    assert examples.picture(name) is None
