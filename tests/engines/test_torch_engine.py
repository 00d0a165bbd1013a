"""The engine on PyTorch: what it finds, what it says of given sentences, where it computes."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path

import numpy as np
import pytest

from xlan import Captioner, Regions, TorchEngine, Vocabulary, build_model
from xlan.engines.interface import SearchRequest
from xlan.errors import ModelError, ShapeError
from xlan.vision.padding import pad_regions
from xlan.vision.regions import pad_arrays

WORDS = Vocabulary.from_words(["a", "dog", "cat", "runs", "sits", "fast"])


@pytest.fixture(params=["xlan-tiny", "xtransformer-tiny"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    import torch

    torch.manual_seed(3)
    return TorchEngine(build_model(request.param, vocab_size=len(WORDS), feature_dim=8), WORDS.special)


def regions(*counts: int) -> list[Regions]:
    random = np.random.default_rng(0)
    return [Regions(random.random((n, 8), dtype=np.float32), np.zeros((n, 4), np.float32)) for n in counts]


def test_a_found_caption_scores_as_it_was_found(engine: TorchEngine) -> None:
    """Stepping and teacher forcing are two ways to the same numbers."""
    images = regions(3, 5)
    found = engine.decode(images, SearchRequest(beams=4, max_length=8))
    scores = engine.score(images, [[one.words for one in image] for image in found])
    for image, values in zip(found, scores, strict=True):
        for one, score in zip(image, values, strict=True):
            assert score.shape == (len(one.words) + 1,)  # the end has a probability too, also where it was cut off
            np.testing.assert_allclose(score[: len(one.ids)], one.log_probs, atol=1e-5)


def test_scores_do_not_depend_on_the_pass(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    images = regions(2, 4, 3)
    sentences = [[[4, 5], [6]], [], [[5, 7, 8], [4], []]]
    whole = engine.score(images, sentences)
    assert [[len(one) for one in image] for image in whole] == [[3, 2], [], [4, 2, 1]]
    monkeypatch.setattr("xlan.engines.interface._SENTENCES_PER_PASS", 2)
    for one, other in zip(whole, engine.score(images, sentences), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_attention_has_as_many_regions_as_the_image(engine: TorchEngine) -> None:
    for image, found in zip((2, 6), engine.decode(regions(2, 6), SearchRequest(attention=True)), strict=True):
        for one in found:
            assert one.spatial is not None
            assert one.spatial.shape == (len(one.ids), image)
            np.testing.assert_allclose(one.spatial.sum(1), 1, atol=1e-5)


def test_nothing_in_nothing_out(engine: TorchEngine) -> None:
    assert engine.decode([], SearchRequest()) == []
    assert engine.score([], []) == []


def test_sentences_for_another_number_of_images_are_refused(engine: TorchEngine) -> None:
    with pytest.raises(ShapeError, match="expected sentences for each of 1 images, got 2"):
        engine.score(regions(3), [[], []])


def test_padding_of_tensors_and_arrays_is_the_same() -> None:
    images = regions(1, 3)
    features, mask = pad_arrays(images, 8)
    assert mask.tolist() == [[True, False, False], [True, True, True]]
    assert not features[0, 1:].any()
    np.testing.assert_array_equal(features[1], images[1].features)
    for array, tensor in zip((features, mask), pad_regions(images, 8), strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())
    with pytest.raises(ShapeError, match=re.escape("regions of image 1: expected features [N, 8], got [0, 8]")):
        pad_arrays(regions(1, 0), 8)


@pytest.mark.parametrize("name", ["cuda:77", "gpu", ""])
def test_devices_that_are_not_there_are_named(model_directory: Path, name: str) -> None:
    with pytest.raises(ModelError, match=rf"^device '{name}' cannot be used here \(.*\); use cpu$"):
        Captioner.from_pretrained(model_directory, device=name)


def _caption(captioner: Captioner) -> str:
    return captioner.caption(np.zeros((40, 40, 3), np.uint8)).text


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_a_forked_process_captions_too(model_directory: Path, engine: str) -> None:
    """With two threads: with one there is no pool whose threads a child would miss."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        captioner = Captioner.from_pretrained(model_directory, engine=engine, threads=2)
        expected = _caption(captioner)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(_caption, (captioner,)).get(timeout=60) == expected
    finally:
        torch.set_num_threads(before)
