"""Pictures like the known ones are familiar, others are not, whatever their brightness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from xlan.errors import DataError, ShapeError, WeightsError
from xlan.vision.familiar import FALL, Familiar


def pictures(count: int, *, seed: int = 0, towards: int = 0) -> list[np.ndarray]:
    """Region features `[6, 16]` that point roughly along axis `towards`."""
    rng = np.random.default_rng(seed)
    centre = np.zeros(16)
    centre[towards] = 4
    return [(centre + rng.normal(0, 1, (6, 16))).astype(np.float16) for _ in range(count)]


@pytest.fixture(scope="module")
def familiar() -> Familiar:
    return Familiar.of(pictures(200))


def test_more_of_the_same_is_familiar_and_others_are_not(familiar: Familiar) -> None:
    same = [familiar.familiarity(picture) for picture in pictures(200, seed=1)]
    assert np.mean(np.array(same) == 1.0) > 0.8  # 95 % are near enough, 95 % rich enough
    assert max(familiar.familiarity(picture) for picture in pictures(50, seed=2, towards=3)) < 0.01


def test_it_is_the_mean_distance_to_the_ten_nearest(familiar: Familiar) -> None:
    picture = pictures(1, seed=5)[0]
    mean = picture.astype(np.float64).mean(axis=0)
    cosines = [float(mean @ example / np.linalg.norm(mean)) for example in familiar.examples]
    assert familiar.distance(picture) == pytest.approx(1 - np.mean(sorted(cosines)[-10:]), abs=1e-5)


def test_a_picture_that_excites_few_features_is_not_familiar_however_near() -> None:
    random = np.random.default_rng(0)
    rich = [np.abs(random.normal(1, 0.5, (6, 64))) for _ in range(100)]
    familiar = Familiar.of(rich)
    poor = np.abs(random.normal(1, 0.5, (6, 64)))
    poor[:, 16:] = 0
    far = Familiar(familiar.examples, near=2.0, rich=familiar.rich)  # every distance is near enough
    share = np.abs(poor.mean(axis=0)).sum() ** 2 / (64 * np.square(poor.mean(axis=0)).sum())
    assert far.familiarity(poor) == pytest.approx(np.exp(-FALL * (familiar.rich / share - 1)), rel=1e-4)
    assert far.familiarity(rich[0]) > 0.9
    assert Familiar(familiar.examples, near=2.0).familiarity(poor) == 1.0  # not measured: not asked


@settings(deadline=None, max_examples=50)
@given(scale=st.floats(0.01, 100), seed=st.integers(0, 1000))
def test_scale_means_nothing_and_the_value_is_a_share(familiar: Familiar, scale: float, seed: int) -> None:
    features = np.random.default_rng(seed).normal(0, 1, (4, 16))
    value = familiar.familiarity(features)
    assert 0 <= value <= 1
    assert familiar.familiarity(features * scale) == pytest.approx(value, rel=1e-3, abs=1e-6)


def test_nothing_at_all_is_not_familiar(familiar: Familiar) -> None:
    assert familiar.familiarity(np.zeros((3, 16), np.float32)) < 0.01


@pytest.mark.parametrize("int8", [False, True])
def test_a_file_keeps_it(familiar: Familiar, tmp_path: Path, int8: bool) -> None:
    (tmp_path / "f.safetensors").write_bytes(familiar.to_bytes(int8=int8))
    again = Familiar.load(tmp_path / "f.safetensors")
    for picture in pictures(5, seed=3) + pictures(5, seed=4, towards=2):
        assert again.distance(picture) == pytest.approx(familiar.distance(picture), abs=1e-3)
    assert again.rich == pytest.approx(familiar.rich, abs=1e-6)


@pytest.mark.parametrize("width", [3, 7, 16, 31])
def test_pictures_that_excite_every_feature_alike_come_back_from_their_file(tmp_path: Path, width: int) -> None:
    Familiar.of([np.ones((2, width), np.float32)] * 20).save(tmp_path / "f.safetensors")
    assert Familiar.load(tmp_path / "f.safetensors").rich <= 1


@pytest.mark.parametrize("count", [0, 1, 10])
def test_too_few_pictures_are_refused(count: int) -> None:
    with pytest.raises(DataError, match=f"expected more than 10 pictures to compare with, got {count}$"):
        Familiar.of(pictures(count))


def test_features_of_another_width_are_refused(familiar: Familiar) -> None:
    with pytest.raises(ShapeError, match=r"expected features \[N, 16\], got \[2, 8\]"):
        familiar.distance(np.ones((2, 8), np.float32))


GOOD = np.eye(12, dtype=np.float16)
ONE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"examples": GOOD}, "expected more than 10 examples"),
        ({"examples": GOOD.astype(np.int8), "near": ONE}, "expected more than 10 examples"),  # 8 bits without scales
        ({"examples": GOOD[:10], "near": ONE}, "expected more than 10 examples"),
        ({"examples": GOOD, "near": np.ones(2, np.float32)}, "numbers 'near' and 'rich'"),
        ({"examples": GOOD, "near": ONE, "rich": np.ones(2, np.float32)}, "numbers 'near' and 'rich'"),
        ({"examples": GOOD, "near": ONE, "rich": -ONE}, "not usable numbers"),
        ({"examples": GOOD * np.nan, "near": ONE}, "not usable numbers"),
        ({"examples": GOOD, "near": -ONE}, "not usable numbers"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, tensors: dict[str, np.ndarray], message: str) -> None:
    save_file(tensors, tmp_path / "f.safetensors")
    with pytest.raises(WeightsError, match=message):
        Familiar.load(tmp_path / "f.safetensors")


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 100])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "f.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"no such file|not a readable safetensors file"):
        Familiar.load(tmp_path / "f.safetensors")
