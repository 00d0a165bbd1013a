"""The systems the paper compares with as graphs: what `xlan.model.plain`, `.att2in`, `.updown` and `.aoanet` compute.

GCN-LSTM is not among them: its encoder reads boxes, and runs with the torch engine only.
"""

from __future__ import annotations

import numpy as np

from xlan.export import borders
from xlan.export.attention import Cache, Conventional, Found, Mask, MultiHead, activation, dot_product, split_heads
from xlan.export.borders import Recipe
from xlan.export.graph import Graph
from xlan.export.xlan import (
    LSTMDecoder,
    add_image,
    lstm_bias,
    lstm_cell,
    lstm_decoder,
    recall_regions,
    remember_image,
    remember_regions,
)
from xlan.model.spec import AOANET_EPSILON, AoANetSpec, Att2inSpec, PlainSpec, UpDownSpec


def maxout_cell(g: Graph, gates: str, cell: str) -> tuple[str, str]:
    """Hidden state and cell `[R, D]` from gates `[R, 5D]`: the larger of two candidates counts."""
    let_in, keep, let_out, one, other = g.split(gates, 5)
    new = g.mul(g.op("Sigmoid", let_in), g.op("Max", one, other))
    cell = g.add(g.mul(g.op("Sigmoid", keep), cell), new)
    return g.mul(g.op("Sigmoid", let_out), g.op("Tanh", cell)), cell


def plain(spec: PlainSpec) -> Recipe:
    """LSTM, Show and Tell, LSTM-A₃."""
    return Recipe(lambda g: _plain_encoder(g, spec), lambda g: _plain_decoder(g, spec))


def _turn(g: Graph, spec: PlainSpec, x: str, hidden: str, cell: str) -> tuple[str, str]:
    """One turn of the cell for input and hidden state `[R, D]`."""
    maxout = spec.cell == "maxout"
    width = (5 if maxout else 4) * spec.dim
    sides = [g.array(f"decoder.cell.weight_{side}", width, spec.dim) for side in ("ih", "hh")]
    gates = g.multiply(g.concat(x, hidden), "decoder.cell", np.concatenate(sides, axis=1))
    if maxout or spec.bias:
        gates = g.add(gates, lstm_bias(g, "decoder.cell", width))
    return (maxout_cell if maxout else lstm_cell)(g, gates, cell)


def _plain_encoder(g: Graph, spec: PlainSpec) -> None:
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    vectors = [g.linear(borders.masked_mean(g, features, mask), "encoder.embed", spec.feature_dim, spec.dim)]
    if spec.attributes:
        votes = g.linear(features, "encoder.attributes", spec.feature_dim, spec.attributes)
        votes = g.add(votes, g.transpose(g.squeeze(mask.bias, 1), 0, 2, 1))  # -inf where no region is
        # The logarithm of the mean of exponentials, over the regions that exist.
        pooled = g.op("ReduceLogSumExp", votes, g.ints(1), keepdims=0)
        share = g.op("ReduceMax", g.squeeze(mask.mean, 1, 2), g.ints(1), keepdims=1)  # 1 / number of regions
        likely = g.op("Sigmoid", g.add(pooled, g.op("Log", share)))
        vectors.insert(0, g.linear(likely, "encoder.embed_attributes", spec.attributes, spec.dim))
    zeros = g.mul(vectors[0], g.number(0.0))
    hidden, cell = zeros, zeros
    for vector in vectors:
        hidden, cell = _turn(g, spec, vector, hidden, cell)
    borders.remember(g, "hidden", hidden, [spec.dim])
    borders.remember(g, "cell", cell, [spec.dim])


def _plain_decoder(g: Graph, spec: PlainSpec) -> None:
    tokens = g.input("tokens", "int64", [borders.ROWS])
    begun = borders.state(g, "begun", [1])  # 0 before the first word: then hidden state and cell are the image's
    state = []
    for name in ("hidden", "cell"):
        fresh = g.mul(borders.state(g, name, [spec.dim]), begun)
        first = borders.recall(g, name, [spec.dim])
        state.append(_begin(g, fresh, first, begun, spec.dim))
    words = g.embed(tokens, "decoder.embed", spec.vocab_size, spec.dim)
    if spec.word_relu:
        words = activation(g, words, "relu")
    hidden, cell = _turn(g, spec, words, *state)
    borders.decoder_outputs(g, g.linear(hidden, "decoder.logits", spec.dim, spec.vocab_size), spec.vocab_size, None)
    borders.next_state(g, "hidden", hidden, [spec.dim])
    borders.next_state(g, "cell", cell, [spec.dim])
    borders.next_state(g, "begun", g.add(g.mul(begun, g.number(0.0)), g.number(1.0)), [1])


