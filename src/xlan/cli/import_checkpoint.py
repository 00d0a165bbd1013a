"""`xlan import-checkpoint`: the authors' released weights → a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CARD = """# {name}

Converted by `xlan import-checkpoint` from a checkpoint released by the authors of *X-Linear Attention Networks for
Image Captioning* (Pan, Yao, Li, Mei, CVPR 2020). The weights stay under the terms of their source.

| | |
|---|---|
| source file | `{source}` |
| architecture | {architecture} |
| parameters | {parameters:,} |
| vocabulary | {vocab_size:,} ids; one id (0) is start, end and padding |
| region features | {feature_dim} wide (bottom-up attention) |

The published X-LAN results were decoded with beam 3 and the rule `earlier`, those of X-Transformer with beam 2
and the released rule.
"""


def import_checkpoint(
    checkpoint: Annotated[
        Path, typer.Argument(help="The authors' caption_model_NN.pth, or the same names as .safetensors.")
    ],
    vocab: Annotated[Path, typer.Option("--vocab", help="Their vocabulary: a text file, one word a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model directory to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a model directory that is already there.")] = False,
) -> None:
    """Turn a released X-LAN or X-Transformer checkpoint into a model directory.

    The architecture is read off the shapes of the weights; nothing in the file is executed.
    """
    import torch

    from xlan.errors import ModelError
    from xlan.model.build import build_model
    from xlan.model.released import convert_released, read_checkpoint
    from xlan.model.spec import XLANSpec
    from xlan.pretrained import is_model_directory, save_pretrained
    from xlan.text.vocab import Vocabulary

    if is_model_directory(output) and not force:
        raise ModelError(f"{output}: a model directory is already there; use --force to replace it")
    vocabulary = Vocabulary.from_released(vocab)
    spec, weights = convert_released(read_checkpoint(checkpoint))
    if len(vocabulary) != spec.vocab_size:
        raise ModelError(
            f"{vocab}: {len(vocabulary) - 1} words make {len(vocabulary)} ids, the checkpoint has {spec.vocab_size}; "
            "give the vocabulary it was trained with"
        )
    with torch.device("meta"):
        model = build_model(spec)
    model.load_state_dict(weights, assign=True)
    name = "X-LAN" if isinstance(spec, XLANSpec) else "X-Transformer"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layers = (
        f"{spec.depth} encoder blocks, LSTM decoder"
        if isinstance(spec, XLANSpec)
        else f"{spec.encoder_layers} + {spec.decoder_layers} layers"
    )
    card = CARD.format(
        name=name,
        source=checkpoint.name,
        architecture=f"{name}, {layers}, width {spec.dim}, {spec.heads} heads",
        parameters=parameters,
        vocab_size=spec.vocab_size,
        feature_dim=spec.feature_dim,
    )
    save_pretrained(output, model, vocabulary, card=card)
    typer.echo(f"{output}: {name}, {layers}, width {spec.dim}, {parameters:,} parameters, {spec.vocab_size:,} ids")
