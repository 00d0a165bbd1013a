"""Att2in, Att2all, Up-Down and AoANet as graphs: what `xlan.model.att2in`, `.updown` and `.aoanet` compute."""

from __future__ import annotations

import numpy as np

from xlan.export import borders
from xlan.export.attention import Cache, Conventional, Found, Mask, MultiHead, masked_softmax
from xlan.export.borders import REGIONS, Recipe
from xlan.export.graph import Graph
from xlan.export.xlan import lstm
from xlan.model.spec import AOANET_EPSILON, AoANetSpec, Att2inSpec, UpDownSpec

# Att2in and Att2all


def att2in(spec: Att2inSpec) -> Recipe:
    """The two graphs of an Att2in or Att2all."""
    width = spec.dim if spec.embed else spec.feature_dim
    layer = Conventional("decoder.attention", width, spec.attention_dim, query_dim=spec.dim)
    return Recipe(lambda g: _att2in_encoder(g, spec, layer), lambda g: _att2in_decoder(g, spec, layer))


def _att2in_encoder(g: Graph, spec: Att2inSpec, layer: Conventional) -> None:
    regions, mask = borders.encoder_inputs(g, spec.feature_dim)
    if spec.embed:
        regions = g.op("Relu", g.linear(regions, "encoder.embed", spec.feature_dim, spec.dim))
    _remember_cache(g, layer, layer.project(g, regions, mask))


def _att2in_decoder(g: Graph, spec: Att2inSpec, layer: Conventional) -> None:
    dim, step = spec.dim, _Step(g, layer)
    hidden, cell = (borders.state(g, name, [dim]) for name in ("hidden", "cell"))
    words = g.embed(step.tokens, "decoder.embed", spec.vocab_size, dim)
    words = g.op("Relu", words) if spec.embed else words
    found = step.ask(hidden, dim)
    attended = borders.per_row(g, found.feature, layer.value_width)

    for_words = g.array("decoder.cell.weight_ih", 5 * dim, dim)
    for_hidden = g.array("decoder.cell.weight_hh", 5 * dim, dim)
    bias = g.array("decoder.cell.bias_ih", 5 * dim) + g.array("decoder.cell.bias_hh", 5 * dim)
    blocks = 5 if spec.attention_into == "gates" else 2  # the candidates are the last blocks
    for_attended = np.zeros((5 * dim, layer.value_width), np.float32)
    for_attended[-blocks * dim :] = g.array("decoder.W_z.weight", blocks * dim, layer.value_width)
    bias[-blocks * dim :] += g.array("decoder.W_z.bias", blocks * dim)
    weight = np.concatenate([for_words, for_hidden, for_attended], axis=1)
    gates = g.multiply(g.concat(words, hidden, attended), "decoder.cell.inputs", weight)
    gates = g.add(gates, g.tensor("decoder.cell.bias", bias))
    let_in, keep, let_out, one, other = g.split(gates, 5)
    cell = g.add(g.mul(g.op("Sigmoid", keep), cell), g.mul(g.op("Sigmoid", let_in), g.op("Max", one, other)))
    hidden = g.mul(g.op("Sigmoid", let_out), g.op("Tanh", cell))

    step.finish(hidden, dim, spec.vocab_size, found, {"hidden": hidden, "cell": cell}, {"hidden": dim, "cell": dim})


# Up-Down


def updown(spec: UpDownSpec) -> Recipe:
    """The two graphs of an Up-Down."""
    query_dim = 2 * spec.dim if spec.look_back else spec.dim
    layer = Conventional("decoder.attention", spec.dim, spec.attention_dim, query_dim=query_dim)
    return Recipe(lambda g: _updown_encoder(g, spec, layer), lambda g: _updown_decoder(g, spec, layer))


def _updown_weights(g: Graph, spec: UpDownSpec) -> list[np.ndarray]:
    """Columns of the first LSTM's input weights for h², image and word."""
    return np.split(g.array("decoder.attention_lstm.weight_ih", 4 * spec.dim, 3 * spec.dim), 3, axis=1)


def _updown_encoder(g: Graph, spec: UpDownSpec, layer: Conventional) -> None:
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    dim, name = spec.dim, "decoder.attention_lstm"
    regions = g.op("Relu", g.linear(features, "encoder.embed", spec.feature_dim, dim))
    mean = borders.masked_mean(g, features, mask)
    summary = g.op("Relu", g.linear(mean, "encoder.embed_mean", spec.feature_dim, dim))
    _remember_cache(g, layer, layer.project(g, regions, mask))
    bias = g.array(f"{name}.bias_ih", 4 * dim) + g.array(f"{name}.bias_hh", 4 * dim)
    gates = g.multiply(summary, f"{name}.image", _updown_weights(g, spec)[1])
    borders.remember(g, "gates", g.add(gates, g.tensor(f"{name}.bias", bias)), [4 * dim])


