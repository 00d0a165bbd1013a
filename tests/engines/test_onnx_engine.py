"""The onnx engine gives what the torch engine gives."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from xlan import Regions, TorchEngine, build_model
from xlan.engines.interface import Engine, SearchRequest
from xlan.engines.load import load
from xlan.engines.onnx_engine import OnnxEngine, OnnxModel
from xlan.engines.onnx_session import OnnxSession
from xlan.engines.onnx_weights import MappedWeights
from xlan.errors import DataError, DecodingError, ModelError, ShapeError, WeightsError
from xlan.export.captioner import captioner_graphs
from xlan.types import SpecialIds

SPECIAL = SpecialIds(pad=0, bos=1, eos=2, unk=3)
WORDS, WIDTH = 30, 12
PLAIN = SearchRequest(
    max_length=8, forbidden=frozenset({0, 1}), bad_endings=frozenset({5, 6}), never_named=frozenset({0, 1, 2, 3})
)
REQUESTS = {
    "greedy": replace(PLAIN, beams=1),
    "beam": PLAIN,
    "earlier": replace(PLAIN, rule="earlier", beams=4),
    "everything": replace(PLAIN, attention=True, runners_up=3),
    "samples": replace(PLAIN, samples=3, seed=3, attention=True),
    "top p": replace(PLAIN, samples=2, seed=5, top_p=0.8, temperature=1.5),
    "required": replace(PLAIN, required=(((7,), (8, 9)), ((10,),)), attention=True),
    "required samples": replace(PLAIN, samples=2, required=(((7,),),)),
}


@pytest.fixture(
    scope="module", params=["xlan-tiny", "xtransformer-tiny", "transformer-tiny", "updown-lb-tiny", "lstm-tiny"]
)
def engines(request: pytest.FixtureRequest) -> tuple[OnnxEngine, TorchEngine]:
    """A model whose sentences end at different lengths, on both."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(request.param, vocab_size=WORDS, feature_dim=WIDTH).eval()
        for parameter in model.parameters():
            parameter.data += 0.15 * torch.randn_like(parameter)
        model.decoder.logits.bias.data[SPECIAL.eos] += 1.0
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    encoder, decoder = (
        OnnxSession.of_graph(graph, "part", source="test")
        for graph in captioner_graphs(model.spec, weights, precision="stored")
    )
    return OnnxEngine(OnnxModel(encoder, decoder), SPECIAL, {}), TorchEngine(model, SPECIAL)


def images(*counts: int) -> list[Regions]:
    random = np.random.default_rng(1)
    return [Regions(random.normal(size=(n, WIDTH)).astype(np.float32), np.zeros((n, 4), np.float32)) for n in counts]


@pytest.mark.parametrize("name", REQUESTS)
def test_captions_are_the_same(engines: tuple[Engine, Engine], name: str) -> None:
    request, regions = REQUESTS[name], images(4, 6, 1, 6, 3)
    for ours, theirs in zip(*(engine.decode(regions, request) for engine in engines), strict=True):
        assert [(one.ids, one.finished) for one in ours] == [(one.ids, one.finished) for one in theirs]
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
            assert a.total == pytest.approx(b.total, abs=1e-4)
            assert (a.spatial is None) == (b.spatial is None)
            assert request.attention or a.spatial is None
            if a.spatial is not None and b.spatial is not None:
                np.testing.assert_allclose(a.spatial, b.spatial, atol=1e-4)
            assert (a.channel is None) == (b.channel is None)
            if a.channel is not None and b.channel is not None:
                np.testing.assert_allclose(a.channel, b.channel, atol=1e-4)
            assert [[i for i, _ in place] for place in a.runners_up] == [
                [i for i, _ in place] for place in b.runners_up
            ]
            for one, two in zip(a.runners_up, b.runners_up, strict=True):
                np.testing.assert_allclose([p for _, p in one], [p for _, p in two], atol=1e-4)


def test_scores_are_the_same(engines: tuple[Engine, Engine]) -> None:
    sentences = [[[4, 5, 6], [7]], [], [[8, 9, 10, 11, 12]]]
    for ours, theirs in zip(*(engine.score(images(4, 2, 5), sentences) for engine in engines), strict=True):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


def test_encodings_stand_for_their_images(engines: tuple[Engine, Engine]) -> None:
    regions, sentences = images(4, 2, 5), [[[4, 5, 6], [7]], [], [[8, 9, 10, 11, 12]]]
    for engine in engines:
        encodings = engine.encode(regions)
        assert [len(one) for one in encodings] == [4, 2, 5]
        alone = [one for image in regions for one in engine.encode([image])]
        for one, other in zip(encodings, alone, strict=True):
            assert one.arrays.keys() == other.arrays.keys()
            for name, array in one.arrays.items():
                np.testing.assert_allclose(array, other.arrays[name], atol=1e-4)
        traced = replace(PLAIN, attention=True)
        for ours, theirs in zip(engine.decode(encodings, traced), engine.decode(regions, traced), strict=True):
            assert [one.ids for one in ours] == [one.ids for one in theirs]
            assert ours[0].spatial is None or ours[0].spatial.shape == theirs[0].spatial.shape  # type: ignore[union-attr]
        for got, expected in zip(engine.score(encodings, sentences), engine.score(regions, sentences), strict=True):
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-4)