def _begin(g: Graph, state: str, first: str, begun: str, dim: int) -> str:
    """`state` `[R, D]`, or the image's `first` `[B, D]` where nothing has begun."""
    rest = borders.per_image(g, g.op("Sub", g.number(1.0), begun), first, 1)
    return g.add(state, borders.per_row(g, g.mul(g.unsqueeze(first, 1), rest), dim))


def att2in(spec: Att2inSpec) -> Recipe:
    """Att2in and Att2all."""
    return Recipe(lambda g: _att2in_encoder(g, spec), lambda g: _att2in_decoder(g, spec))


def _att2in_attention(spec: Att2inSpec) -> Conventional:
    return Conventional("decoder.attention", spec.dim, spec.dim if spec.embed else spec.feature_dim, spec.attention_dim)


def _att2in_encoder(g: Graph, spec: Att2inSpec) -> None:
    regions, mask = borders.encoder_inputs(g, spec.feature_dim)
    if spec.embed:
        regions = g.op("Relu", g.linear(regions, "encoder.embed", spec.feature_dim, spec.dim))
    remember_regions(g, _att2in_attention(spec), regions, mask)


def _att2in_decoder(g: Graph, spec: Att2inSpec) -> None:
    dim, layer = spec.dim, _att2in_attention(spec)
    tokens = g.input("tokens", "int64", [borders.ROWS])
    cache = recall_regions(g, layer)
    hidden, cell = (borders.state(g, name, [dim]) for name in ("hidden", "cell"))
    found = layer.attend(g, borders.per_image(g, hidden, cache.keys, dim), cache)
    attended = borders.per_row(g, found.feature, layer.value_width)
    words = g.embed(tokens, "decoder.embed", spec.vocab_size, dim)
    if spec.embed:
        words = activation(g, words, "relu")
    blocks = 5 if spec.attention_into == "gates" else 2
    seen = g.array("decoder.W_z.weight", blocks * dim, layer.value_width).astype(np.float32)
    seen = np.concatenate([np.zeros(((5 - blocks) * dim, layer.value_width), np.float32), seen])
    shift = np.zeros(5 * dim, np.float32)
    shift[(5 - blocks) * dim :] = g.array("decoder.W_z.bias", blocks * dim)
    sides = [g.array(f"decoder.cell.weight_{side}", 5 * dim, dim).astype(np.float32) for side in ("ih", "hh")]
    gates = g.multiply(g.concat(words, hidden, attended), "decoder.cell", np.concatenate([*sides, seen], axis=1))
    gates = g.add(g.add(gates, lstm_bias(g, "decoder.cell", 5 * dim)), g.tensor("decoder.W_z.shift", shift))
    hidden, cell = maxout_cell(g, gates, cell)
    borders.decoder_outputs(g, g.linear(hidden, "decoder.logits", dim, spec.vocab_size), spec.vocab_size, found)
    borders.next_state(g, "hidden", hidden, [dim])
    borders.next_state(g, "cell", cell, [dim])


def updown(spec: UpDownSpec) -> Recipe:
    """Up-Down, with or without a look back."""
    return Recipe(lambda g: _updown_encoder(g, spec), lambda g: _updown_decoder(g, spec))


def _updown_attention(spec: UpDownSpec) -> Conventional:
    asking = 2 * spec.dim if spec.look_back else spec.dim
    return Conventional("decoder.attention", asking, spec.dim, spec.attention_dim)


def _looking_weights(g: Graph, dim: int) -> list[np.ndarray]:
    """Columns of the first LSTM's input weights for what was spoken, image and word."""
    return np.split(g.array("decoder.attention_lstm.weight_ih", 4 * dim, 3 * dim), 3, axis=1)


def _updown_encoder(g: Graph, spec: UpDownSpec) -> None:
    dim = spec.dim
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    regions = g.op("Relu", g.linear(features, "encoder.embed", spec.feature_dim, dim))
    mean = borders.masked_mean(g, features, mask)
    summary = g.op("Relu", g.linear(mean, "encoder.embed_mean", spec.feature_dim, dim))
    remember_regions(g, _updown_attention(spec), regions, mask)
    gates = g.multiply(summary, "decoder.attention_lstm.image", _looking_weights(g, dim)[1])
    borders.remember(g, "gates", g.add(gates, lstm_bias(g, "decoder.attention_lstm", 4 * dim)), [4 * dim])


