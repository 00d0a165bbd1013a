"""X-LAN and the rows of the paper's ablation as graphs: what `xlan.model.xlan` computes."""

from __future__ import annotations

import numpy as np

from xlan.export import borders
from xlan.export.attention import Cache, Conventional, Layer, XLinear, activation
from xlan.export.borders import REGIONS, Recipe
from xlan.export.graph import Graph
from xlan.model.spec import XLANSpec


def recipe(spec: XLANSpec) -> Recipe:
    """The two graphs of an X-LAN."""
    return Recipe(lambda g: _encoder(g, spec), lambda g: _decoder(g, spec))


def _block(spec: XLANSpec, name: str) -> XLinear:
    return XLinear(name, spec.dim, spec.heads, spec.hidden_dim, spec.sigma, released=spec.form == "released")


def _decoder_attention(spec: XLANSpec) -> Layer:
    name = "decoder.attention"
    if spec.decoder_attention == "conventional":
        return Conventional(name, spec.dim, spec.heads * spec.hidden_dim)
    return _block(spec, name)


def region_update(g: Graph, name: str, dim: int, attended: str, regions: str) -> str:
    """`LayerNorm(ReLU(W [v̂, x_i]) + x_i)`, Eq. 7: `attended` is `[B, 1, D]` or `[B, N, D]`."""
    weight = g.array(f"{name}.linear.weight", dim, 2 * dim)
    told = g.multiply(attended, f"{name}.linear.attended", weight[:, :dim])
    told = g.add(told, g.vector(f"{name}.linear.bias", dim))
    update = g.op("Relu", g.add(g.multiply(regions, f"{name}.linear.regions", weight[:, dim:]), told))
    return g.layer_norm(g.add(update, regions), f"{name}.norm", dim)


def lstm(g: Graph, gates: str, cell: str) -> tuple[str, str]:
    """Hidden state and cell `[R, D]` from gates `[R, 4D]` and the cell before."""
    let_in, keep, new, let_out = g.split(gates, 4)
    cell = g.add(g.mul(g.op("Sigmoid", keep), cell), g.mul(g.op("Sigmoid", let_in), g.op("Tanh", new)))
    return g.mul(g.op("Sigmoid", let_out), g.op("Tanh", cell)), cell


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

    layer = _decoder_attention(spec)
    cache = layer.project(g, values, mask)
    borders.remember(g, "keys", cache.keys, [layer.heads, REGIONS, layer.key_width])
    borders.remember(g, "values", cache.values, [layer.heads, REGIONS, layer.value_width])
    _, for_image, _ = _input_weights(g, spec)
    halves = [g.array(f"decoder.lstm.bias_{side}", 4 * dim).astype(np.float32) for side in ("ih", "hh")]
    gates = g.multiply(summary, "decoder.lstm.image", for_image)
    borders.remember(g, "gates", g.add(gates, g.tensor("decoder.lstm.bias", halves[0] + halves[1])), [4 * dim])


def _input_weights(g: Graph, spec: XLANSpec) -> list[np.ndarray]:
    """Columns of the LSTM's input weights for word, image and context; added ones share theirs."""
    parts = 2 if spec.form == "released" else 3
    weight = g.array("decoder.lstm.weight_ih", 4 * spec.dim, parts * spec.dim)
    words, image, *context = np.split(weight, parts, axis=1)
    return [words, image, context[0] if context else image]


def _decoder(g: Graph, spec: XLANSpec) -> None:
    released, dim = spec.form == "released", spec.dim
    layer = _decoder_attention(spec)
    tokens = g.input("tokens", "int64", [borders.ROWS])
    mask = borders.recall_mask(g)
    keys = borders.recall(g, "keys", [layer.heads, REGIONS, layer.key_width])
    values = borders.recall(g, "values", [layer.heads, REGIONS, layer.value_width])
    image_gates = borders.recall(g, "gates", [4 * dim])
    hidden, cell, context = (borders.state(g, name, [dim]) for name in ("hidden", "cell", "context"))

    words = g.embed(tokens, "decoder.embed", spec.vocab_size, dim)
    if released:
        words = activation(g, words, spec.sigma)
    for_words, _, for_context = _input_weights(g, spec)
    recurrent = g.array("decoder.lstm.weight_hh", 4 * dim, dim)
    weight = np.concatenate([for_words, for_context, recurrent], axis=1)
    gates = g.multiply(g.concat(words, context, hidden), "decoder.lstm.inputs", weight)
    gates = g.add(borders.per_image(g, gates, image_gates, 4 * dim), g.unsqueeze(image_gates, 1))
    hidden, cell = lstm(g, borders.per_row(g, gates, 4 * dim), cell)

    found = layer.attend(g, borders.per_image(g, hidden, image_gates, dim), Cache(keys, values, mask))
    attended = borders.per_row(g, found.feature, dim)
    if released:
        attended = g.linear(g.concat(hidden, attended), "decoder.attended_linear", 2 * dim, dim)
        attended = g.layer_norm(attended, "decoder.attended_norm", dim)
    joined = g.linear(g.concat(attended, hidden), "decoder.context_linear", 2 * dim, 2 * dim)
    content, gate = g.split(joined, 2)
    context = g.mul(content, g.op("Sigmoid", gate))

    logits = g.linear(context, "decoder.logits", dim, spec.vocab_size)
    borders.decoder_outputs(g, logits, spec.vocab_size, found.spatial, found.channel, dim, mask.bias)
    for name, value in (("hidden", hidden), ("cell", cell), ("context", context)):
        borders.next_state(g, name, value, [dim])
