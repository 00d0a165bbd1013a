"""`xlan import-checkpoint`: public weights, of X-LAN's authors or of others → a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_checkpoint(
    checkpoint: Annotated[
        Path, typer.Argument(help="A state dict: the authors' caption_model_NN.pth, a model.pth, or .safetensors.")
    ],
    vocab: Annotated[
        Path, typer.Option("--vocab", help='Its vocabulary: text, one word a line, or JSON, {"1": "a", …}.')
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model directory to write.")],
    heads: Annotated[
        int | None, typer.Option(min=1, help="Heads of an AoANet, which its weights do not show; default 8.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model directory that already exists.")] = False,
) -> None:
    """Turn a public checkpoint into a model directory.

    Reads X-LAN and X-Transformer as their authors released them, and UpDown, Att2in, Att2all, NewFC, Show and Tell and
    AoANet of the widespread PyTorch implementation. The architecture is read off the shapes of the weights; nothing in
    the file is executed.
    """
    from xlan import packing

    found = packing.import_checkpoint(checkpoint, vocab, output, heads=heads, replace=force)
    typer.echo(f"{output}: {found.description}, {found.parameters:,} parameters, {found.spec.vocab_size:,} ids")
