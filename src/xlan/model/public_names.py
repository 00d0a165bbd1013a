"""Names of weights in the widespread PyTorch implementation of captioning models → ours, and what is merged.

Its state dicts have UpDown, Att2in (both forms), Att2all, NewFC, Show and Tell and AoANet. A pattern is matched with a
whole name, or with a name without its last part (`weight`, `bias`), which is then kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from xlan.errors import WeightsError
from xlan.model.spec import AoANetSpec, Att2inSpec, PlainSpec, Spec, UpDownSpec

_ATTENTION = {
    r"ctx2att": "decoder.attention.W_k",
    r"core\.attention\.h2att": "decoder.attention.W_q",
    r"core\.attention\.alpha_net": "decoder.attention.W_a",
}
_LOGITS = {r"logit": "decoder.logits"}
_CELL = {r"_?core\.i2h\.(weight|bias)": r"decoder.cell.\1_ih", r"_?core\.h2h\.(weight|bias)": r"decoder.cell.\1_hh"}

NEWFC = {r"fc_embed": "encoder.embed", r"embed": "decoder.embed", **_CELL, **_LOGITS}
SHOW_TELL = {
    r"img_embed": "encoder.embed",
    r"embed": "decoder.embed",
    r"core\.(weight|bias)_(ih|hh)_l0": r"decoder.cell.\1_\2",
    **_LOGITS,
}
ATT2IN = {
    r"att_embed\.0": "encoder.embed",
    r"embed(?:\.0)?": "decoder.embed",
    r"core\.a2[ch]": "decoder.W_z",
    **_CELL,
    **_ATTENTION,
    **_LOGITS,
}
UPDOWN = {
    r"att_embed\.0": "encoder.embed",
    r"fc_embed\.0": "encoder.embed_mean",
    r"embed\.0": "decoder.embed",
    r"core\.att_lstm": "decoder.attention_lstm",
    r"core\.lang_lstm": "decoder.language_lstm",
    **_ATTENTION,
    **_LOGITS,
}
_NORM = {"a_2": "weight", "b_2": "bias"}
AOANET = {
    r"att_embed\.0": "encoder.embed",
    **{rf"refiner\.norm\.{a}": f"encoder.norm.{b}" for a, b in _NORM.items()},
    **{rf"refiner\.layers\.(\d+)\.sublayer\.0\.norm\.{a}": rf"encoder.layers.\1.norm.{b}" for a, b in _NORM.items()},
    **{
        rf"refiner\.layers\.(\d+)\.self_attn\.linears\.{i}": rf"encoder.layers.\1.attention.W_{x}"
        for i, x in enumerate("qkv")
    },
    r"refiner\.layers\.(\d+)\.self_attn\.aoa_layer\.0": r"encoder.layers.\1.gate",
    r"embed\.0": "decoder.embed",
    r"core\.att_lstm": "decoder.lstm",
    **{rf"core\.attention\.norm\.{a}": f"decoder.attention.norm.{b}" for a, b in _NORM.items()},
    r"core\.attention\.linears\.0": "decoder.attention.W_q",
    r"ctx2att": "decoder.attention.W_vk",
    r"core\.att2ctx\.0": "decoder.context_linear",
    **_LOGITS,
}
AOANET_HEADS = 8  # not visible in weights


class Family(NamedTuple):
    """One family of models in that implementation.

    Attributes:
        name: what it is called there.
        sign: a weight that only this family has.
        names: pattern → our name.
        spec: reads the numbers off the weights.
    """

    name: str
    sign: str
    names: Mapping[str, str]
    spec: Callable[[Mapping[str, Tensor]], Spec]


def _shape(theirs: Mapping[str, Tensor], name: str) -> tuple[int, int]:
    if name not in theirs or theirs[name].dim() != 2:
        got = "nothing" if name not in theirs else f"shape {list(theirs[name].shape)}"
        raise WeightsError(f"{name}: expected a matrix, from which the architecture is read, got {got}")
    rows, columns = theirs[name].shape
    return rows, columns


def _newfc(theirs: Mapping[str, Tensor]) -> PlainSpec:
    vocab_size, dim = _shape(theirs, "embed.weight")
    return PlainSpec(cell="maxout", vocab_size=vocab_size, dim=dim, feature_dim=_shape(theirs, "fc_embed.weight")[1])


def _show_tell(theirs: Mapping[str, Tensor]) -> PlainSpec:
    vocab_size, dim = _shape(theirs, "embed.weight")
    bias, feature_dim = "core.bias_ih_l0" in theirs, _shape(theirs, "img_embed.weight")[1]
    return PlainSpec(cell="lstm", bias=bias, vocab_size=vocab_size, dim=dim, feature_dim=feature_dim)


def _att2in(theirs: Mapping[str, Tensor]) -> Att2inSpec:
    embedded = "att_embed.0.weight" in theirs
    vocab_size, dim = _shape(theirs, "embed.0.weight" if embedded else "embed.weight")
    attention_dim, feature_dim = _shape(theirs, "ctx2att.weight")
    return Att2inSpec(
        attention_into="gates" if "core.a2h.weight" in theirs else "candidate",
        embed=embedded,
        vocab_size=vocab_size,
        feature_dim=_shape(theirs, "att_embed.0.weight")[1] if embedded else feature_dim,
        dim=dim,
        attention_dim=attention_dim,
        word_dropout=0.5 if embedded else 0.0,
    )


def _updown(theirs: Mapping[str, Tensor]) -> UpDownSpec:
    vocab_size, dim = _shape(theirs, "embed.0.weight")
    return UpDownSpec(
        vocab_size=vocab_size,
        feature_dim=_shape(theirs, "att_embed.0.weight")[1],
        dim=dim,
        attention_dim=_shape(theirs, "ctx2att.weight")[0],
    )


def _aoanet(theirs: Mapping[str, Tensor]) -> AoANetSpec:
    vocab_size, dim = _shape(theirs, "embed.0.weight")
    layers = {name.split(".")[2] for name in theirs if name.startswith("refiner.layers.")}
    return AoANetSpec(
        vocab_size=vocab_size,
        feature_dim=_shape(theirs, "att_embed.0.weight")[1],
        dim=dim,
        depth=len(layers),
        heads=AOANET_HEADS,
    )


FAMILIES = (
    Family("AoANet", "core.att2ctx.0.weight", AOANET, _aoanet),
    Family("UpDown", "core.lang_lstm.weight_ih", UPDOWN, _updown),
    Family("Att2in", "core.a2c.weight", ATT2IN, _att2in),
    Family("Att2all", "core.a2h.weight", ATT2IN, _att2in),
    Family("NewFC", "_core.i2h.weight", NEWFC, _newfc),
    Family("Show and Tell", "core.weight_ih_l0", SHOW_TELL, _show_tell),
)


def merge_biases(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eq. 1 with one bias: those of keys and query are added up; that of the scores changes nothing and is dropped."""
    merged = dict(theirs)
    query, keys = merged.get("core.attention.h2att.bias"), merged.get("ctx2att.bias")
    if query is not None and keys is not None and query.shape == keys.shape:
        merged["core.attention.h2att.bias"] = query + merged.pop("ctx2att.bias")
        merged.pop("core.attention.alpha_net.bias", None)
    return merged
