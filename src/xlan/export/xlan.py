"""X-LAN and the rows of the paper's ablation as graphs: what `xlan.model.xlan` computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xlan.export import borders
from xlan.export.attention import Cache, Conventional, Layer, Mask, XLinear, activation
from xlan.export.borders import REGIONS, Recipe
from xlan.export.graph import Graph
from xlan.model.spec import XLANSpec


def recipe(spec: XLANSpec) -> Recipe:
    """The two graphs of an X-LAN."""
    return Recipe(lambda g: _encoder(g, spec), lambda g: lstm_decoder(g, _lstm(spec)))


def _block(spec: XLANSpec, name: str) -> XLinear:
    return XLinear(name, spec.dim, spec.heads, spec.hidden_dim, spec.sigma, released=spec.form == "released")


def _decoder_attention(spec: XLANSpec) -> Layer:
    name = "decoder.attention"
    if spec.decoder_attention == "conventional":
        return Conventional(name, spec.dim, spec.dim, spec.heads * spec.hidden_dim)
    return _block(spec, name)


def region_update(g: Graph, name: str, dim: int, attended: str, regions: str) -> str:
    """`LayerNorm(ReLU(W [v̂, x_i]) + x_i)`, Eq. 7: `attended` is `[B, 1, D]` or `[B, N, D]`."""
    weight = g.array(f"{name}.linear.weight", dim, 2 * dim)
    told = g.multiply(attended, f"{name}.linear.attended", weight[:, :dim])
    told = g.add(told, g.vector(f"{name}.linear.bias", dim))
    update = g.op("Relu", g.add(g.multiply(regions, f"{name}.linear.regions", weight[:, dim:]), told))
    return g.layer_norm(g.add(update, regions), f"{name}.norm", dim)


def _encoder(g: Graph, spec: XLANSpec) -> None:
    released, dim = spec.form == "released", spec.dim
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    keys = g.linear(features, "encoder.embed", spec.feature_dim, dim)
    if released:
        keys = activation(g, keys, spec.sigma)
    values = keys
    found = [borders.masked_mean(g, keys, mask)]  # v̂(0)
    for m in range(spec.depth):
        name = f"encoder.stack.layers.{m}"
        block = _block(spec, f"{name}.block")
        cache = block.project(g, keys, mask, values=values)
        attended = block.attend(g, g.unsqueeze(found[-1], 1), cache).feature  # [B, 1, D]
        if released:  # keys and values are one tensor
            keys = values = region_update(g, f"{name}.update_keys", dim, attended, keys)
        else:
            if m < spec.depth - 1:
                keys = region_update(g, f"{name}.update_keys", dim, attended, keys)
            values = region_update(g, f"{name}.update_values", dim, attended, values)
        found.append(g.squeeze(attended, 1))
    summary = g.linear(g.concat(*found), "encoder.W_G", dim * len(found), dim)  # Eq. 9
    if released:
        summary = g.layer_norm(summary, "encoder.summary_norm", dim)

    remember_image(g, _lstm(spec), values, summary, mask)


@dataclass(frozen=True)
class LSTMDecoder:
    """What `xlan.model.xlan.LSTMDecoder` is built from.

    Attributes:
        vocab_size: number of ids.
        dim: width of everything inside.
        attention: asked by the hidden state.
        word_sigma: activation of the words, None for none.
        add_summary: the image is added to the previous context instead of standing beside it.
        project_attended: a layer and a norm between attention and context.
    """

    vocab_size: int
    dim: int
    attention: Layer
    word_sigma: str | None
    add_summary: bool
    project_attended: bool


def _lstm(spec: XLANSpec) -> LSTMDecoder:
    released = spec.form == "released"
    sigma = spec.sigma if released else None
    return LSTMDecoder(spec.vocab_size, spec.dim, _decoder_attention(spec), sigma, released, released)


def lstm_bias(g: Graph, name: str, width: int) -> str:
    """The two biases of an LSTM, which act as one."""
    halves = [g.array(f"{name}.bias_{side}", width).astype(np.float32) for side in ("ih", "hh")]
    return g.tensor(f"{name}.bias", halves[0] + halves[1])


def lstm_cell(g: Graph, gates: str, cell: str) -> tuple[str, str]:
    """Hidden state and cell `[R, D]` from gates `[R, 4D]`."""
    let_in, keep, new, let_out = g.split(gates, 4)
    cell = g.add(g.mul(g.op("Sigmoid", keep), cell), g.mul(g.op("Sigmoid", let_in), g.op("Tanh", new)))
    return g.mul(g.op("Sigmoid", let_out), g.op("Tanh", cell)), cell


def _input_weights(g: Graph, decoder: LSTMDecoder) -> list[np.ndarray]:
    """Columns of the LSTM's input weights for word, image and context; added ones share theirs."""
    parts = 2 if decoder.add_summary else 3
    weight = g.array("decoder.lstm.weight_ih", 4 * decoder.dim, parts * decoder.dim)
    words, image, *context = np.split(weight, parts, axis=1)
    return [words, image, context[0] if context else image]


