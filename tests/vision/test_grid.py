"""Grid regions: boxes, pooling, the image-level region, and the file they are loaded from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from xlan.errors import ModelError, WeightsError
from xlan.vision import efficientnet
from xlan.vision.efficientnet import EfficientNetLite
from xlan.vision.grid import GridExtractor, load_vision, normalise
from xlan.vision.grid_settings import GridSettings
from xlan.vision.image import open_image
from xlan.vision.regions import RegionExtractor, extract_regions, grid_boxes


@given(rows=st.integers(1, 20), columns=st.integers(1, 20))
def test_boxes_tile_the_picture(rows: int, columns: int) -> None:
    boxes = grid_boxes(rows, columns)
    assert boxes.shape == (rows * columns, 4)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert np.isclose(area.sum(), 1, atol=1e-4)
    assert np.allclose(area, 1 / (rows * columns), atol=1e-5)
    assert boxes.min() == 0
    assert boxes.max() == 1


def test_boxes_go_row_by_row() -> None:
    assert grid_boxes(2, 2).tolist() == [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]


@pytest.mark.parametrize(
    ("size", "levels", "cells", "image_region", "regions", "width"),
    [
        (64, (32,), None, True, 1 + 4, 24),
        (64, (32,), None, False, 4, 24),
        (96, (32,), None, True, 1 + 9, 24),
        (96, (16,), None, True, 1 + 36, 32),
        (96, (16, 32), None, True, 1 + 9, 32 + 24),
        (96, (16, 32), 5, True, 1 + 25, 32 + 24),
        (100, (32,), 2, False, 4, 24),
    ],
)
def test_regions_have_the_promised_shape(
    tiny_network: EfficientNetLite,
    draw: Callable[..., bytes],
    size: int,
    levels: tuple[int, ...],
    cells: int | None,
    image_region: bool,
    regions: int,
    width: int,
) -> None:
    settings = GridSettings("tiny", input_size=size, levels=levels, cells=cells, image_region=image_region)
    extractor: RegionExtractor = GridExtractor(tiny_network, settings)
    assert extractor.feature_dim == width
    found = extract_regions(extractor, [draw(0), draw(1, size=(33, 97))])
    for one, size_of in zip(found, ((80, 60), (33, 97)), strict=True):
        assert one.features.shape == (regions, width)
        assert one.features.dtype == np.float32
        assert one.boxes.shape == (regions, 4)
        assert (one.width, one.height) == size_of


def test_the_image_region_comes_first_and_is_the_mean(
    tiny_network: EfficientNetLite, draw: Callable[..., bytes]
) -> None:
    (regions,) = extract_regions(GridExtractor(tiny_network, GridSettings("tiny", input_size=96)), [draw(0)])
    assert regions.boxes[0].tolist() == [0, 0, 1, 1]
    assert np.allclose(regions.features[0], regions.features[1:].mean(axis=0), atol=1e-6)


def test_cells_are_the_network_s_map(tiny_network: EfficientNetLite, draw: Callable[..., bytes]) -> None:
    extractor = GridExtractor(tiny_network, GridSettings("tiny", input_size=96, image_region=False))
    prepared = extractor.prepare(open_image(draw(0)))
    with torch.inference_mode():
        expected = tiny_network(normalise([prepared.pixels])).stride32[0]
    (regions,) = extractor.extract([prepared])
    # Row 1, column 2 of a grid of 3 is region 5.
    assert np.allclose(regions.features[5], expected[:, 1, 2].numpy(), atol=1e-5)


def test_a_picture_s_features_do_not_depend_on_its_batch(
    tiny_network: EfficientNetLite, draw: Callable[..., bytes]
) -> None:
    extractor = GridExtractor(tiny_network, GridSettings("tiny", input_size=64))
    together = extract_regions(extractor, [draw(i) for i in range(3)])
    for i, one in enumerate(together):
        (alone,) = extract_regions(extractor, [draw(i)])
        assert np.allclose(one.features, alone.features, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (10000, 3), (3, 10000)])
@pytest.mark.parametrize("mode", ["RGB", "CMYK", "I;16", "1", "RGBA"])
def test_odd_pictures_have_regions_too(tiny_network: EfficientNetLite, size: tuple[int, int], mode: str) -> None:
    extractor = GridExtractor(tiny_network, GridSettings("tiny", input_size=64))
    (regions,) = extract_regions(extractor, [Image.new(mode, size)])
    assert regions.features.shape == (5, 24)
    assert np.isfinite(regions.features).all()
    assert (regions.width, regions.height) == size


def test_nothing_in_nothing_out(tiny_network: EfficientNetLite) -> None:
    extractor = GridExtractor(tiny_network, GridSettings("tiny"))
    assert extract_regions(extractor, []) == []
    assert extractor.extract([]) == []


def test_pixels_are_normalised_as_published() -> None:
    batch = normalise([np.full((2, 2, 3), 255, dtype=np.uint8), np.zeros((2, 2, 3), dtype=np.uint8)])
    assert batch.shape == (2, 3, 2, 2)
    assert batch[0].unique().tolist() == [1.0]
    assert batch[1].unique().tolist() == [-127 / 128]


def test_saved_and_loaded_extractors_agree(
    tiny_network: EfficientNetLite, draw: Callable[..., bytes], tmp_path: Path
) -> None:
    settings = GridSettings("tiny", input_size=96, levels=(16, 32), cells=3)
    extractor = GridExtractor(tiny_network, settings)
    extractor.save(tmp_path / "vision.safetensors")
    loaded = GridExtractor.load(tmp_path / "vision.safetensors")
    assert loaded.settings == settings
    assert loaded.description["weights"].startswith("sha256:")
    json.dumps(loaded.description)
    a, b = (extract_regions(each, [draw(0)])[0].features for each in (extractor, loaded))
    assert np.allclose(a, b, rtol=0.02, atol=0.02)  # kept as float16
    changed = GridExtractor.load(tmp_path / "vision.safetensors", cells=None, levels=(32,))
    assert changed.feature_dim == 24


def test_loading_draws_and_folds_no_weights(
    tiny_network: EfficientNetLite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GridExtractor(tiny_network, GridSettings("tiny", input_size=64)).save(tmp_path / "vision.safetensors")
    folds: list[torch.nn.Module] = []
    monkeypatch.setattr(efficientnet, "_folded_weights", lambda _, norm: folds.append(norm))
    before = torch.random.get_rng_state()
    loaded = GridExtractor.load(tmp_path / "vision.safetensors")
    assert not folds, "weights were folded that are thrown away"
    assert torch.equal(torch.random.get_rng_state(), before), "weights were drawn that are thrown away"
    assert not any(weight.is_meta or weight.requires_grad for weight in loaded.network.parameters())


def rewrite(path: Path, *, header: dict[str, str] | None = None, **tensors: torch.Tensor | None) -> None:
    """Write the file again with another header or other tensors (None removes one)."""
    before = load_file(path)
    for name, value in tensors.items():
        if value is None:
            del before[name.replace("__", ".")]
        else:
            before[name.replace("__", ".")] = value
    settings = json.dumps({"network": "tiny", "input_size": 64, "levels": [32], "cells": None, "image_region": True})
    save_file(before, path, metadata=header or {"format": "xlan-vision", "version": "1", "settings": settings})


def test_files_that_are_not_ours_are_refused(tiny_network: EfficientNetLite, tmp_path: Path) -> None:
    path = tmp_path / "vision.safetensors"
    with pytest.raises(WeightsError, match="no such file"):
        load_vision(path)
    path.write_bytes(b"not safetensors")
    with pytest.raises(WeightsError, match="is not a readable safetensors file"):
        load_vision(path)
    GridExtractor(tiny_network, GridSettings("tiny")).save(path)
    rewrite(path, header={"format": "other", "version": "1"})
    with pytest.raises(WeightsError, match="expected a file of format xlan-vision 1, got other 1"):
        load_vision(path)
    rewrite(path, header={"format": "xlan-vision", "version": "1", "settings": "{}"})
    with pytest.raises(WeightsError, match="its settings cannot be read"):
        load_vision(path)


def test_tensors_that_do_not_fit_are_refused(tiny_network: EfficientNetLite, tmp_path: Path) -> None:
    path = tmp_path / "vision.safetensors"
    extractor = GridExtractor(tiny_network, GridSettings("tiny"))
    extractor.save(path)
    rewrite(path, stem__conv__bias=torch.full((32,), torch.nan))
    with pytest.raises(WeightsError, match=r"stem\.conv\.bias has values that are not finite"):
        load_vision(path)
    extractor.save(path)
    rewrite(path, stem__conv__bias=None)
    with pytest.raises(WeightsError, match=r"missing: stem\.conv\.bias$"):
        load_vision(path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"network": "resnet"}, "unknown vision network 'resnet'"),
        ({"input_size": 16}, "input_size must be from 32 to 2048 pixels, got 16"),
        ({"levels": (8,)}, r"levels must be \(32,\), \(16,\) or \(16, 32\), got \(8,\)"),
        ({"cells": 0}, "cells must be from 1 to 64, or None, got 0"),
        *(({"input_size": size}, "input_size must be a whole number, got") for size in (256.0, 256.5, "x", True, None)),
        *(({"cells": cells}, "cells must be a whole number, got") for cells in (8.0, True, "8")),
        *(({"levels": levels}, r"levels must be \(32,\)") for levels in ((32.0,), ("32",), 32, None)),
        ({"image_region": "no"}, "image_region must be true or false, got 'no'"),
        ({"network": ["efficientnet-lite0"]}, "network must be text"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        GridSettings(**{"network": "efficientnet-lite0", **wrong})  # type: ignore[arg-type]
