"""`xlan import-checkpoint`: the authors' released weights → a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_checkpoint(
    checkpoint: Annotated[
        Path, typer.Argument(help="The authors' caption_model_NN.pth, or the same names as .safetensors.")
    ],
    vocab: Annotated[Path, typer.Option("--vocab", help="Their vocabulary: a text file, one word a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model directory to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a model directory that already exists.")] = False,
) -> None:
    """Turn a released X-LAN or X-Transformer checkpoint into a model directory.

    The architecture is read off the shapes of the weights; nothing in the file is executed.
    """
    from xlan import packing

    found = packing.import_checkpoint(checkpoint, vocab, output, replace=force)
    typer.echo(
        f"{output}: {found.name}, {found.layers}, width {found.spec.dim}, {found.parameters:,} parameters, "
        f"{found.spec.vocab_size:,} ids"
    )
