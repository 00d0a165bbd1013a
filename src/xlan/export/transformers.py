"""X-Transformer and the Transformer baseline as graphs: what `xlan.model.xtransformer` and `.transformer` compute."""

from __future__ import annotations

import math

import numpy as np

from xlan.export import borders
from xlan.export.attention import Cache, Found, Layer, Mask, MultiHead, XLinear, activation
from xlan.export.borders import REGIONS, WORDS, Recipe, Shape
from xlan.export.graph import Graph
from xlan.export.xlan import region_update
from xlan.model.spec import TransformerSpec

POSITION_BASE = 10_000.0


def recipe(spec: TransformerSpec) -> Recipe:
    """The two graphs of an X-Transformer or of the baseline."""
    if spec.attention == "xlinear":
        return Recipe(lambda g: _x_encoder(g, spec), lambda g: _x_decoder(g, spec))
    return Recipe(lambda g: _encoder(g, spec), lambda g: _decoder(g, spec))


def _attention(spec: TransformerSpec, name: str) -> Layer:
    if spec.attention == "xlinear":
        return XLinear(name, spec.dim, spec.heads, spec.hidden_dim, "celu", released=True)
    return MultiHead(name, spec.dim, spec.heads)


def _feed_forward(g: Graph, x: str, name: str, spec: TransformerSpec) -> str:
    hidden = g.op("Relu", g.linear(x, f"{name}.linear_in", spec.dim, spec.ff_dim))
    return g.layer_norm(
        g.add(x, g.linear(hidden, f"{name}.linear_out", spec.ff_dim, spec.dim)), f"{name}.norm", spec.dim
    )


def _remember_regions(g: Graph, regions: str, mask: Mask, spec: TransformerSpec) -> None:
    """Keys and values of every decoder layer, projected once per image."""
    for i in range(spec.decoder_layers):
        layer = _attention(spec, f"decoder.layers.{i}.regions")
        cache = layer.project(g, regions, mask)
        borders.remember(g, f"keys.{i}", cache.keys, [layer.heads, REGIONS, layer.key_width])
        borders.remember(g, f"values.{i}", cache.values, [layer.heads, REGIONS, layer.value_width])


class _Words:
    """Words so far: the states of all layers, which grow by a word in each step."""

    def __init__(self, g: Graph, spec: TransformerSpec) -> None:
        self._g, self._spec = g, spec
        self.tokens = g.input("tokens", "int64", [borders.ROWS])
        self.mask = borders.recall_mask(g)
        self.layers = [_attention(spec, f"decoder.layers.{i}.words") for i in range(spec.decoder_layers)]
        self.regions = [_attention(spec, f"decoder.layers.{i}.regions") for i in range(spec.decoder_layers)]
        self._shapes: list[Shape] = [[layer.heads, WORDS, layer.key_width] for layer in self.layers]
        self._keys = [borders.state(g, f"keys.{i}", shape) for i, shape in enumerate(self._shapes)]
        self._values = [borders.state(g, f"values.{i}", shape) for i, shape in enumerate(self._shapes)]
        self.length = g.op("Cast", g.op("Shape", self._keys[0], start=2, end=3), to=1)
        """How many words there were before this one, a float `[1]`."""

    def embedded(self) -> str:
        """`LayerNorm(√D · embedding + position)` of the new word: `[R, D]`."""
        g, spec, dim = self._g, self._spec, self._spec.dim
        words = g.embed(self.tokens, "decoder.word_input.embed", spec.vocab_size, dim)
        words = g.mul(words, g.number(math.sqrt(dim)))
        channel = np.arange(0, dim, 2, dtype=np.float32)
        rate = np.exp(channel * -(math.log(POSITION_BASE) / dim)).astype(np.float32).repeat(2)[:dim]
        angle = g.mul(self.length, g.constant(rate))
        even = g.constant(np.arange(dim) % 2 == 0)
        position = g.op("Where", even, g.op("Sin", angle), g.op("Cos", angle))
        return g.layer_norm(g.add(words, position), "decoder.word_input.norm", dim)

    def attend(self, i: int, x: str, query: str) -> str:
        """Add word `x` `[R, D]` to layer i and ask all words with `query` `[R, D]`: `[R, D]`."""
        g, layer = self._g, self.layers[i]
        new = layer.project(g, g.unsqueeze(x, 1), None)
        keys = g.concat(self._keys[i], new.keys, axis=2)
        values = g.concat(self._values[i], new.values, axis=2)
        borders.next_state(g, f"keys.{i}", keys, self._shapes[i])
        borders.next_state(g, f"values.{i}", values, self._shapes[i])
        return g.squeeze(layer.attend(g, g.unsqueeze(query, 1), Cache(keys, values, None)).feature, 1)

    def look(self, i: int, query: str) -> tuple[str, Found]:
        """Ask the regions with rows `[R, D]`: what they found, `[R, D]`, and where."""
        g, layer = self._g, self.regions[i]
        keys = borders.recall(g, f"keys.{i}", [layer.heads, REGIONS, layer.key_width])
        values = borders.recall(g, f"values.{i}", [layer.heads, REGIONS, layer.value_width])
        dim = self._spec.dim
        found = layer.attend(g, borders.per_image(g, query, self.mask.bias, dim), Cache(keys, values, self.mask))
        return borders.per_row(g, found.feature, dim), found