def _updown_decoder(g: Graph, spec: UpDownSpec, layer: Conventional) -> None:
    dim, step = spec.dim, _Step(g, layer)
    image = borders.recall(g, "gates", [4 * dim])
    names = ["looking", "looking_cell", "speaking", "speaking_cell", *(["attended"] if spec.look_back else [])]
    looking, looking_cell, speaking, speaking_cell, *before = (borders.state(g, name, [dim]) for name in names)
    words = g.op("Relu", g.embed(step.tokens, "decoder.embed", spec.vocab_size, dim))
    for_spoken, _, for_words = _updown_weights(g, spec)
    recurrent = g.array("decoder.attention_lstm.weight_hh", 4 * dim, dim)
    weight = np.concatenate([for_words, for_spoken, recurrent], axis=1)
    gates = g.multiply(g.concat(words, speaking, looking), "decoder.attention_lstm.inputs", weight)
    gates = g.add(borders.per_image(g, gates, image, 4 * dim), g.unsqueeze(image, 1))
    looking, looking_cell = lstm(g, borders.per_row(g, gates, 4 * dim), looking_cell)

    found = step.ask(g.concat(looking, *before), layer.query_dim or dim)
    attended = borders.per_row(g, found.feature, dim)
    name = "decoder.language_lstm"
    inputs = g.array(f"{name}.weight_ih", 4 * dim, 2 * dim)
    weight = np.concatenate([inputs, g.array(f"{name}.weight_hh", 4 * dim, dim)], axis=1)
    bias = g.array(f"{name}.bias_ih", 4 * dim) + g.array(f"{name}.bias_hh", 4 * dim)
    gates = g.multiply(g.concat(attended, looking, speaking), f"{name}.inputs", weight)
    speaking, speaking_cell = lstm(g, g.add(gates, g.tensor(f"{name}.bias", bias)), speaking_cell)

    values = dict(zip(names, [looking, looking_cell, speaking, speaking_cell, attended], strict=False))
    step.finish(speaking, dim, spec.vocab_size, found, values, dict.fromkeys(names, dim))


# AoANet


def aoanet(spec: AoANetSpec) -> Recipe:
    """The two graphs of an AoANet."""
    return Recipe(lambda g: _aoa_encoder(g, spec), lambda g: _aoa_decoder(g, spec))


def _deviation_norm(g: Graph, x: str, name: str, width: int) -> str:
    """`a (x − mean) / (s + ε) + b`, s the standard deviation with N − 1."""
    centred = g.op("Sub", x, g.op("ReduceMean", x, g.ints(-1), keepdims=1))
    squares = g.op("ReduceSumSquare", centred, g.ints(-1), keepdims=1)
    deviation = g.op("Sqrt", g.mul(squares, g.number(1 / max(1, width - 1))))
    scaled = g.op("Div", centred, g.add(deviation, g.number(AOANET_EPSILON)))
    return g.add(g.mul(scaled, g.vector(f"{name}.weight", width)), g.vector(f"{name}.bias", width))


def _glu(g: Graph, x: str, name: str, dim: int) -> str:
    content, gate = g.split(g.linear(x, name, 2 * dim, 2 * dim), 2)
    return g.mul(content, g.op("Sigmoid", gate))