def remember_image(g: Graph, decoder: LSTMDecoder, regions: str, summary: str, mask: Mask) -> None:
    """Projected regions, and the image's share of the gates."""
    remember_regions(g, decoder.attention, regions, mask)
    gates = g.multiply(summary, "decoder.lstm.image", _input_weights(g, decoder)[1])
    bias = lstm_bias(g, "decoder.lstm", 4 * decoder.dim)
    borders.remember(g, "gates", g.add(gates, bias), [4 * decoder.dim])


def remember_regions(g: Graph, layer: Layer, regions: str, mask: Mask) -> None:
    """Keys and values of regions `[B, N, D]`."""
    cache = layer.project(g, regions, mask)
    borders.remember(g, "keys", cache.keys, [layer.heads, REGIONS, layer.key_width])
    borders.remember(g, "values", cache.values, [layer.heads, REGIONS, layer.value_width])


def recall_regions(g: Graph, layer: Layer) -> Cache:
    """The same, coming into the decoder."""
    mask = borders.recall_mask(g)
    keys = borders.recall(g, "keys", [layer.heads, REGIONS, layer.key_width])
    return Cache(keys, borders.recall(g, "values", [layer.heads, REGIONS, layer.value_width]), mask)


def add_image(g: Graph, gates: str, image: str, width: int) -> str:
    """Gates `[R, W]` with their image's share `[B, W]` added."""
    return borders.per_row(g, g.add(borders.per_image(g, gates, image, width), g.unsqueeze(image, 1)), width)


def lstm_decoder(g: Graph, decoder: LSTMDecoder) -> None:
    """One step."""
    dim, layer = decoder.dim, decoder.attention
    tokens = g.input("tokens", "int64", [borders.ROWS])
    cache = recall_regions(g, layer)
    image_gates = borders.recall(g, "gates", [4 * dim])
    hidden, cell, context = (borders.state(g, name, [dim]) for name in ("hidden", "cell", "context"))

    words = g.embed(tokens, "decoder.embed", decoder.vocab_size, dim)
    if decoder.word_sigma is not None:
        words = activation(g, words, decoder.word_sigma)
    for_words, _, for_context = _input_weights(g, decoder)
    recurrent = g.array("decoder.lstm.weight_hh", 4 * dim, dim)
    weight = np.concatenate([for_words, for_context, recurrent], axis=1)
    gates = g.multiply(g.concat(words, context, hidden), "decoder.lstm.inputs", weight)
    hidden, cell = lstm_cell(g, add_image(g, gates, image_gates, 4 * dim), cell)

    found = layer.attend(g, borders.per_image(g, hidden, image_gates, dim), cache)
    attended = borders.per_row(g, found.feature, dim)
    if decoder.project_attended:
        attended = g.linear(g.concat(hidden, attended), "decoder.attended_linear", 2 * dim, dim)
        attended = g.layer_norm(attended, "decoder.attended_norm", dim)
    context = g.glu(g.linear(g.concat(attended, hidden), "decoder.context_linear", 2 * dim, 2 * dim))

    logits = g.linear(context, "decoder.logits", dim, decoder.vocab_size)
    borders.decoder_outputs(g, logits, decoder.vocab_size, found, dim)
    for name, value in (("hidden", hidden), ("cell", cell), ("context", context)):
        borders.next_state(g, name, value, [dim])
