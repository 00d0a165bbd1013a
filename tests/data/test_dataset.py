"""A data set joins captions, features and a vocabulary, and stops early when they do not fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xlan.data.dataset import CaptionDataset
from xlan.data.records import CaptionSet
from xlan.errors import DataError, FeatureError
from xlan.text.vocab import Vocabulary
from xlan.types import Regions
from xlan.vision.store import FeatureStore, FeatureStoreWriter

Make = Callable[..., CaptionDataset]


def test_what_is_in_it(make: Make) -> None:
    dataset = make()
    assert len(dataset) == 32
    assert len(dataset.positions) == sum(len(image.captions) for image in dataset.images)
    assert len(dataset.regions(0)) == dataset.region_count(0) == 2
    assert (dataset.regions(0).features == 1).all()


def test_tokens_are_the_words_of_each_caption(make: Make, vocab: Vocabulary) -> None:
    dataset = make()
    number = 0
    for image in dataset.images:
        for words in image.words:
            assert dataset.tokens(number).tolist() == vocab.encode(words)
            number += 1


def test_positions_are_words_and_end_cut_at_the_limit(make: Make) -> None:
    dataset = make(max_words=4)
    lengths = [len(words) for image in dataset.images for words in image.words]
    assert dataset.positions.tolist() == [min(length, 4) + 1 for length in lengths]


def test_references_are_uncut_and_end(make: Make, vocab: Vocabulary) -> None:
    dataset = make(max_words=2)
    references = dataset.reference_ids()
    assert list(references) == [image.id for image in dataset.images]
    for image in dataset.images:
        assert references[image.id] == [(*vocab.encode(words), vocab.special.eos) for words in image.words]
        assert dataset.reference_texts()[image.id] == image.captions


def test_regions_can_be_limited(make: Make) -> None:
    dataset = make(max_regions=3)
    counts = [len(dataset.regions(i)) for i in range(len(dataset))]
    assert counts == [dataset.region_count(i) for i in range(len(dataset))]
    assert max(counts) == 3
    assert counts[:4] == [2, 3, 3, 3]


def test_features_are_found_by_file_name(
    tmp_path: Path, captions: CaptionSet, store: FeatureStore, vocab: Vocabulary
) -> None:
    with FeatureStoreWriter(tmp_path / "s") as writer:
        writer.add("COCO_train2014_000000000001", store["1"])
    image = replace(captions.images[1], file="train2014/COCO_train2014_000000000001.jpg")
    dataset = CaptionDataset(replace(captions, images=(image,)), FeatureStore(tmp_path / "s"), vocab, split="train")
    assert (dataset.regions(0).features == 1).all()


def partial_store(path: Path, ids: list[str]) -> FeatureStore:
    with FeatureStoreWriter(path) as writer:
        for image_id in ids:
            writer.add(image_id, Regions(np.zeros((1, 6), np.float32), np.zeros((1, 4), np.float32)))
    return FeatureStore(path)


def test_missing_features_stop_or_are_left_out(tmp_path: Path, captions: CaptionSet, vocab: Vocabulary) -> None:
    store = partial_store(tmp_path / "s", ["1", "2", "3"])
    with pytest.raises(FeatureError, match=r"no features for 29 of 32 images of split 'train' \(the first: '4'\)"):
        CaptionDataset(captions, store, vocab, split="train")
    dataset = CaptionDataset(captions, store, vocab, split="train", missing="skip")
    assert [image.id for image in dataset.images] == ["1", "2", "3"]
    assert len(dataset.missing) == 29


def test_a_store_of_other_images_is_always_an_error(tmp_path: Path, captions: CaptionSet, vocab: Vocabulary) -> None:
    store = partial_store(tmp_path / "s", ["x"])
    with pytest.raises(FeatureError, match="no features for 32 of 32 images"):
        CaptionDataset(captions, store, vocab, split="train", missing="skip")


def test_another_width_than_the_models(make: Make) -> None:
    with pytest.raises(FeatureError, match="features are 6 wide, the model expects 2048"):
        make(feature_dim=2048)


def test_an_empty_split(make: Make) -> None:
    with pytest.raises(DataError, match="split 'test' has no images; there are: train"):
        make(split="test")


@pytest.mark.parametrize("options", [{"max_words": 0}, {"max_regions": 0}])
def test_limits_are_at_least_one(make: Make, options: dict[str, int]) -> None:
    with pytest.raises(DataError, match="must be at least 1"):
        make(**options)


def test_it_can_be_sent_to_another_process(make: Make) -> None:
    dataset = make()
    copy = pickle.loads(pickle.dumps(dataset))
    assert (copy.regions(3).features == dataset.regions(3).features).all()
    assert copy.reference_ids() == dataset.reference_ids()


def test_two_images_do_not_share_features_by_accident(
    tmp_path: Path, captions: CaptionSet, store: FeatureStore, vocab: Vocabulary
) -> None:
    with FeatureStoreWriter(tmp_path / "s") as writer:
        writer.add("1", store["1"])
    first, second = captions.split("train")[:2]
    images = (replace(first, id="cats/1", file="cats/1.jpg"), replace(second, id="dogs/1", file="dogs/1.jpg"))
    with pytest.raises(FeatureError, match="images 'cats/1' and 'dogs/1' of split 'train' would share features '1'"):
        CaptionDataset(replace(captions, images=images), FeatureStore(tmp_path / "s"), vocab, split="train")
