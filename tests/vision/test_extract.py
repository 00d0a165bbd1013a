"""Extraction into a store: all pictures once, bad ones skipped, resumable, whatever the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from xlan.errors import ImageError
from xlan.types import Regions
from xlan.vision.extract import ExtractReport, extract_to_store
from xlan.vision.image import original_size, square_pixels
from xlan.vision.regions import PreparedImage, RegionExtractor
from xlan.vision.sources import Picture, find_pictures
from xlan.vision.store import FeatureStore, FeatureStoreWriter


class MeanColour:
    """An extractor with one region: the mean colour. Refuses pictures whose first pixel is pure red."""

    feature_dim = 3
    min_side = None
    description = {"extractor": "mean colour"}  # noqa: RUF012

    def __init__(self) -> None:
        self.batches: list[int] = []

    def prepare(self, image: Image.Image) -> PreparedImage:
        return PreparedImage(square_pixels(image, 8), *original_size(image))

    def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
        self.batches.append(len(images))
        if any((image.pixels[0, 0] == (255, 0, 0)).all() for image in images):
            raise ImageError("too red")
        box = np.array([[0, 0, 1, 1]], dtype=np.float32)
        return [
            Regions(image.pixels.mean(axis=(0, 1), dtype=np.float32)[None], box, None, image.width, image.height)
            for image in images
        ]


def run(store: Path, pictures: list[Picture], *, batch: int = 2) -> tuple[ExtractReport, MeanColour]:
    extractor = MeanColour()
    checked: RegionExtractor = extractor
    with FeatureStoreWriter(store, extractor=extractor.description) as writer:
        return extract_to_store(checked, pictures, writer, batch=batch), extractor


def test_every_good_picture_is_in_the_store(folder: Path, tmp_path: Path) -> None:
    report, _ = run(tmp_path / "store", find_pictures([folder]))
    store = FeatureStore(tmp_path / "store")
    assert list(store) == ["a0", "a1", "a2", "a3", "a4", "more/b"]
    assert (store["a0"].width, store["a0"].height) == (80, 60)
    assert (report.written, report.present) == (6, 0)
    assert len(report.bad) == 1
    assert report.bad[0].startswith(f"{folder / 'broken.png'}: is ")
    assert report.images_per_second > 0


def test_a_second_run_does_only_what_is_missing(folder: Path, tmp_path: Path) -> None:
    pictures = find_pictures([folder])
    run(tmp_path / "store", pictures[:3])
    report, extractor = run(tmp_path / "store", pictures)
    assert (report.written, report.present) == (3, 3)
    assert sum(extractor.batches) == 3
    again, extractor = run(tmp_path / "store", pictures[:5])
    assert (again.written, again.present, again.images_per_second, extractor.batches) == (0, 5, 0.0, [])


def test_one_refused_picture_does_not_take_its_batch_along(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9), (255, 0, 0)).save(folder / "a1.png")
    report, _ = run(tmp_path / "store", find_pictures([folder]), batch=4)
    assert report.written == 5
    assert f"{folder / 'a1.png'}: too red" in report.bad


def test_progress_is_told(folder: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    with FeatureStoreWriter(tmp_path / "store") as writer:
        extract_to_store(
            MeanColour(),
            find_pictures([folder]),
            writer,
            batch=2,
            on_progress=lambda report: seen.append(report.written + len(report.bad)),
        )
    assert seen == sorted(seen)
    assert seen[-1] == 7


def test_an_error_of_the_extractor_keeps_what_was_written(folder: Path, tmp_path: Path) -> None:
    class Failing(MeanColour):
        def extract(self, images: Sequence[PreparedImage]) -> list[Regions]:
            if self.batches:
                raise RuntimeError("boom")
            return super().extract(images)

    with pytest.raises(RuntimeError, match="boom"), FeatureStoreWriter(tmp_path / "store") as writer:
        extract_to_store(Failing(), find_pictures([folder]), writer, batch=2)
    store = FeatureStore(tmp_path / "store")
    assert (list(store), store.complete) == (["a0", "a1"], False)


@settings(max_examples=15, deadline=None)
@given(count=st.integers(0, 9), batch=st.integers(1, 5), threads=st.integers(1, 3))
def test_any_batch_size_gives_the_same_store(
    count: int, batch: int, threads: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("pictures")
    for i in range(count):
        Image.new("RGB", (4, 4), (i, 2 * i, 3)).save(root / f"{i}.png")
    pictures = find_pictures([root])
    with FeatureStoreWriter(root / "store", dtype="float32") as writer:
        extract_to_store(MeanColour(), pictures, writer, batch=batch, threads=threads)
    store = FeatureStore(root / "store")
    assert list(store) == [str(i) for i in range(count)]
    assert all(np.allclose(store[str(i)].features, [[i, 2 * i, 3]], atol=1e-3) for i in range(count))
