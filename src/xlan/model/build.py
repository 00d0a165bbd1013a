"""The one place that turns numbers into modules.

build_model("xlan")                                  the released X-LAN at its published size
build_model("xlan", vocab_size=5000, dim=512)        the same with other numbers
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from xlan.model.aoanet import AoAAttention, AoAEncoder, RefinerLayer
from xlan.model.att2in import Att2inDecoder
from xlan.model.attention import ConventionalAttention
from xlan.model.captioner import CaptionModel
from xlan.model.graph import GraphEncoder
from xlan.model.multihead import MultiHeadAttention
from xlan.model.plain import AttributeEncoder, MaxoutCell, MeanEncoder, PlainDecoder
from xlan.model.recurrent import RecurrentDecoder
from xlan.model.regions import RegionEncoder
from xlan.model.spec import (
    AoANetSpec,
    Att2inSpec,
    PlainSpec,
    Spec,
    TransformerSpec,
    UpDownSpec,
    XLANSpec,
    model_spec,
    spec_from_dict,
    spec_to_dict,
)
from xlan.model.stack import RegionUpdate, StackLayer, XLinearStack
from xlan.model.transformer import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from xlan.model.transformer_parts import FeedForward
from xlan.model.updown import UpDownDecoder
from xlan.model.xlan import LSTMDecoder, XLANEncoder
from xlan.model.xlinear import XLinearAttention, activation
from xlan.model.xtransformer import (
    XTransformerDecoder,
    XTransformerDecoderLayer,
    XTransformerEncoder,
    XTransformerEncoderLayer,
)


def build_model(name: str | Spec, **overrides: Any) -> CaptionModel:
    """A new model with PyTorch's default initialisation, by name or from a spec.

    Args:
        name: one of `xlan.model.spec.MODELS`, or a spec.
        overrides: numbers to replace, by the names of the spec's fields (`vocab_size=5000`).
    """
    if isinstance(name, str):
        spec = model_spec(name, **overrides)
    else:
        spec = spec_from_dict({**spec_to_dict(name), **overrides}, what="spec")
    match spec:
        case XLANSpec():
            return _xlan(spec)
        case TransformerSpec():
            return _xtransformer(spec) if spec.attention == "xlinear" else _transformer(spec)
        case PlainSpec():
            return _plain(spec)
        case Att2inSpec():
            return _att2in(spec)
        case UpDownSpec():
            return _updown(spec)
        case AoANetSpec():
            return _aoanet(spec)


def _xlan(spec: XLANSpec) -> CaptionModel:
    released = spec.form == "released"
    stack = XLinearStack(
        spec.dim,
        depth=spec.depth,
        hidden_dim=spec.hidden_dim,
        heads=spec.heads,
        activation=spec.sigma,
        normalise=released,
        bias=released,
        separate_values=not released,
        update_last_keys=False,
        block_dropout=spec.block_dropout,
        dropout=spec.dropout,
        update_dropout=spec.update_dropout,
    )
    encoder = XLANEncoder(
        spec.feature_dim,
        stack,
        dim=spec.dim,
        sigma=activation(spec.sigma) if released else None,
        dropout=spec.region_dropout,
        normalise_summary=released,
    )
    decoder = LSTMDecoder(
        vocab_size=spec.vocab_size,
        dim=spec.dim,
        attention=(
            ConventionalAttention(spec.dim, spec.dim, hidden_dim=spec.heads * spec.hidden_dim)
            if spec.decoder_attention == "conventional"
            else _block(spec, released=released)
        ),
        word_sigma=activation(spec.sigma) if released else None,
        add_summary=released,
        project_attended=released,
        word_dropout=spec.word_dropout,
        attended_dropout=spec.dropout,
        context_dropout=spec.dropout,
        logit_dropout=spec.logit_dropout,
    )
    return CaptionModel(encoder, decoder, spec)


def _block(spec: XLANSpec | TransformerSpec, *, released: bool = True) -> XLinearAttention:
    return XLinearAttention(
        spec.dim,
        bilinear_dim=spec.dim,
        hidden_dim=spec.hidden_dim,
        heads=spec.heads,
        activation=spec.sigma if isinstance(spec, XLANSpec) else "celu",
        normalise=released,
        bias=released,
        dropout=spec.block_dropout,
    )


def _feed_forward(spec: TransformerSpec) -> FeedForward:
    return FeedForward(spec.dim, spec.ff_dim, dropout=spec.ff_dropout)


def _xtransformer(spec: TransformerSpec) -> CaptionModel:
    def encoder_layer() -> XTransformerEncoderLayer:
        update = RegionUpdate(spec.dim, dropout=spec.update_dropout)
        attend = StackLayer(_block(spec), update_keys=update, update_values=None, dropout=spec.dropout)
        return XTransformerEncoderLayer(attend, _feed_forward(spec))

    def decoder_layer(last: bool) -> XTransformerDecoderLayer:
        return XTransformerDecoderLayer(
            words=_block(spec),
            regions=_block(spec),
            update=None if last else RegionUpdate(spec.dim, dropout=spec.update_dropout),
            feed_forward=None if last else _feed_forward(spec),
            dim=spec.dim,
            dropout=spec.dropout,
        )

    encoder = XTransformerEncoder(
        spec.feature_dim,
        nn.ModuleList(encoder_layer() for _ in range(spec.encoder_layers)),
        dim=spec.dim,
        sigma=activation("celu"),
        dropout=spec.region_dropout,
    )
    decoder = XTransformerDecoder(
        nn.ModuleList(decoder_layer(i == spec.decoder_layers - 1) for i in range(spec.decoder_layers)),
        vocab_size=spec.vocab_size,
        dim=spec.dim,
        word_dropout=spec.word_dropout,
        dropout=spec.dropout,
        logit_dropout=spec.logit_dropout,
    )
    return CaptionModel(encoder, decoder, spec)


def _transformer(spec: TransformerSpec) -> CaptionModel:
    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(spec.dim, heads=spec.heads, dropout=spec.block_dropout)

    encoder = TransformerEncoder(
        spec.feature_dim,
        nn.ModuleList(
            TransformerEncoderLayer(attention(), _feed_forward(spec), dim=spec.dim, dropout=spec.dropout)
            for _ in range(spec.encoder_layers)
        ),
        dim=spec.dim,
        sigma=nn.ReLU(),
        dropout=spec.region_dropout,
    )
    decoder = TransformerDecoder(
        nn.ModuleList(
            TransformerDecoderLayer(
                words=attention(),
                regions=attention(),
                feed_forward=_feed_forward(spec),
                dim=spec.dim,
                dropout=spec.dropout,
            )
            for _ in range(spec.decoder_layers)
        ),
        vocab_size=spec.vocab_size,
        dim=spec.dim,
        word_dropout=spec.word_dropout,
        logit_dropout=spec.logit_dropout,
    )
    return CaptionModel(encoder, decoder, spec)


def _plain(spec: PlainSpec) -> CaptionModel:
    encoder = (
        AttributeEncoder(spec.feature_dim, spec.dim, attributes=spec.attributes, dropout=spec.input_dropout)
        if spec.attributes
        else MeanEncoder(spec.feature_dim, spec.dim)
    )
    maxout = spec.cell == "maxout"
    decoder = PlainDecoder(
        vocab_size=spec.vocab_size,
        dim=spec.dim,
        cell=MaxoutCell(spec.dim, spec.dim) if maxout else nn.LSTMCell(spec.dim, spec.dim, bias=spec.bias),
        word_sigma=nn.ReLU() if spec.word_relu else None,
        word_dropout=spec.word_dropout,
        logit_dropout=spec.logit_dropout,
    )
    if not (maxout or spec.attributes):
        _start_small(decoder)
    return CaptionModel(encoder, decoder, spec)


def _start_small(decoder: RecurrentDecoder) -> None:
    """Words and logits as the older public models start."""
    nn.init.uniform_(decoder.embed.weight, -0.1, 0.1)
    nn.init.uniform_(decoder.logits.weight, -0.1, 0.1)
    nn.init.zeros_(decoder.logits.bias)


def _att2in(spec: Att2inSpec) -> CaptionModel:
    region_dim = spec.dim if spec.embed else spec.feature_dim
    encoder = RegionEncoder(
        spec.feature_dim, dim=spec.dim if spec.embed else None, summary_dim=None, dropout=spec.region_dropout
    )
    decoder = Att2inDecoder(
        vocab_size=spec.vocab_size,
        dim=spec.dim,
        attention=ConventionalAttention(spec.dim, region_dim, hidden_dim=spec.attention_dim),
        all_gates=spec.attention_into == "gates",
        word_sigma=nn.ReLU() if spec.embed else None,
        word_dropout=spec.word_dropout,
        logit_dropout=spec.logit_dropout,
    )
    if not spec.embed:
        _start_small(decoder)
    return CaptionModel(encoder, decoder, spec)


def _updown(spec: UpDownSpec) -> CaptionModel:
    graph = spec.graph == "spatial"
    width = spec.feature_dim if graph else spec.dim
    encoder = (
        GraphEncoder(spec.feature_dim, dropout=spec.region_dropout)
        if graph
        else RegionEncoder(spec.feature_dim, dim=width, summary_dim=width, dropout=spec.region_dropout)
    )
    decoder = UpDownDecoder(
        vocab_size=spec.vocab_size,
        dim=spec.dim,
        region_dim=width,
        summary_dim=width,
        attention_dim=spec.attention_dim,
        look_back=spec.look_back,
        word_dropout=spec.word_dropout,
        attention_dropout=spec.attention_dropout,
        language_dropout=spec.language_dropout,
        logit_dropout=spec.logit_dropout,
    )
    return CaptionModel(encoder, decoder, spec)


def _aoanet(spec: AoANetSpec) -> CaptionModel:
    first = RefinerLayer(
        spec.dim,
        heads=spec.heads,
        attention_dropout=spec.attention_dropout,
        gate_dropout=spec.gate_dropout,
        dropout=spec.residual_dropout,
    )
    encoder = AoAEncoder(
        spec.feature_dim,
        nn.ModuleList(copy.deepcopy(first) for _ in range(spec.depth)),  # as published, all layers start equal
        dim=spec.dim,
        dropout=spec.region_dropout,
    )
    decoder = LSTMDecoder(
        vocab_size=spec.vocab_size,
        dim=spec.dim,
        attention=AoAAttention(spec.dim, heads=spec.heads, dropout=spec.attention_dropout),
        word_sigma=nn.ReLU(),
        add_summary=True,
        project_attended=False,
        word_dropout=spec.word_dropout,
        attended_dropout=0.0,
        context_dropout=spec.dropout,
        logit_dropout=spec.logit_dropout,
        drop_in_steps=True,
    )
    return CaptionModel(encoder, decoder, spec)