def _x_encoder(g: Graph, spec: TransformerSpec) -> None:
    dim = spec.dim
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    regions = activation(g, g.linear(features, "encoder.embed", spec.feature_dim, dim), "celu")
    regions = g.layer_norm(regions, "encoder.embed_norm", dim)
    found = [borders.masked_mean(g, regions, mask)]
    for i in range(spec.encoder_layers):
        name = f"encoder.layers.{i}"
        block = _attention(spec, f"{name}.attend.block")
        attended = block.attend(g, g.unsqueeze(found[-1], 1), block.project(g, regions, mask)).feature
        regions = region_update(g, f"{name}.attend.update_keys", dim, attended, regions)
        regions = _feed_forward(g, regions, f"{name}.feed_forward", spec)
        found.append(g.squeeze(attended, 1))
    summary = g.linear(g.concat(*found), "encoder.W_G", dim * len(found), dim)
    summary = g.layer_norm(summary, "encoder.summary_norm", dim)
    _remember_regions(g, regions, mask, spec)
    borders.remember(g, "image", _query_of(g, summary, "decoder.query_of_image", dim), [dim])


def _query_of(g: Graph, x: str, name: str, dim: int) -> str:
    """`LayerNorm(CELU(W x))`."""
    return g.layer_norm(activation(g, g.linear(x, f"{name}.0", dim, dim), "celu"), f"{name}.2", dim)


def _x_decoder(g: Graph, spec: TransformerSpec) -> None:
    dim = spec.dim
    words = _Words(g, spec)
    image = borders.recall(g, "image", [dim])
    prefix = borders.state(g, "prefix", [dim])
    x = words.embedded()
    prefix = g.add(prefix, x)
    mean = g.op("Div", prefix, g.add(words.length, g.number(1.0)))
    query = borders.per_image(g, _query_of(g, mean, "decoder.query_of_words", dim), image, dim)
    query = borders.per_row(g, g.mul(query, g.unsqueeze(image, 1)), dim)
    queries = [query]
    for i in range(spec.decoder_layers):
        name = f"decoder.layers.{i}"
        y = g.add(x, words.attend(i, x, query))
        seen, found = words.look(i, g.layer_norm(y, f"{name}.cross_norm", dim))
        query = g.layer_norm(g.add(y, seen), f"{name}.query_norm", dim)
        queries.append(query)
        if i < spec.decoder_layers - 1:
            x = region_update(g, f"{name}.update", dim, query, x)
            x = _feed_forward(g, x, f"{name}.feed_forward", spec)
    joined = g.linear(g.concat(*queries), "decoder.join.0", dim * len(queries), 2 * dim)
    joined = g.layer_norm(g.glu(joined), "decoder.join.2", dim)
    logits = g.linear(joined, "decoder.logits", dim, spec.vocab_size)
    borders.decoder_outputs(g, logits, spec.vocab_size, found, dim)
    borders.next_state(g, "prefix", prefix, [dim])


def _encoder(g: Graph, spec: TransformerSpec) -> None:
    dim = spec.dim
    features, mask = borders.encoder_inputs(g, spec.feature_dim)
    regions = g.op("Relu", g.linear(features, "encoder.embed", spec.feature_dim, dim))
    regions = g.layer_norm(regions, "encoder.embed_norm", dim)
    for i in range(spec.encoder_layers):
        name = f"encoder.layers.{i}"
        layer = _attention(spec, f"{name}.attention")
        found = layer.attend(g, regions, layer.project(g, regions, mask)).feature
        regions = g.layer_norm(g.add(regions, found), f"{name}.norm", dim)
        regions = _feed_forward(g, regions, f"{name}.feed_forward", spec)
    _remember_regions(g, regions, mask, spec)


def _decoder(g: Graph, spec: TransformerSpec) -> None:
    dim = spec.dim
    words = _Words(g, spec)
    x = words.embedded()
    for i in range(spec.decoder_layers):
        name = f"decoder.layers.{i}"
        x = g.layer_norm(g.add(x, words.attend(i, x, x)), f"{name}.words_norm", dim)
        seen, found = words.look(i, x)
        x = g.layer_norm(g.add(x, seen), f"{name}.regions_norm", dim)
        x = _feed_forward(g, x, f"{name}.feed_forward", spec)
    logits = g.linear(x, "decoder.logits", dim, spec.vocab_size)
    borders.decoder_outputs(g, logits, spec.vocab_size, found, dim)
