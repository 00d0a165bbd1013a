"""The numbers of every named model, written out. A spec is plain data: `config.json` of a model directory holds one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from xlan.errors import ModelError

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


Spec = XLANSpec | TransformerSpec

# Configurations come from outside: beyond these no real model lies, only a machine brought to its knees.
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
    # sizes for laptops and tests
    "xlan-small": XLANSpec(form="released", dim=512, depth=3, heads=8, hidden_dim=32, sigma="celu"),
    "xlan-tiny": XLANSpec(form="released", dim=64, depth=2, heads=4, hidden_dim=8, sigma="celu"),
    "xtransformer-tiny": replace(_TINY, attention="xlinear"),
    "transformer-tiny": replace(_TINY, attention="multihead"),
}


def model_spec(name: str, **overrides: Any) -> Spec:
    """The spec called `name`, with some of its numbers replaced.

    Raises:
        ModelError: unknown name, unknown field or a value of the wrong kind; the message lists what there is.
    """
    if name not in MODELS:
        raise ModelError(f"model: expected one of {', '.join(MODELS)}, got {name!r}")
    return spec_from_dict({**spec_to_dict(MODELS[name]), **overrides}, what=f"model {name!r}")


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """A spec as plain JSON data."""
    return {"architecture": "xlan" if isinstance(spec, XLANSpec) else "transformer", **asdict(spec)}


def spec_from_dict(value: dict[str, Any], *, what: str = "config.json") -> Spec:
    """The spec that `spec_to_dict` wrote; `what` names its origin in error messages."""
    kinds: dict[str, type[XLANSpec] | type[TransformerSpec]] = {"xlan": XLANSpec, "transformer": TransformerSpec}
    kind = kinds.get(str(value.get("architecture")))
    if kind is None:
        raise ModelError(f"{what}: architecture must be one of {', '.join(kinds)}, got {value.get('architecture')!r}")
    given = {key: item for key, item in value.items() if key != "architecture"}
    names = [field.name for field in fields(kind)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ModelError(f"{what}: unknown key {unknown[0]!r}; expected some of {', '.join(names)}")
    spec = kind(**given)
    for name, hint in get_type_hints(kind).items():
        _check_value(what, name, getattr(spec, name), hint)
    if spec.dim % spec.heads:
        raise ModelError(f"{what}: heads must divide dim {spec.dim}, got {spec.heads}")
    if spec.heads * spec.hidden_dim > MAX_SIZE:
        raise ModelError(f"{what}: heads × hidden_dim must be at most {MAX_SIZE}, got {spec.heads * spec.hidden_dim}")
    return spec


def _check_value(what: str, name: str, value: Any, hint: Any) -> None:
    choices = get_args(hint)
    if choices:
        if value not in choices:
            raise ModelError(f"{what}: {name} must be one of {', '.join(choices)}, got {value!r}")
    elif hint is int:
        least = 0 if name == "depth" else 1
        most = MAX_LAYERS if name in ("depth", "encoder_layers", "decoder_layers") else MAX_SIZE
        if type(value) is not int or not least <= value <= most:
            raise ModelError(f"{what}: {name} must be a whole number from {least} to {most}, got {value!r}")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise ModelError(f"{what}: {name} must be a probability from 0 to below 1, got {value!r}")
