"""Public checkpoints, of X-LAN's authors and of others: their names and shapes → a spec and the weights of our model.

Such a file is a bare state dict, whose names may begin with `module.`; it says nothing of the architecture, so every
number is read off the shapes. Dropout leaves no trace in weights and takes the published values.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from xlan.errors import WeightsError
from xlan.model.build import build_model
from xlan.model.public_names import FAMILIES, merge_biases
from xlan.model.spec import AoANetSpec, Att2inSpec, Spec, TransformerSpec, UpDownSpec, XLANSpec
from xlan.weights import compare_weights

_BLOCK = {
    r"in_proj_q\.0": "query_for_keys.linear",
    r"in_proj_q\.2": "query_for_keys.norm",
    r"in_proj_k\.0": "keys.linear",
    r"in_proj_k\.2": "keys.norm",
    r"in_proj_v1\.0": "query_for_values.linear",
    r"in_proj_v1\.2": "query_for_values.norm",
    r"in_proj_v2\.0": "values.linear",
    r"in_proj_v2\.2": "values.norm",
    r"attn_net\.attention_basic\.0": "W_B",
    r"attn_net\.attention_last": "W_b",
    r"attn_net\.attention_last2": "W_e",
}
_FEED_FORWARD = {r"fc1": "linear_in", r"fc2": "linear_out", r"layer_norms": "norm"}


def _under(theirs: str, ours: str, names: Mapping[str, str]) -> dict[str, str]:
    return {rf"{theirs}\.{key}": f"{ours}.{value}" for key, value in names.items()}


_XLAN_NAMES = {
    r"word_embed\.0": "decoder.embed",
    r"att_embed\.0": "encoder.embed",
    **_under(r"encoder_layers\.layers\.(\d+)\.encoder_attn", r"encoder.stack.layers.\1.block", _BLOCK),
    r"encoder_layers\.bifeat_emb\.(\d+)\.0": r"encoder.stack.layers.\1.update_keys.linear",
    r"encoder_layers\.layer_norms\.(\d+)": r"encoder.stack.layers.\1.update_keys.norm",
    r"encoder_layers\.proj": "encoder.W_G",
    r"encoder_layers\.layer_norm": "encoder.summary_norm",
    r"att_lstm": "decoder.lstm",
    **_under(r"attention\.layers\.0\.encoder_attn", "decoder.attention", _BLOCK),
    r"attention\.proj": "decoder.attended_linear",
    r"attention\.layer_norm": "decoder.attended_norm",
    r"att2ctx\.0": "decoder.context_linear",
    r"logit": "decoder.logits",
}
_XTRANSFORMER_NAMES = {
    r"att_embed\.0": "encoder.embed",
    r"att_embed\.2": "encoder.embed_norm",
    **_under(r"encoder\.layers\.(\d+)\.encoder_attn", r"encoder.layers.\1.attend.block", _BLOCK),
    r"encoder\.layers\.(\d+)\.bifeat_emb\.0": r"encoder.layers.\1.attend.update_keys.linear",
    r"encoder\.layers\.(\d+)\.layer_norm": r"encoder.layers.\1.attend.update_keys.norm",
    **_under(r"encoder\.layers\.(\d+)\.ff_layer", r"encoder.layers.\1.feed_forward", _FEED_FORWARD),
    r"encoder\.proj_norm\.0": "encoder.W_G",
    r"encoder\.proj_norm\.1": "encoder.summary_norm",
    r"decoder\.embed_tokens": "decoder.word_input.embed",
    r"decoder\.layer_norm_word": "decoder.word_input.norm",
    r"decoder\.wbil1\.([02])": r"decoder.query_of_image.\1",
    r"decoder\.wbil2\.([02])": r"decoder.query_of_words.\1",
    **_under(r"decoder\.layers\.(\d+)\.word_attn", r"decoder.layers.\1.words", _BLOCK),
    **_under(r"decoder\.layers\.(\d+)\.cross_att", r"decoder.layers.\1.regions", _BLOCK),
    r"decoder\.layers\.(\d+)\.layer_norm_cross": r"decoder.layers.\1.cross_norm",
    r"decoder\.layers\.(\d+)\.layer_norm_gx": r"decoder.layers.\1.query_norm",
    r"decoder\.layers\.(\d+)\.bifeat_emb\.0": r"decoder.layers.\1.update.linear",
    r"decoder\.layers\.(\d+)\.layer_norm_x": r"decoder.layers.\1.update.norm",
    **_under(r"decoder\.layers\.(\d+)\.ff_layer", r"decoder.layers.\1.feed_forward", _FEED_FORWARD),
    r"decoder\.proj_norm\.([02])": r"decoder.join.\1",
    r"decoder\.generator": "decoder.logits",
}
# Positions are computed, not stored.
_IGNORED = {"decoder.embed_positions.pe"}


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a `.pth` (never executing what it holds) or a `.safetensors` file of tensors.

    Raises:
        WeightsError: the file is missing, damaged, or holds something other than tensors by name.
    """
    source = Path(path)
    if not source.is_file():
        raise WeightsError(f"{source}: no such file")
    try:
        if source.suffix == ".safetensors":
            return load_file(source)
        value = torch.load(source, map_location="cpu", weights_only=True)
    except OSError as error:
        raise WeightsError(f"{source}: cannot be read: {error.strerror or error}") from None
    except pickle.UnpicklingError as error:  # torch's own message advises to execute the file; ours does not
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it asks for {wanted.group(1)}" if wanted else "it holds something else, or is damaged"
        reason = f"{what}; only tensors are read, nothing is executed"
        raise WeightsError(f"{source}: not a readable checkpoint of tensors ({reason})") from None
    except Exception as error:  # a hostile or damaged file may make the readers raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(f"{source}: not a readable checkpoint of tensors ({reason})") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{source}: expected a state dict (tensors by name), got {type(value).__name__}")
    for name, item in value.items():
        if not isinstance(item, Tensor) or item.is_meta:
            what = "a tensor without values" if isinstance(item, Tensor) else type(item).__name__
            raise WeightsError(
                f"{source}: expected a state dict (tensors by name), but {name!r} is {what}; where "
                "the state dict is an entry of the file, save that entry alone"
            )
    return {str(key): item for key, item in value.items()}