def test_encodings_of_others_are_refused(engines: tuple[Engine, Engine]) -> None:
    regions = images(3, 3)
    ours, theirs = (engine.encode(regions) for engine in engines)
    for engine, wrong in zip(engines, (theirs, ours), strict=True):
        assert engine.encode([]) == []
        with pytest.raises(ShapeError, match="expected encodings that this engine made with this model"):
            engine.score(wrong, [[[4]], [[4]]])
        with pytest.raises(ShapeError, match="expected regions or encodings for all 2 images, got 1 encodings"):
            engine.decode([regions[0], wrong[0]], PLAIN)  # type: ignore[list-item]


def test_a_caption_does_not_depend_on_its_batch(engines: tuple[Engine, Engine]) -> None:
    engine, _ = engines
    regions = images(4, 6, 1)
    together = engine.decode(regions, PLAIN)
    for alone, expected in zip(regions, together, strict=True):
        assert [one.ids for one in engine.decode([alone], PLAIN)[0]] == [one.ids for one in expected]


def test_what_cannot_be_is_refused_alike(engines: tuple[Engine, Engine]) -> None:
    wrong = [Regions(np.zeros((3, WIDTH + 1), np.float32), np.zeros((3, 4), np.float32))]
    crowded = replace(PLAIN, max_length=2, required=(((7, 8, 9),),))
    messages = []
    for engine in engines:
        assert engine.decode([], PLAIN) == []
        with pytest.raises(ShapeError, match=rf"expected features \[N, {WIDTH}\], got \[3, {WIDTH + 1}\]"):
            engine.decode(wrong, PLAIN)
        with pytest.raises(ShapeError, match="expected sentences for each of 1 images, got 0"):
            engine.score(images(2), [])
        with pytest.raises(DecodingError) as caught:
            engine.decode(images(2), crowded)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_an_engine_can_be_sent_to_another_process(engines: tuple[Engine, Engine]) -> None:
    copy = pickle.loads(pickle.dumps(engines[0]))
    assert copy.decode(images(3), PLAIN)[0][0].ids == engines[0].decode(images(3), PLAIN)[0][0].ids


def test_engines_are_chosen_by_name_and_device(model_directory: Path) -> None:
    assert load(model_directory).engine.name == "onnx"
    assert load(model_directory, engine="torch").engine.name == "torch"
    with pytest.raises(ModelError, match="the onnx engine computes on the cpu, got device 'cuda'"):
        load(model_directory, engine="onnx", device="cuda")
    with pytest.raises(ModelError, match="engine: expected auto, onnx, torch, got 'tvm'"):
        load(model_directory, engine="tvm")  # type: ignore[arg-type]


def test_descriptions_agree(model_directory: Path) -> None:
    ours, theirs = (load(model_directory, engine=name).engine.description for name in ("onnx", "torch"))
    assert ours["architecture"] == theirs["architecture"]
    assert ours["parameters"] == theirs["parameters"]


def test_without_onnxruntime_torch_is_taken(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlan.engines.load.is_installed", lambda _: False)
    assert load(model_directory).engine.name == "torch"


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    save_file({"a": np.arange(6, dtype=np.float16).reshape(2, 3), "b": np.float32([1.5])}, tmp_path / "w.safetensors")
    weights = MappedWeights(tmp_path / "w.safetensors")
    assert set(weights) == {"a", "b"}
    weights.release()
    np.testing.assert_array_equal(weights["a"], np.arange(6).reshape(2, 3))
    assert not weights["a"].flags.writeable


def test_weights_that_cannot_be_mapped(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    with pytest.raises(DataError, match="cannot be read"):
        MappedWeights(file)
    file.write_bytes(b"no header at all")
    with pytest.raises(WeightsError, match="not a valid safetensors file"):
        MappedWeights(file)
    save_file({"a": np.arange(3)}, file)
    with pytest.raises(WeightsError, match="a is stored as I64, expected float32 or float16"):
        MappedWeights(file)


def test_graphs_of_something_else_are_refused(engines: tuple[OnnxEngine, TorchEngine]) -> None:
    encoder = engines[0].model._encoder
    with pytest.raises(ModelError, match="not the encoder and decoder of a captioning model"):
        OnnxModel(encoder, encoder)


@pytest.mark.parametrize(("precision", "engine"), [("int8", "onnx"), ("bf16", "torch")])
def test_fewer_bits_choose_their_engine_and_hardly_change_scores(
    model_directory: Path, precision: str, engine: str
) -> None:
    loaded = load(model_directory, precision=precision)  # type: ignore[arg-type]
    assert loaded.engine.name == engine
    random = np.random.default_rng(0)
    regions = [Regions(random.normal(size=(5, 1280)).astype(np.float32), np.zeros((5, 4), np.float32))]
    exact = load(model_directory).engine.score(regions, [[[4, 5, 6]]])[0][0]
    np.testing.assert_allclose(loaded.engine.score(regions, [[[4, 5, 6]]])[0][0], exact, atol=0.1)
    other = {"onnx": "torch", "torch": "onnx"}[engine]
    with pytest.raises(ModelError, match=f"precision {precision} goes with the {engine} engine, got '{other}'"):
        load(model_directory, precision=precision, engine=other)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="precision: expected float32, int8, bf16, got 'int3'"):
        load(model_directory, precision="int3")  # type: ignore[arg-type]


def test_onnxruntime_reports_nothing_about_this_computer(tmp_path: Path) -> None:
    """It would note its process and an id of the computer in the user's folder, for its telemetry."""
    code = "from xlan import Captioner; Captioner.from_pretrained(engine='onnx')"
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    kept = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", code], env={**kept, **home}, timeout=120, check=True)
    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name]
