"""The graphs of every architecture compute what the PyTorch model computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from xlan.errors import ModelError, WeightsError
from xlan.export.captioner import captioner_graphs
from xlan.model.spec import model_spec

IMAGES, REGIONS, PER_IMAGE, STEPS = 3, 5, 2, 4


@pytest.fixture
def both(small_model, session):
    def make(name, precision="float32"):
        model, weights = small_model(name)
        encoder, decoder = captioner_graphs(model.spec, weights, precision=precision)
        return model, session(encoder), session(decoder)

    return make


def walk(model, encode, decode):
    """Log-probabilities and attention of both along the same words, with an image of fewer regions among others."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(IMAGES, REGIONS, model.feature_dim)).astype(np.float32)
    mask = np.arange(REGIONS) < np.array([[REGIONS], [2], [REGIONS]])
    features[~mask] = np.nan  # whatever stands where no region is has no effect
    memory = {
        name: value for name, value in encode({"features": features, "mask": mask}).items() if name in decode.inputs
    }
    rows = IMAGES * PER_IMAGE
    sizes = {"rows": rows, "words": 0}
    states = {key: shape for key, shape in decode.inputs.items() if key.startswith("state.")}
    state = {key: np.zeros([sizes.get(d, d) for d in shape], np.float32) for key, shape in states.items()}
    with torch.inference_mode():
        theirs = model.start(model.encode(torch.from_numpy(features), torch.from_numpy(mask)), trace=True)
        theirs = theirs.select(torch.arange(IMAGES).repeat_interleave(PER_IMAGE))
        for _ in range(STEPS):
            tokens = rng.integers(0, model.vocab_size, rows)
            expected, theirs = model.step(torch.from_numpy(tokens), theirs)
            got = decode({"tokens": tokens, **memory, **state})
            state = {key.replace("next.", "state."): value for key, value in got.items() if key.startswith("next.")}
            yield got, expected.numpy(), theirs.trace


def test_float32_equals_pytorch(name, both):
    for got, log_probs, trace in walk(*both(name)):
        np.testing.assert_allclose(got["log_probs"], log_probs, atol=1e-4, rtol=0)
        assert ("spatial" in got) == (trace is not None)
        if trace is None:
            continue
        np.testing.assert_allclose(got["spatial"], trace.spatial.numpy(), atol=1e-5, rtol=0)
        assert ("channel" in got) == (trace.channel is not None)
        if trace.channel is not None:
            np.testing.assert_allclose(got["channel"], trace.channel.numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["xlan-tiny"])
@pytest.mark.parametrize(("precision", "within"), [("float16", 0.02), ("int8", 0.3)])
def test_smaller_weights_stay_close(name, precision, within, both):
    steps = walk(*both(name, precision))
    worst = max(float(np.abs(got["log_probs"] - log_probs).max()) for got, log_probs, _ in steps)
    assert 1e-5 < worst < within


def test_graphs_pass_the_checker(name, small_model):
    model, weights = small_model(name)
    for graph in captioner_graphs(model.spec, weights):
        onnx.checker.check_model(onnx.load_from_string(graph.model("part", {})), full_check=True)


def test_what_a_row_gives_in_8_bits_does_not_depend_on_its_neighbours(both):
    model, encode, _ = both("xlan-tiny", "int8")
    features = np.random.default_rng(0).normal(size=(4, REGIONS, model.feature_dim)).astype(np.float32)
    features[1:] *= 50
    mask = np.ones((4, REGIONS), bool)
    together = encode({"features": features, "mask": mask})
    alone = encode({"features": features[:1], "mask": mask[:1]})
    for name, value in alone.items():
        np.testing.assert_allclose(together[name][:1], value, atol=1e-5, err_msg=name)


def test_weights_beside_the_graph_are_the_large_ones(small_model):
    model, weights = small_model("xlan-tiny")
    encoder, _ = captioner_graphs(model.spec, weights)
    content, beside = encoder.model_and_weights("encoder", {})
    tensors = {t.name: t for t in onnx.load_from_string(content).graph.initializer}
    external = {name for name, t in tensors.items() if t.data_location == onnx.TensorProto.EXTERNAL}
    assert external == set(beside)
    assert len(content) < 60_000


def test_weights_that_do_not_fit_are_named(small_model):
    model, weights = small_model("xlan-tiny")
    with pytest.raises(WeightsError, match=r"a\.safetensors: does not fit the architecture; unexpected: extra"):
        captioner_graphs(model.spec, {**weights, "extra": np.zeros(1)}, source="a.safetensors")
    without = {name: array for name, array in weights.items() if name != "decoder.logits.bias"}
    with pytest.raises(WeightsError, match=r"missing: decoder\.logits\.bias"):
        captioner_graphs(model.spec, without)
    with pytest.raises(WeightsError, match=r"decoder\.logits\.bias has shape \[3\] instead of \[23\]"):
        captioner_graphs(model.spec, {**weights, "decoder.logits.bias": np.zeros(3)})


def test_values_that_float16_cannot_hold_are_refused(small_model):
    model, weights = small_model("xlan-tiny")
    weights["decoder.logits.bias"] = np.full(model.vocab_size, 1e6, np.float32)
    with pytest.raises(ModelError, match=r"decoder\.logits\.bias has values too large for float16"):
        captioner_graphs(model.spec, weights, precision="float16")


def test_an_architecture_without_a_graph_is_refused():
    with pytest.raises(ModelError, match=r"GCN-LSTM .* boxes .* cannot be exported, and runs with the torch"):
        captioner_graphs(model_spec("gcn-lstm-spatial-tiny"), {})