def _heads(g: Graph, x: str, spec: AoANetSpec) -> str:
    return g.transpose(g.reshape(x, 0, 0, spec.heads, spec.dim // spec.heads), 0, 2, 1, 3)


def _dot_product(g: Graph, query: str, cache: Cache, spec: AoANetSpec) -> Found:
    """Attend with projected queries `[B, H, Q, d]`, without an output projection."""
    scaled = g.mul(query, g.number((spec.dim // spec.heads) ** -0.5))
    weights = masked_softmax(g, g.op("MatMul", scaled, g.transpose(cache.keys, 0, 1, 3, 2)), cache.mask)
    pooled = g.transpose(g.op("MatMul", weights, cache.values), 0, 2, 1, 3)
    return Found(g.reshape(pooled, 0, 0, spec.dim), g.mean(weights, 1), None)


def _aoa_encoder(g: Graph, spec: AoANetSpec) -> None:
    dim = spec.dim
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    regions = g.op("Relu", g.linear(features, "encoder.embed", spec.feature_dim, dim))
    for m in range(spec.depth):
        name = f"encoder.layers.{m}"
        layer = MultiHead(f"{name}.attention", dim, spec.heads)
        query = _deviation_norm(g, regions, f"{name}.norm", dim)
        asked = _heads(g, g.linear(query, f"{name}.attention.W_q", dim, dim), spec)
        found = _dot_product(g, asked, layer.project(g, query, mask), spec)
        regions = g.add(regions, _glu(g, g.concat(found.feature, query), f"{name}.gate", dim))
    regions = _deviation_norm(g, regions, "encoder.norm", dim)
    values, keys = g.split(g.linear(regions, "decoder.attention.W_vk", dim, 2 * dim), 2)
    _remember_cache(g, MultiHead("", dim, spec.heads), Cache(_heads(g, keys, spec), _heads(g, values, spec), mask))
    bias = g.array("decoder.lstm.bias_ih", 4 * dim) + g.array("decoder.lstm.bias_hh", 4 * dim)
    for_image = g.array("decoder.lstm.weight_ih", 4 * dim, 2 * dim)[:, dim:]
    gates = g.multiply(borders.masked_mean(g, regions, mask), "decoder.lstm.image", for_image)
    borders.remember(g, "gates", g.add(gates, g.tensor("decoder.lstm.bias", bias)), [4 * dim])


def _aoa_decoder(g: Graph, spec: AoANetSpec) -> None:
    dim, step = spec.dim, _Step(g, MultiHead("", spec.dim, spec.heads))
    image = borders.recall(g, "gates", [4 * dim])
    hidden, cell, context = (borders.state(g, name, [dim]) for name in ("hidden", "cell", "context"))
    words = g.op("Relu", g.embed(step.tokens, "decoder.embed", spec.vocab_size, dim))
    inputs = g.array("decoder.lstm.weight_ih", 4 * dim, 2 * dim)
    weight = np.concatenate([inputs, g.array("decoder.lstm.weight_hh", 4 * dim, dim)], axis=1)
    gates = g.multiply(g.concat(words, context, hidden), "decoder.lstm.inputs", weight)
    gates = g.add(borders.per_image(g, gates, image, 4 * dim), g.unsqueeze(image, 1))
    hidden, cell = lstm(g, borders.per_row(g, gates, 4 * dim), cell)

    query = _deviation_norm(g, hidden, "decoder.attention.norm", dim)
    query = borders.per_image(g, g.linear(query, "decoder.attention.W_q", dim, dim), step.mask.bias, dim)
    found = _dot_product(g, _heads(g, query, spec), step.cache, spec)
    context = _glu(g, g.concat(borders.per_row(g, found.feature, dim), hidden), "decoder.context_linear", dim)
    values = {"hidden": hidden, "cell": cell, "context": context}
    step.finish(context, dim, spec.vocab_size, found, values, dict.fromkeys(values, dim))


# What their decoders share


def _remember_cache(g: Graph, layer: Conventional | MultiHead, cache: Cache) -> None:
    borders.remember(g, "keys", cache.keys, [layer.heads, REGIONS, layer.key_width])
    borders.remember(g, "values", cache.values, [layer.heads, REGIONS, layer.value_width])


class _Step:
    """One step of a decoder: what comes in first, and what goes out last."""

    def __init__(self, g: Graph, layer: Conventional | MultiHead) -> None:
        self._g, self._layer = g, layer
        self.tokens = g.input("tokens", "int64", [borders.ROWS])
        self.mask: Mask = borders.recall_mask(g)
        keys = borders.recall(g, "keys", [layer.heads, REGIONS, layer.key_width])
        values = borders.recall(g, "values", [layer.heads, REGIONS, layer.value_width])
        self.cache = Cache(keys, values, self.mask)

    def ask(self, query: str, width: int) -> Found:
        """Attend with rows `[R, width]`."""
        return self._layer.attend(self._g, borders.per_image(self._g, query, self.mask.bias, width), self.cache)

    def finish(
        self, spoken: str, dim: int, vocab_size: int, found: Found, values: dict[str, str], widths: dict[str, int]
    ) -> None:
        """Log-probabilities of `spoken` `[R, dim]`, attention, and the next states."""
        logits = self._g.linear(spoken, "decoder.logits", dim, vocab_size)
        borders.decoder_outputs(self._g, logits, vocab_size, found.spatial, None, dim, self.mask.bias)
        for name, width in widths.items():
            borders.next_state(self._g, name, values[name], [width])