def _updown_decoder(g: Graph, spec: UpDownSpec) -> None:
    dim, layer = spec.dim, _updown_attention(spec)
    names = ["looking", "looking_cell", "speaking", "speaking_cell", *(["attended"] if spec.look_back else [])]
    tokens = g.input("tokens", "int64", [borders.ROWS])
    cache = recall_regions(g, layer)
    image_gates = borders.recall(g, "gates", [4 * dim])
    looking, looking_cell, speaking, speaking_cell, *before = (borders.state(g, name, [dim]) for name in names)
    words = activation(g, g.embed(tokens, "decoder.embed", spec.vocab_size, dim), "relu")
    spoken, _, for_words = _looking_weights(g, dim)
    recurrent = g.array("decoder.attention_lstm.weight_hh", 4 * dim, dim)
    weight = np.concatenate([spoken, recurrent, for_words], axis=1)
    gates = g.multiply(g.concat(speaking, looking, words), "decoder.attention_lstm", weight)
    looking, looking_cell = lstm_cell(g, add_image(g, gates, image_gates, 4 * dim), looking_cell)
    query = g.concat(looking, before[0]) if before else looking
    found = layer.attend(g, borders.per_image(g, query, image_gates, layer.query_dim), cache)
    attended = borders.per_row(g, found.feature, dim)
    sides = [
        g.array("decoder.language_lstm.weight_ih", 4 * dim, 2 * dim),
        g.array("decoder.language_lstm.weight_hh", 4 * dim, dim),
    ]
    weight = np.concatenate(sides, axis=1)
    gates = g.multiply(g.concat(attended, looking, speaking), "decoder.language_lstm", weight)
    gates = g.add(gates, lstm_bias(g, "decoder.language_lstm", 4 * dim))
    speaking, speaking_cell = lstm_cell(g, gates, speaking_cell)
    borders.decoder_outputs(g, g.linear(speaking, "decoder.logits", dim, spec.vocab_size), spec.vocab_size, found)
    after = [looking, looking_cell, speaking, speaking_cell, attended]
    for name, value in zip(names, after, strict=False):
        borders.next_state(g, name, value, [dim])


class _AoAAttention(MultiHead):
    """AoANet's attention in the decoder: a norm on the query, one projection for values and keys."""

    def project(self, g: Graph, regions: str, mask: Mask | None) -> Cache:
        """Values and keys of regions `[B, N, D]`, in that order."""
        values, keys = g.split(g.linear(regions, f"{self.name}.W_vk", self.dim, 2 * self.dim), 2)
        return Cache(split_heads(g, keys, self.heads, self.dim), split_heads(g, values, self.heads, self.dim), mask)

    def attend(self, g: Graph, query: str, cache: Cache) -> Found:
        """Attend with queries `[B, Q, D]`."""
        normed = _deviation_norm(g, query, f"{self.name}.norm", self.dim)
        q = split_heads(g, g.linear(normed, f"{self.name}.W_q", self.dim, self.dim), self.heads, self.dim)
        return dot_product(g, q, cache, self.dim, self.key_width)


def _deviation_norm(g: Graph, x: str, name: str, dim: int) -> str:
    """`a (x − mean) / (s + ε) + b`, s the standard deviation with N − 1."""
    centred = g.op("Sub", x, g.op("ReduceMean", x, g.ints(-1), keepdims=1))
    squares = g.op("ReduceSumSquare", centred, g.ints(-1), keepdims=1)
    deviation = g.op("Sqrt", g.mul(squares, g.number(1 / (dim - 1))))
    y = g.op("Div", centred, g.add(deviation, g.number(AOANET_EPSILON)))
    return g.add(g.mul(y, g.vector(f"{name}.weight", dim)), g.vector(f"{name}.bias", dim))


def aoanet(spec: AoANetSpec) -> Recipe:
    """AoANet."""
    decoder = LSTMDecoder(
        spec.vocab_size,
        spec.dim,
        _AoAAttention("decoder.attention", spec.dim, spec.heads),
        "relu",
        add_summary=True,
        project_attended=False,
    )
    return Recipe(lambda g: _aoa_encoder(g, spec, decoder), lambda g: lstm_decoder(g, decoder))


def _aoa_encoder(g: Graph, spec: AoANetSpec, decoder: LSTMDecoder) -> None:
    dim = spec.dim
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    regions = g.op("Relu", g.linear(features, "encoder.embed", spec.feature_dim, dim))
    for i in range(spec.depth):
        name = f"encoder.layers.{i}"
        query = _deviation_norm(g, regions, f"{name}.norm", dim)
        layer = MultiHead(f"{name}.attention", dim, spec.heads, project_output=False)
        found = layer.attend(g, query, layer.project(g, query, mask)).feature
        regions = g.add(regions, g.glu(g.linear(g.concat(found, query), f"{name}.gate", 2 * dim, 2 * dim)))
    regions = _deviation_norm(g, regions, "encoder.norm", dim)
    remember_image(g, decoder, regions, borders.masked_mean(g, regions, mask), mask)
