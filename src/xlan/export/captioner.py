"""A captioning model's weights → the graphs of its encoder and of one decoding step.

A new architecture is one more entry of `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xlan.errors import ModelError, WeightsError
from xlan.export import baselines, transformers, xlan
from xlan.export.borders import Recipe
from xlan.export.graph import Graph, Precision
from xlan.export.proto import Array
from xlan.model.spec import AoANetSpec, Att2inSpec, PlainSpec, Spec, TransformerSpec, UpDownSpec, XLANSpec, describe

RECIPES: dict[type, Callable[[Any], Recipe]] = {
    XLANSpec: xlan.recipe,
    TransformerSpec: transformers.recipe,
    PlainSpec: baselines.plain,
    Att2inSpec: baselines.att2in,
    UpDownSpec: baselines.updown,
    AoANetSpec: baselines.aoanet,
}


def has_graphs(spec: Spec) -> bool:
    """Whether a model with these numbers can be a graph; one that reads boxes cannot."""
    return type(spec) in RECIPES and not (isinstance(spec, UpDownSpec) and spec.graph != "none")


def check_has_graphs(spec: Spec, source: str) -> None:
    """Refuse a model that cannot be a graph; `source` names it.

    Raises:
        ModelError: it is one.
    """
    if not has_graphs(spec):
        raise ModelError(
            f"{source}: {describe(spec).split(',')[0]} reads the boxes of regions, which ONNX graphs are not given; "
            "it cannot be exported, and runs with the torch engine only"
        )


def captioner_graphs(
    spec: Spec, weights: Mapping[str, Array], *, precision: Precision = "float32", source: str = "weights"
) -> tuple[Graph, Graph]:
    """The encoder's graph and the decoder's; see `xlan.export.borders` for what goes in and comes out.

    Args:
        spec: the numbers of the model.
        weights: arrays by the names of its `state_dict`.
        precision: how the graphs store them.
        source: names the weights in error messages.

    Raises:
        ModelError: no graph is known for this architecture.
        WeightsError: weights are missing, unexpected or misshapen.
    """
    check_has_graphs(spec, source)
    recipe = RECIPES[type(spec)](spec)
    encoder = Graph(weights, precision=precision, source=source)
    decoder = Graph(weights, precision=precision, source=source)
    recipe.encoder(encoder)
    recipe.decoder(decoder)
    unexpected = sorted(set(weights) - encoder.used - decoder.used)
    if unexpected:
        more = f" and {len(unexpected) - 5} more" if len(unexpected) > 5 else ""
        raise WeightsError(f"{source}: does not fit the architecture; unexpected: {', '.join(unexpected[:5])}{more}")
    return encoder, decoder