def convert_released(weights: Mapping[str, Tensor], *, heads: int | None = None) -> tuple[Spec, dict[str, Tensor]]:
    """Turn public weights into a spec and the state dict of the model it describes.

    Args:
        weights: X-LAN or X-Transformer under the names of their authors, or UpDown, Att2in, Att2all, NewFC, Show and
            Tell or AoANet under those of the widespread PyTorch implementation.
        heads: heads of an AoANet, which its weights do not tell; default 8, as published.

    Raises:
        WeightsError: weights of another model; missing, unexpected and misshapen names are listed.
    """
    theirs = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    theirs = {name: tensor for name, tensor in theirs.items() if name not in _IGNORED}
    spec: Spec
    names: Mapping[str, str]
    if "att_lstm.weight_ih" in theirs:
        spec, names = _xlan_spec(theirs), _XLAN_NAMES
    elif "decoder.embed_tokens.weight" in theirs:
        spec, names = _xtransformer_spec(theirs), _XTRANSFORMER_NAMES
    else:
        family = next((family for family in FAMILIES if family.sign in theirs), None)
        if family is None:
            some = ", ".join(sorted(theirs)[:3]) or "no tensors"
            known = ", ".join(("X-LAN", "X-Transformer", *(family.name for family in FAMILIES)))
            raise WeightsError(f"expected the weights of one of {known}; got {some} …")
        spec, names = family.spec(theirs), family.names
        theirs = merge_biases(theirs) if isinstance(spec, Att2inSpec | UpDownSpec) else theirs
    if heads is not None:
        if not isinstance(spec, AoANetSpec):
            raise WeightsError(f"heads: only an AoANet needs to be told its number of heads, got heads={heads}")
        spec = replace(spec, heads=heads)
    if isinstance(spec, AoANetSpec) and spec.dim % spec.heads:
        raise WeightsError(f"heads: expected a divisor of the width {spec.dim}, got {spec.heads}; give it with --heads")
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in build_model(spec).state_dict().items()}
    return spec, _rename(theirs, names, expected)


