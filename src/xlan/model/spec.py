"""The numbers of every named model, written out. A spec is plain data: `config.json` of a model directory holds one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from xlan.errors import ConfigError, ModelError

AOANET_EPSILON = 1e-6  # of AoANet's norm, added to the standard deviation

Form = Literal["paper", "released"]
Sigma = Literal["relu", "elu", "celu"]


@dataclass(frozen=True)
class XLANSpec:
    """Every number of an X-LAN; the defaults are the released model.

    Attributes:
        form: `released` (what made the published numbers) or `paper` (what the text says).
        vocab_size: number of ids.
        feature_dim: width of the region features.
        dim: width of everything inside (D_B, D_v, the LSTM).
        depth: X-Linear blocks in the encoder (1 + M).
        heads: heads of every block.
        hidden_dim: D_c, per head.
        sigma: σ of bilinear pooling.
        decoder_attention: `xlinear`, or `conventional` (Eq. 1) for the ablation's base model.
        region_dropout: on the embedded regions.
        block_dropout: on B' inside the blocks.
        dropout: on attended features and on the previous context.
        update_dropout: on the update of the regions (Eq. 7).
        word_dropout: on the embedded words.
        logit_dropout: in front of the logits.
    """

    form: Form = "released"
    vocab_size: int = 9488
    feature_dim: int = 2048
    dim: int = 1024
    depth: int = 4
    heads: int = 8
    hidden_dim: int = 64
    sigma: Sigma = "celu"
    decoder_attention: Literal["xlinear", "conventional"] = "xlinear"
    region_dropout: float = 0.5
    block_dropout: float = 0.1
    dropout: float = 0.5
    update_dropout: float = 0.3
    word_dropout: float = 0.5
    logit_dropout: float = 0.5


@dataclass(frozen=True)
class TransformerSpec:
    """Every number of an X-Transformer or of the Transformer baseline; the defaults are the released X-Transformer.

    Attributes:
        attention: `xlinear` (X-Transformer) or `multihead` (the baseline).
        vocab_size: number of ids.
        feature_dim: width of the region features.
        dim: width of everything inside.
        encoder_layers: layers of the encoder.
        decoder_layers: layers of the decoder.
        heads: heads of every attention.
        hidden_dim: D_c of a block, per head (X-Transformer only).
        ff_dim: width inside the feed-forward layers.
        region_dropout: on the embedded regions.
        block_dropout: on B' inside the blocks (X-Transformer), or on attention weights (baseline).
        dropout: on attended features.
        update_dropout: on the update of regions and words (X-Transformer only).
        ff_dropout: inside and behind the feed-forward layers.
        word_dropout: on the embedded words.
        logit_dropout: in front of the logits.
    """

    attention: Literal["xlinear", "multihead"] = "xlinear"
    vocab_size: int = 9488
    feature_dim: int = 2048
    dim: int = 768
    encoder_layers: int = 6
    decoder_layers: int = 6
    heads: int = 8
    hidden_dim: int = 48
    ff_dim: int = 3072
    region_dropout: float = 0.5
    block_dropout: float = 0.1
    dropout: float = 0.5
    update_dropout: float = 0.3
    ff_dropout: float = 0.5
    word_dropout: float = 0.1
    logit_dropout: float = 0.5


@dataclass(frozen=True)
class PlainSpec:
    """Every number of a language model that reads the image before its first word; the defaults are the "LSTM" row.

    Attributes:
        cell: `maxout` (the SCST paper's) or `lstm`.
        bias: biases in an `lstm` cell; a `maxout` cell always has them.
        word_relu: ReLU on the embedded words.
        attributes: number of attributes that are read first (LSTM-A₃); 0 for none.
        vocab_size: number of ids.
        feature_dim: width of the region features.
        dim: width of everything inside.
        input_dropout: on the image's vectors (LSTM-A₃ only).
        word_dropout: on the embedded words.
        logit_dropout: in front of the logits.
    """

    cell: Literal["maxout", "lstm"] = "maxout"
    bias: bool = True
    word_relu: bool = False
    attributes: int = 0
    vocab_size: int = 9488
    feature_dim: int = 2048
    dim: int = 512
    input_dropout: float = 0.0
    word_dropout: float = 0.0
    logit_dropout: float = 0.5


@dataclass(frozen=True)
class Att2inSpec:
    """Every number of an Att2in or Att2all; the defaults are Att2in as public code trains it.

    Attributes:
        attention_into: `candidate` (Att2in) or `gates` (Att2all).
        embed: regions and words are embedded with a ReLU; false is the form nearest to the SCST paper.
        vocab_size: number of ids.
        feature_dim: width of the region features.
        dim: width of words, LSTM and embedded regions.
        attention_dim: width inside the attention.
        region_dropout: on the embedded regions.
        word_dropout: on the embedded words.
        logit_dropout: in front of the logits.
    """

    attention_into: Literal["candidate", "gates"] = "candidate"
    embed: bool = True
    vocab_size: int = 9488
    feature_dim: int = 2048
    dim: int = 512
    attention_dim: int = 512
    region_dropout: float = 0.5
    word_dropout: float = 0.5
    logit_dropout: float = 0.5


@dataclass(frozen=True)
class UpDownSpec:
    """Every number of an Up-Down or a GCN-LSTM; the defaults are Up-Down.

    Attributes:
        graph: `none` (regions are embedded one by one) or `spatial` (GCN-LSTM: a graph of their boxes).
        look_back: what was attended last is part of the next query (the first half of LBPF).
        vocab_size: number of ids.
        feature_dim: width of the region features.
        dim: width of words, both LSTMs and embedded regions.
        attention_dim: width inside the attention.
        region_dropout: on the encoded regions.
        word_dropout: on the embedded words.
        attention_dropout: inside the attention, behind its tanh.
        language_dropout: on the input of the second LSTM.
        logit_dropout: in front of the logits.
    """

    graph: Literal["none", "spatial"] = "none"
    look_back: bool = False
    vocab_size: int = 9488
    feature_dim: int = 2048
    dim: int = 1000
    attention_dim: int = 512
    region_dropout: float = 0.5
    word_dropout: float = 0.5
    attention_dropout: float = 0.0
    language_dropout: float = 0.0
    logit_dropout: float = 0.5


@dataclass(frozen=True)
class AoANetSpec:
    """Every number of an AoANet; the defaults are the published model.

    Attributes:
        vocab_size: number of ids.
        feature_dim: width of the region features.
        dim: width of everything inside.
        depth: layers of the refiner.
        heads: heads of every attention.
        region_dropout: on the embedded regions.
        attention_dropout: on attention weights.
        gate_dropout: in front of the refiner's gates.
        residual_dropout: on what a refiner layer adds.
        dropout: on the previous context.
        word_dropout: on the embedded words.
        logit_dropout: in front of the logits.
    """

    vocab_size: int = 9488
    feature_dim: int = 2048
    dim: int = 1024
    depth: int = 6
    heads: int = 8
    region_dropout: float = 0.5
    attention_dropout: float = 0.1
    gate_dropout: float = 0.3
    residual_dropout: float = 0.1
    dropout: float = 0.5
    word_dropout: float = 0.5
    logit_dropout: float = 0.5


Spec = XLANSpec | TransformerSpec | PlainSpec | Att2inSpec | UpDownSpec | AoANetSpec
ARCHITECTURES: dict[str, type[Spec]] = {
    "xlan": XLANSpec,
    "transformer": TransformerSpec,
    "lstm": PlainSpec,
    "att2in": Att2inSpec,
    "updown": UpDownSpec,
    "aoanet": AoANetSpec,
}

# Configurations come from outside: no real model is larger, and a larger one would only exhaust the machine.
MAX_LAYERS = 256
MAX_SIZE = 1 << 24

_PAPER = XLANSpec(form="paper", dim=1024, heads=1, hidden_dim=512, sigma="relu")
_TINY = TransformerSpec(dim=64, encoder_layers=2, decoder_layers=2, heads=4, hidden_dim=8, ff_dim=128)

MODELS: dict[str, Spec] = {
    # published sizes
    "xlan": XLANSpec(form="released", dim=1024, depth=4, heads=8, hidden_dim=64, sigma="celu"),
    "xlan-paper": replace(_PAPER, depth=4, sigma="elu"),
    "xtransformer": TransformerSpec(
        attention="xlinear", dim=768, encoder_layers=6, decoder_layers=6, heads=8, hidden_dim=48, ff_dim=3072
    ),
    "transformer": TransformerSpec(
        attention="multihead",
        dim=768,
        encoder_layers=6,
        decoder_layers=6,
        heads=8,
        ff_dim=3072,
        region_dropout=0.1,
        dropout=0.1,
        ff_dropout=0.1,
        logit_dropout=0.1,
    ),
    # the rows of the paper's ablation table, in its order
    "ablation-base": replace(_PAPER, depth=0, decoder_attention="conventional"),
    "ablation-0x": replace(_PAPER, depth=0),
    "ablation-1x": replace(_PAPER, depth=1),
    "ablation-2x": replace(_PAPER, depth=2),
    "ablation-3x": replace(_PAPER, depth=3),
    "ablation-4x": replace(_PAPER, depth=4),
    "ablation-4x-elu": replace(_PAPER, depth=4, sigma="elu"),
    # the systems the paper compares with
    "lstm": PlainSpec(cell="maxout", dim=512),
    "show-tell": PlainSpec(cell="lstm", bias=False, dim=512),
    "lstm-a3": PlainSpec(
        cell="lstm", word_relu=True, attributes=1000, dim=1024, input_dropout=0.3, word_dropout=0.3, logit_dropout=0.5
    ),
    "att2in": Att2inSpec(attention_into="candidate", dim=512, attention_dim=512),
    "att2all": Att2inSpec(attention_into="gates", dim=512, attention_dim=512),
    "updown": UpDownSpec(dim=1000, attention_dim=512),
    "updown-lb": UpDownSpec(look_back=True, dim=1000, attention_dim=512),
    "gcn-lstm-spatial": UpDownSpec(
        graph="spatial", dim=1024, attention_dim=512, attention_dropout=0.5, language_dropout=0.5
    ),
    "aoanet": AoANetSpec(dim=1024, depth=6, heads=8),
    # sizes for laptops and tests
    "xlan-small": XLANSpec(form="released", dim=512, depth=3, heads=8, hidden_dim=32, sigma="celu"),
    "xlan-tiny": XLANSpec(form="released", dim=64, depth=2, heads=4, hidden_dim=8, sigma="celu"),
    "xtransformer-tiny": replace(_TINY, attention="xlinear"),
    "transformer-tiny": replace(_TINY, attention="multihead"),
    "lstm-tiny": PlainSpec(cell="maxout", dim=64),
    "show-tell-tiny": PlainSpec(cell="lstm", bias=False, dim=64),
    "lstm-a3-tiny": PlainSpec(cell="lstm", word_relu=True, attributes=20, dim=64, input_dropout=0.3, word_dropout=0.3),
    "att2in-tiny": Att2inSpec(attention_into="candidate", dim=64, attention_dim=32),
    "att2all-tiny": Att2inSpec(attention_into="gates", dim=64, attention_dim=32),
    "updown-tiny": UpDownSpec(dim=64, attention_dim=32),
    "updown-lb-tiny": UpDownSpec(look_back=True, dim=64, attention_dim=32),
    "gcn-lstm-spatial-tiny": UpDownSpec(graph="spatial", dim=64, attention_dim=32),
    "aoanet-tiny": AoANetSpec(dim=64, depth=2, heads=4),
}


def check_has_attributes(spec: Spec) -> None:
    """Refuse a model without attributes, of which none can start from the words of a vision network.

    Raises:
        ConfigError: the model has none.
    """
    if not (isinstance(spec, PlainSpec) and spec.attributes):
        raise ConfigError("model.attributes is for models with attributes (lstm-a3): remove it for this model")


def model_spec(name: str, **overrides: Any) -> Spec:
    """The spec called `name`, with some of its numbers replaced.

    Raises:
        ModelError: unknown name, unknown field or a value of the wrong kind; the message lists what there is.
    """
    if name not in MODELS:
        raise ModelError(f"model: expected one of {', '.join(MODELS)}, got {name!r}")
    return spec_from_dict({**spec_to_dict(MODELS[name]), **overrides}, what=f"model {name!r}")


def describe(spec: Spec) -> str:
    """A model in words: what it is, and its sizes."""
    match spec:
        case XLANSpec():
            facts = f"X-LAN, {spec.depth} encoder blocks, LSTM decoder"
        case TransformerSpec():
            name = "X-Transformer" if spec.attention == "xlinear" else "Transformer"
            facts = f"{name}, {spec.encoder_layers} + {spec.decoder_layers} layers"
        case PlainSpec():
            names = {"maxout": "LSTM with a maxout cell", "lstm": "LSTM"}
            facts = names[spec.cell] + (f" and {spec.attributes} attributes" if spec.attributes else ", no attention")
        case Att2inSpec():
            facts = "Att2in" if spec.attention_into == "candidate" else "Att2all"
        case UpDownSpec():
            facts = "GCN-LSTM with a spatial graph" if spec.graph == "spatial" else "Up-Down"
            facts += " that looks back" if spec.look_back else ""
        case AoANetSpec():
            facts = f"AoANet, {spec.depth} refiner layers"
    return f"{facts}, width {spec.dim}"


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """A spec as plain JSON data."""
    architecture = next(name for name, kind in ARCHITECTURES.items() if type(spec) is kind)
    return {"architecture": architecture, **asdict(spec)}


def spec_from_dict(value: dict[str, Any], *, what: str = "config.json") -> Spec:
    """The spec that `spec_to_dict` wrote; `what` names its origin in error messages."""
    kind = ARCHITECTURES.get(str(value.get("architecture")))
    if kind is None:
        raise ModelError(
            f"{what}: architecture must be one of {', '.join(ARCHITECTURES)}, got {value.get('architecture')!r}"
        )
    given = {key: item for key, item in value.items() if key != "architecture"}
    names = [field.name for field in fields(kind)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ModelError(f"{what}: unknown key {unknown[0]!r}; expected some of {', '.join(names)}")
    spec = kind(**given)
    for name, hint in get_type_hints(kind).items():
        _check_value(what, name, getattr(spec, name), hint)
    heads = getattr(spec, "heads", 1)
    if spec.dim % heads:
        raise ModelError(f"{what}: heads must divide dim {spec.dim}, got {heads}")
    if isinstance(spec, XLANSpec | TransformerSpec) and spec.heads * spec.hidden_dim > MAX_SIZE:
        raise ModelError(f"{what}: heads × hidden_dim must be at most {MAX_SIZE}, got {spec.heads * spec.hidden_dim}")
    return spec


def _check_value(what: str, name: str, value: Any, hint: Any) -> None:
    choices = get_args(hint)
    if choices:
        if value not in choices:
            raise ModelError(f"{what}: {name} must be one of {', '.join(choices)}, got {value!r}")
    elif hint is bool:
        if not isinstance(value, bool):
            raise ModelError(f"{what}: {name} must be true or false, got {value!r}")
    elif hint is int:
        least = 0 if name in ("depth", "attributes") else 1
        most = MAX_LAYERS if name in ("depth", "encoder_layers", "decoder_layers") else MAX_SIZE
        if type(value) is not int or not least <= value <= most:
            raise ModelError(f"{what}: {name} must be a whole number from {least} to {most}, got {value!r}")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise ModelError(f"{what}: {name} must be a probability from 0 to below 1, got {value!r}")
