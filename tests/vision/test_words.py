"""The vision network's own words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlan.errors import ShapeError, WeightsError
from xlan.types import Regions
from xlan.vision.words import WordHead, parts


def head(words: int = 5, dim: int = 4, seed: int = 0) -> WordHead:
    random = np.random.default_rng(seed)
    weight = random.normal(size=(words, dim)).astype(np.float32)
    return WordHead(tuple(f"w{i}" for i in range(words)), weight, random.normal(size=words).astype(np.float32))


def picture(cells: int, dim: int = 4, seed: int = 1, *, whole: bool = True) -> Regions:
    random = np.random.default_rng(seed)
    boxes = [[0, 0, 1, 1]] * whole + [[i / cells, 0, (i + 1) / cells, 1] for i in range(cells)]
    boxes = boxes if cells > 1 else [*boxes[: int(whole)], [0, 0, 0.5, 1]]
    return Regions(random.normal(size=(len(boxes), dim)).astype(np.float32), np.asarray(boxes, dtype=np.float32))


@given(st.integers(1, 9), st.integers(0, 1000), st.booleans())
def test_logits_are_the_log_of_the_mean_odds_of_the_cells(cells: int, seed: int, whole: bool) -> None:
    regions, layer = picture(cells, seed=seed, whole=whole), head()
    features = regions.features[int(whole) :].astype(np.float64)
    expected = np.log(np.exp(features @ layer.weight.T + layer.bias).mean(axis=0))
    np.testing.assert_allclose(layer.logits(regions), expected, rtol=1e-4, atol=1e-4)


def test_some_outputs_are_those_of_all() -> None:
    regions, layer = picture(6), head()
    np.testing.assert_allclose(layer.logits(regions, [3, 1]), layer.logits(regions)[[3, 1]], rtol=1e-6)


def test_large_votes_do_not_overflow() -> None:
    regions, layer = picture(6), head()
    big = WordHead(layer.words, layer.weight * 1000, layer.bias)
    assert np.isfinite(big.logits(regions)).all()


def test_a_picture_that_is_one_region_is_its_own_part() -> None:
    regions = Regions(np.ones((1, 4), np.float32), np.array([[0, 0, 1, 1]], np.float32))
    assert len(parts(regions)) == 1


@pytest.mark.parametrize(("int8", "precision"), [(False, 1e-3), (True, 1 / 250)])
def test_it_comes_back_from_its_file(tmp_path: Path, int8: bool, precision: float) -> None:
    layer = head()
    (tmp_path / "words.safetensors").write_bytes(layer.to_bytes(int8=int8))
    again = WordHead.load(tmp_path / "words.safetensors")
    assert again.words == layer.words
    np.testing.assert_allclose(again.weight, layer.weight, atol=precision * np.abs(layer.weight).max())
    assert again.index["w3"] == 3


def test_features_of_another_width_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\[N, 4\], got \[7, 3\]"):
        head().logits(picture(6, dim=3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "is not a readable safetensors file"),
        (lambda path: WordHead((), np.zeros((0, 4), np.float32), np.zeros(0, np.float32)).save(path), None),
    ],
)
def test_bad_files_are_told(tmp_path: Path, change, message: str | None) -> None:
    path = tmp_path / "words.safetensors"
    head().save(path)
    change(path)
    if message is None:
        assert WordHead.load(path).words == ()
    else:
        with pytest.raises(WeightsError, match=message):
            WordHead.load(path)


def test_words_and_weights_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="for 2 words"):
        WordHead(("a", "b"), np.zeros((3, 4), np.float32), np.zeros(3, np.float32))