def _rename(
    theirs: Mapping[str, Tensor], names: Mapping[str, str], expected: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    unknown: list[str] = []
    for name, tensor in theirs.items():
        target = _our_name(name, names)
        if target is None:
            unknown.append(name)
        else:
            ours[target] = _plain(name, tensor)
    faults = compare_weights(expected, {name: tensor.shape for name, tensor in ours.items()}, unknown=unknown)
    if faults:
        raise WeightsError(f"the checkpoint does not fit the architecture its shapes suggest (our names): {faults}")
    return ours


def _our_name(name: str, names: Mapping[str, str]) -> str | None:
    stem, _, leaf = name.rpartition(".")
    for pattern, ours in names.items():
        if re.fullmatch(pattern, name):
            return re.sub(pattern, ours, name)
        if re.fullmatch(pattern, stem):
            return f"{re.sub(pattern, ours, stem)}.{leaf}"
    return None


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A copy with memory of its own (tied weights share theirs, and safetensors refuses that), if it holds weights."""
    if tensor.is_meta:  # shapes alone, to see whether they fit
        return tensor
    if tensor.layout != torch.strided or not tensor.is_floating_point() or tensor.is_quantized:
        raise WeightsError(f"{name}: expected a dense tensor of floats, got {tensor.layout} {tensor.dtype}")
    if not torch.isfinite(tensor).all():
        raise WeightsError(f"{name}: holds values that are not finite; the checkpoint is damaged or its run diverged")
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _shape(theirs: Mapping[str, Tensor], name: str, rank: int) -> torch.Size:
    if name not in theirs:
        raise WeightsError(f"the checkpoint has no {name}, which the architecture is read from")
    if theirs[name].dim() != rank:
        raise WeightsError(f"{name}: expected {rank} dimensions, got shape {list(theirs[name].shape)}")
    return theirs[name].shape


def _count(theirs: Mapping[str, Tensor], pattern: str) -> int:
    return len({found.group(1) for name in theirs if (found := re.match(pattern, name))})


def _xlan_spec(theirs: Mapping[str, Tensor]) -> XLANSpec:
    vocab_size, dim = _shape(theirs, "word_embed.0.weight", 2)
    hidden_dim, head_dim = _shape(theirs, "attention.layers.0.encoder_attn.attn_net.attention_basic.0.weight", 2)
    return XLANSpec(
        form="released",
        vocab_size=vocab_size,
        feature_dim=_shape(theirs, "att_embed.0.weight", 2)[1],
        dim=dim,
        depth=_count(theirs, r"encoder_layers\.layers\.(\d+)\."),
        heads=max(1, dim // max(1, head_dim)),
        hidden_dim=hidden_dim,
        sigma="celu",
    )


def _xtransformer_spec(theirs: Mapping[str, Tensor]) -> TransformerSpec:
    vocab_size, dim = _shape(theirs, "decoder.embed_tokens.weight", 2)
    hidden_dim, head_dim = _shape(theirs, "decoder.layers.0.cross_att.attn_net.attention_basic.0.weight", 2)
    return TransformerSpec(
        attention="xlinear",
        vocab_size=vocab_size,
        feature_dim=_shape(theirs, "att_embed.0.weight", 2)[1],
        dim=dim,
        encoder_layers=_count(theirs, r"encoder\.layers\.(\d+)\."),
        decoder_layers=_count(theirs, r"decoder\.layers\.(\d+)\."),
        heads=max(1, dim // max(1, head_dim)),
        hidden_dim=hidden_dim,
        ff_dim=_shape(theirs, "encoder.layers.0.ff_layer.fc1.weight", 2)[0],
    )
